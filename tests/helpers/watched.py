"""A run that is followed: the page's server over it, on loopback, and what a test asks of it."""

import contextlib
import threading
from collections.abc import Iterator

import httpx

from ratchet.core.config import Config
from ratchet.core.http.environment import certificates
from ratchet.report.follow import LiveRun, open_server
from ratchet.rounds.stages import ExperimentRun


@contextlib.contextmanager
def watched(config: Config) -> Iterator[httpx.Client]:
    """A client of the server of a run, which ends with the block."""
    with open_server(LiveRun(ExperimentRun(config, ()), None, 500), 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}"
        try:
            with httpx.Client(base_url=url, timeout=300, trust_env=False, verify=certificates()) as client:
                yield client
        finally:
            server.shutdown()
            thread.join()
