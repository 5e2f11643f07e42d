"""A run that is watched: the page's server over it, on loopback, and what a test asks of it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx

from ratchet.config import Config
from report.watch.app import create_app
from report.watch.watcher import Watcher
from tests.helpers.listening import listening


@contextlib.contextmanager
def watched(config: Config, cache: Path) -> Iterator[httpx.Client]:
    """A client of the server of a run, which ends with the block."""
    with (
        Watcher(config, (), cache / "index.sqlite") as watcher,
        listening(create_app(watcher)) as url,
        httpx.Client(base_url=url, timeout=30, trust_env=False) as client,
    ):
        yield client


def get(client: httpx.Client, address: str, **filters: Any) -> Any:
    answer = client.get(address, params=filters)
    assert answer.status_code == 200, answer.text
    return answer.json()


def wait_for(condition: Callable[[], Any], seconds: float = 20.0) -> Any:
    """What `condition` gives as soon as that is true."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "it did not become true"
        time.sleep(0.02)
    return found


def indexed(client: httpx.Client) -> dict[str, Any]:
    """The first page of the list, as soon as everything is indexed."""

    def complete() -> dict[str, Any] | None:
        page: dict[str, Any] = get(client, "/trajectories", limit=200)
        return page if page["index"]["total"] and page["index"]["done"] == page["index"]["total"] else None

    found: dict[str, Any] = wait_for(complete)
    return found
