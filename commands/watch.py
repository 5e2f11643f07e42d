"""python -m report watch --config X: the page of a run, served and refreshed while the run goes on."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

from commands.arguments import add_server_arguments, config_of, config_parser, config_words, server_extra
from commands.report import add_page_arguments, round_of, run_settings
from ratchet.http.server import address_of, listen, serve_until_stopped


def main(words: Sequence[str] | None = None, prog: str = "python -m report watch") -> None:
    """Serve the page of a run until Ctrl-C."""
    parser = config_parser(
        prog,
        "Serve the page of a run: what it is doing, its numbers and its trajectories. The folder is only read. The "
        "page is at 127.0.0.1: from another machine, use `ssh -L`.",
    )
    add_page_arguments(parser)
    add_server_arguments(parser, 8090, others=False)
    arguments = parser.parse_args(words)
    config = config_of(arguments)
    round_of(config.folder, arguments.round)
    with server_extra():
        from report.live import LiveRun, create_app
    from rounds.stage import ExperimentRun

    given = config_words(arguments)
    live = LiveRun(run_settings(config), ExperimentRun(config, given), arguments.round, arguments.questions)
    with listen("127.0.0.1", arguments.port) as listener, live:
        print(f"{config.folder} is at {address_of(listener)}; Ctrl-C ends", file=sys.stderr, flush=True)
        asyncio.run(serve_until_stopped(create_app(live), listener, drain_seconds=2))
