"""python -m index_build --config X.yaml: build the index of a config, once."""

from __future__ import annotations

import time

from index_build.build import build_index
from inference.chat import load_tokenizer
from ratchet.command import config_of, config_parser, run_command
from ratchet.config import Config
from ratchet.errors import UserError
from ratchet.progress import duration


def tokenizer_of(config: Config) -> tuple[str, str | None]:
    """(name, revision) of the tokenizer that measures chunks: index.tokenizer, or else the agent model's."""
    if config.index.tokenizer is not None:
        return config.index.tokenizer, None
    agent = config.models.get("agent")
    if agent is None:
        raise UserError("index.tokenizer is not set and there is no models.agent to take it from; set index.tokenizer")
    return agent.path, agent.revision


def main() -> None:
    parser = config_parser("python -m index_build", "Build the index of a config from its documents.")
    config = config_of(parser.parse_args())
    began = time.monotonic()
    name, revision = tokenizer_of(config)
    manifest, built = build_index(config.index, load_tokenizer(name, revision), name)
    state = f"built in {duration(time.monotonic() - began)}" if built else "already built, nothing to do"
    print(f"{config.index.path}: {state}")
    print(
        f"  {manifest.documents:,} documents, {manifest.chunks:,} chunks, {manifest.terms:,} terms, "
        f"{manifest.postings:,} postings, {manifest.size / 1e6:,.1f} MB"
    )
    print(f"  digest {manifest.digest}")


if __name__ == "__main__":
    run_command(main)
