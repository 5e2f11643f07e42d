"""A run that is watched: the page's server over it, on loopback, and what a test asks of it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import httpx

from ratchet.core.config import Config
from ratchet.core.http.clients import certificates
from ratchet.report.live import LiveRun, create_app
from ratchet.rounds.stage import ExperimentRun
from tests.helpers.listening import listening


def live_run(config: Config) -> LiveRun:
    """A run that is read while the block of this context runs."""
    return LiveRun(ExperimentRun(config, ()), None, 500)


@contextlib.contextmanager
def watched(config: Config) -> Iterator[httpx.Client]:
    """A client of the server of a run, which ends with the block."""
    with (
        live_run(config) as live,
        listening(create_app(live)) as url,
        httpx.Client(base_url=url, timeout=300, trust_env=False, verify=certificates()) as client,
    ):
        yield client
