"""Serve the systems of a config: ratchet serve --config configs/demo.yaml [--adapter DIR], or `ratchet serve`.

An OpenAI-compatible endpoint and a page at /, on this machine alone unless --host says otherwise. Needs the extra
`[server]`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ratchet.commands.arguments import PORTS, add_server_arguments, config_of, config_parser, limits_of
from ratchet.core.config import Config
from ratchet.core.extras import need_extra
from ratchet.core.http.server import address_of, listen, read_key, serve_until_stopped
from ratchet.core.runfolder import RunFolder
from ratchet.serve import Limits

if TYPE_CHECKING:
    from ratchet.serve.answering import Answerer

ABOUT = "Serve the systems of a config: OpenAI-compatible endpoint and a page."
NO_ADAPTER = "none"


def main(words: Sequence[str] | None = None, prog: str = "ratchet serve") -> None:
    """Serve until SIGTERM or Ctrl-C; what is being answered then is finished first."""
    parser = config_parser(prog, ABOUT)
    parser.add_argument(
        "--adapter",
        metavar="DIR",
        help="a LoRA folder for the trainable roles (default: the run's last promoted one, or its last; "
        f"{NO_ADAPTER!r}: the base model alone)",
    )
    parser.add_argument("--no-baselines", action="store_true", help="serve the config's own system alone")
    parser.add_argument("--drain", type=int, default=30, metavar="SECONDS", help="what runs may take at the end (30)")
    add_server_arguments(parser, PORTS["serve"], Limits)
    given = parser.parse_args(words)
    limits = limits_of(given, Limits)
    need_extra("server", "ratchet serve")
    key = read_key(given.host, given.key_file)
    asyncio.run(_serve(config_of(given), given, limits, key))


async def _serve(config: Config, given: argparse.Namespace, limits: Limits, key: str | None) -> None:
    from ratchet.serve.app import create_app

    with listen(given.host, given.port) as listener:
        async with contextlib.AsyncExitStack() as stack:
            answerer = _open(config, given, limits, stack)
            line = f"serving {', '.join(answerer.models)} on {address_of(listener)}"
            await serve_until_stopped(create_app(answerer, key), listener, given.drain, line)


def _open(config: Config, given: argparse.Namespace, limits: Limits, stack: contextlib.AsyncExitStack) -> Answerer:
    """The config's systems with models and index open until the stack is closed."""
    from ratchet.commands.ask import open_runner
    from ratchet.inference.adapters import read_uniform_adapter
    from ratchet.inference.engines import memory_line
    from ratchet.serve.answering import Answerer

    adapter = _adapter(RunFolder(config.folder), given.adapter)
    if adapter is not None:
        read_uniform_adapter(adapter)  # what is wrong with it is said before a model is loaded
    runner = open_runner(config, baselines=not given.no_baselines)
    stack.push_async_callback(runner.close)
    used = set[str]().union(*(system.models for system in runner.systems.values()))
    if line := memory_line(config.models, used):
        print(line, file=sys.stderr, flush=True)
    return Answerer(runner, adapter, config.training.model, limits)


def _adapter(run: RunFolder, given: str | None) -> str | None:
    if given is not None:
        return None if given == NO_ADAPTER else given
    from ratchet.rounds.promoted import best_round

    best = best_round(run)
    return None if best is None else str(run.round(best).adapter)
