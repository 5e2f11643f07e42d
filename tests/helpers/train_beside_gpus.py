"""train.py where torch sees eight GPUs; in place of its steps, it prints the devices that it would use."""

from __future__ import annotations

import sys

import torch

torch.cuda.is_available = lambda: True
torch.cuda.device_count = lambda: 8

import ratchet.training.recipe  # noqa: E402
from ratchet.commands.main import run_row  # noqa: E402
from ratchet.training.publication import TrainingJob  # noqa: E402
from ratchet.training.schedule import Schedule  # noqa: E402


def show_devices(job: TrainingJob, slots: int, plan: Schedule) -> float | None:
    from ratchet.training.trainer import trainer_config  # late, as there

    used = trainer_config(job.task.training, job.task.model, job.task.folder.training, slots, 0, 1)
    print(job.state.device, job.state.num_processes, used.device, used.n_gpu)
    sys.exit()


ratchet.training.recipe.optimise = show_devices

if __name__ == "__main__":
    run_row("train", sys.argv[1:])
