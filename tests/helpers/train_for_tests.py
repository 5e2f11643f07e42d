"""train.py with what the environment asks for; tests launch it in place of train.py.

IN_BF16=1: it trains as on GPUs, weights and compute in bf16, and with TRL's head at labelled positions. What only a GPU
can show is not covered: TRL's Triton kernels (its torch code folds the logits here), CUDA's matrix products with
float32 sums, and NCCL. Everything else is the code that GPUs run.
DISTURB="SIGKILL 4 1": the process of rank 1 gets this signal in the first step after 4 steps.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
import trl.trainer.utils

import ratchet.training.lora

IN_BF16 = os.environ.get("IN_BF16") == "1"
if IN_BF16:
    ratchet.training.lora.compute_type = lambda model: torch.bfloat16
    trl.trainer.utils._use_triton = lambda device: True  # where TRL looks whether to leave unlabelled positions out

from ratchet.commands.main import run_command, run_row  # noqa: E402
from ratchet.training.trainer import RowTrainer  # noqa: E402

if IN_BF16:
    setattr(RowTrainer, "uses_trl_head", lambda self: True)  # noqa: B010


def disturb(name: str, step: int, rank: int) -> None:
    """Send this process a signal after so many steps if it has this rank; first, process-RANK in the output folder gets
    its number."""
    train_micro_batch, mine = RowTrainer.training_step, int(os.environ.get("RANK", "0"))
    sent: list[str] = []

    def disturbed(self: RowTrainer, *arguments: Any, **named: Any) -> torch.Tensor:
        Path(self.args.output_dir, f"process-{mine}").write_text(str(os.getpid()))
        if self.state.global_step == step and mine == rank and not sent:
            sent.append(name)
            signal.raise_signal(signal.Signals[name])
        return train_micro_batch(self, *arguments, **named)

    setattr(RowTrainer, "training_step", disturbed)  # noqa: B010


if __name__ == "__main__":
    if disturbance := os.environ.get("DISTURB"):
        name, step, rank = disturbance.split()
        disturb(name, int(step), int(rank))
    run_command(lambda: run_row("train", sys.argv[1:]))
