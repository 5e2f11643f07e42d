"""ratchet models check PATH: what works with a model, before it is sampled from or trained."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from ratchet.commands.subcommands import Subcommand, run_subcommand
from ratchet.core.errors import UserError, first_line

CHECK = "say what works with a model, from its tokenizer, template and config.json"


def main(words: Sequence[str] | None = None, prog: str = "ratchet models") -> None:
    """Run the subcommand that `words` name."""
    run_subcommand(SUBCOMMANDS, words, prog, "Look at language models.")


def check(words: Sequence[str], prog: str) -> None:
    """Run `check`: print a table with a line for each part of Ratchet."""
    about = "Say what works with a model, from its tokenizer, chat template and config.json; no weights are read."
    parser = argparse.ArgumentParser(prog=prog, description=about)
    parser.add_argument("path", help="a model's folder, or its name on the Hugging Face hub")
    parser.add_argument("--revision", help="of a model on the hub (default: its main branch)")
    parser.add_argument(
        "--template", default="{}", metavar="YAML", help="models.X.template, such as '{enable_thinking: false}'"
    )
    given = parser.parse_args(words)
    import yaml  # late: --help needs none of these

    from ratchet.core.config import ModelConfig, parse
    from ratchet.inference.model_check import check_chat, check_weights
    from ratchet.inference.tokenizer import load_tokenizer

    try:
        template = yaml.safe_load(given.template)
    except yaml.YAMLError as error:
        raise UserError(f"--template {given.template}: is not valid YAML: {first_line(error)}") from error
    settings = {"path": given.path, "revision": given.revision, "template": template}
    model = parse(ModelConfig, settings, "ratchet models check")
    tokenizer = load_tokenizer(model.path, model.revision)
    for found in [*check_chat(tokenizer, model.path, model.template), *check_weights(model.path, model.revision)]:
        print(f"{found.part:<16} {found.works:<4} {found.text}")


SUBCOMMANDS = {"check": Subcommand(CHECK, check)}
