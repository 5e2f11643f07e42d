"""python -m report watch --config X: a page over a run folder, while it is written or later."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from commands.arguments import config_of, config_parser
from ratchet.errors import UserError


def main(words: Sequence[str] | None = None, prog: str = "python -m report watch") -> None:
    """Serve the page of a run until Ctrl-C."""
    parser = config_parser(
        prog,
        "Serve a page over a run folder: what it is doing, and its trajectories. The folder is only read; an index of "
        "it lies in a cache folder. The page is at 127.0.0.1: from another machine, use `ssh -L`.",
    )
    parser.add_argument("--port", type=int, default=8090, help="default: 8090; 0: any free one")
    parser.add_argument(
        "--cache", type=Path, metavar="DIR", help="folder of the index (default: ratchet/watch in the user's cache)"
    )
    arguments = parser.parse_args(words)
    config = config_of(arguments)
    if not config.folder.is_dir():
        raise UserError(
            f"{config.folder}: there is no such run folder yet; `python selftrain.py` or `python -m sampling` makes it"
        )
    try:
        import uvicorn

        from report.watch.app import create_app
    except ModuleNotFoundError as error:
        raise UserError(f"the page needs {error.name}: pip install 'ratchet[server]'") from error
    from ratchet.http.server import address_of, listen, server_settings
    from report.watch.index import cache_file
    from report.watch.watcher import Watcher

    given = ("--config", arguments.config, *(word for one in arguments.overrides for word in ("--set", one)))
    watcher = Watcher(config, given, cache_file(config.folder, arguments.cache))
    with listen("127.0.0.1", arguments.port) as listener, watcher:
        print(f"{config.folder} is at {address_of(listener)}; Ctrl-C ends", file=sys.stderr, flush=True)
        uvicorn.Server(server_settings(create_app(watcher), 2)).run([listener])
