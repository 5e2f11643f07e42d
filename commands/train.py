"""The training stage: a round's kept trajectories to a LoRA adapter (`training/recipe.py`).

    accelerate launch train.py --config configs/demo.yaml

Plain `python train.py` does the same on one device. `--from DIR` continues to train an adapter, as later rounds do.
`--control random` trains on as many randomly chosen trajectories as were kept, below the round's folder: what the
evaluation compares with to see what selection is worth; `--control gold` on gold answers (evaluation.controls).

Interrupted at any point, the same command resumes from the last complete checkpoint, with the same loss curve. When the
adapter is there and was trained on the same rows, model and settings, the command says so and ends.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from commands.arguments import add_round_argument, config_of, config_parser, recorded_stages
from training.recipe import stop_with_launcher, train

if TYPE_CHECKING:
    from rounds.records import StageId


def main(words: Sequence[str] | None = None, prog: str = "train.py") -> None:
    """Train the adapter of a round; see the top of this file."""
    stop_with_launcher()
    parser = config_parser(prog, "Train a LoRA adapter on a round's kept trajectories.")
    add_round_argument(parser, "the round to train")
    parser.add_argument("--from", dest="start", type=Path, metavar="DIR", help="continue to train this adapter")
    parser.add_argument("--control", choices=["random", "gold"], help="train on a random selection, or on gold answers")
    arguments = parser.parse_args(words)
    config = config_of(arguments)
    is_writer = os.environ.get("RANK", "0") == "0"
    stages: dict[str | None, StageId] = {"random": "train.random", "gold": "train.gold"}
    recording = recorded_stages(
        config, stages.get(arguments.control, "train"), number=arguments.round, adapter=arguments.start
    )
    with recording if is_writer else nullcontext():
        train(config, arguments.round, arguments.start, arguments.control)
    from training.processes import end_process  # late: it imports torch

    end_process()
