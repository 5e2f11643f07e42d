"""Packages of GPU kernels that the settings may ask for, and what is said where they cannot run."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

from ratchet.config import TrainingConfig
from ratchet.errors import UserError


@dataclass(frozen=True)
class GpuPackage:
    """An optional package that needs a GPU."""

    needs_gpu: str
    """Begins the message that there is none."""
    setting: str
    module: str
    extra: str
    otherwise: str
    """What to do without it."""

    def check_gpu(self, has_gpu: bool) -> None:
        """Raises UserError without a GPU."""
        if not has_gpu:
            raise UserError(f"{self.needs_gpu}, and training has none; {self.otherwise}")

    def missing(self, why: str) -> UserError:
        """The error for a package that cannot be used."""
        return UserError(f"{self.setting}: {why}; `pip install '.[{self.extra}]'`, or {self.otherwise}")


LIGER = GpuPackage(
    "training.liger: its kernels need a GPU", "training.liger", "liger_kernel", "liger", "set training.liger=false"
)
UNSLOTH = GpuPackage(
    "training.backend=unsloth needs an NVIDIA GPU",
    "training.backend=unsloth",
    "unsloth",
    "unsloth",
    "`--set training.backend=peft` trains the same adapter here",
)


def check_gpu_packages(training: TrainingConfig, has_gpu: bool) -> None:
    """Raises UserError where the settings ask for a package that is not installed, or that finds no GPU.

    Nothing is imported: Unsloth patches other libraries while it is, and without a GPU it kills the process.
    """
    asked = [LIGER] * training.liger + [UNSLOTH] * (training.backend == "unsloth")
    for package in asked:
        package.check_gpu(has_gpu)
        if importlib.util.find_spec(package.module) is None:
            raise package.missing(f"{package.module} is not installed")
