"""Where the project's packages are: beside `ratchet` in a checkout, below it in an installed wheel.

Other projects have packages named `agents` and `commands` too, so that a wheel (setup.py) holds all of ours as
`ratchet.agents` and so on. Its build rewrites import statements; names of modules in strings go through this module.
"""

from __future__ import annotations

import re
from pathlib import Path

PACKAGES = (
    "agents",
    "commands",
    "evaluation",
    "export",
    "index_build",
    "inference",
    "question_generation",
    "questions",
    "report",
    "retrieval",
    "rewards",
    "rounds",
    "sampling",
    "serve",
    "slurm",
    "training",
)
SCRIPTS = ("selftrain", "train")
"""Modules at the top of the checkout."""
DISTRIBUTION = "ratchet-agents"
"""The name that pip knows: `ratchet` on PyPI is another project."""
IN_WHEEL = (Path(__file__).parent / "agents").is_dir()
ROOT = Path(__file__).parent if IN_WHEEL else Path(__file__).parents[1]
"""The folder that holds the packages, the scripts and `configs/accelerate`."""
_SCRIPT = re.compile(rf"(python |launch )({'|'.join(SCRIPTS)})\.py\b")


def module_name(name: str) -> str:
    """The name by which a module is imported here: `sampling`, or `ratchet.sampling`. Other projects' stay."""
    ours = name.partition(".")[0] in (*PACKAGES, *SCRIPTS)
    return f"ratchet.{name}" if IN_WHEEL and ours else name


def script_arguments(name: str) -> tuple[str, ...]:
    """What follows `python` to run a script: its file, or `-m` and its module."""
    return ("-m", module_name(name)) if IN_WHEEL else (str(ROOT / f"{name}.py"),)


def installed_commands(text: str) -> str:
    """A message whose commands run here: a wheel has `accelerate launch -m ratchet.train`, and no file train.py."""
    return _SCRIPT.sub(r"\1-m ratchet.\2", text) if IN_WHEEL else text
