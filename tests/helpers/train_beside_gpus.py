"""train.py where torch sees eight GPUs; in place of its steps, it prints the devices that it would use."""

import sys
from typing import Any

import torch
from accelerate import PartialState

torch.cuda.is_available = lambda: True
torch.cuda.device_count = lambda: 8

import ratchet.training.recipe  # noqa: E402
from ratchet.commands.main import run_row  # noqa: E402
from ratchet.core.config import Config  # noqa: E402
from ratchet.core.runfolder import RoundFolder  # noqa: E402


def show_devices(config: Config, folder: RoundFolder, rows: Any, slots: int, *others: Any) -> None:
    from ratchet.training.trainer import trainer_config  # late, as there

    model = config.models[config.training.model]
    used = trainer_config(config.training, model, folder.training, slots, 0, 1)
    state = PartialState()
    print(state.device, state.num_processes, used.device, used.n_gpu)
    sys.exit()


setattr(ratchet.training.recipe, "optimise", show_devices)  # noqa: B010

if __name__ == "__main__":
    run_row("train", sys.argv[1:])
