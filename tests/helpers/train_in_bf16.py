"""train.py as it trains on GPUs in bf16, on CPUs: weights and compute in bf16, and TRL's head at labelled positions.

Tests launch it in place of train.py. What only a GPU can show is not covered: TRL's Triton kernels (its torch code
folds the logits here), CUDA's matrix products with float32 sums, and NCCL. Everything else is the code that GPUs run.
"""

from __future__ import annotations

import torch
import trl.trainer.utils

import training.lora

training.lora.compute_type = lambda model: torch.bfloat16
trl.trainer.utils._use_triton = lambda device: True  # where TRL looks whether to leave unlabelled positions out

import train  # noqa: E402
from ratchet.command import run_command  # noqa: E402
from training.trainer import RowTrainer  # noqa: E402

setattr(RowTrainer, "uses_trl_head", lambda self: True)  # noqa: B010

if __name__ == "__main__":
    run_command(train.main)
