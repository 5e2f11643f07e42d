"""How many requests a client keeps in flight: what the server can hold, unless the config says how many."""

from __future__ import annotations

import pytest

from ratchet.core.config import ModelConfig
from ratchet.inference.engines import addressed, concurrency_variable, max_requests, url_variable


@pytest.fixture
def _served(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `ratchet models serve` leaves it for two replicas of the model `the agent`."""
    monkeypatch.setenv(url_variable("the agent"), "http://127.0.0.1:1/v1,http://127.0.0.1:2/v1")
    monkeypatch.setenv(concurrency_variable("the agent"), "40")


@pytest.mark.usefixtures("_served")
def test_a_server_of_ours_says_what_it_holds_and_the_config_wins() -> None:
    assert concurrency_variable("the agent") == "RATCHET_CONCURRENCY_THE_AGENT"
    model = ModelConfig(path="m", engine="vllm")
    assert addressed("the agent", model).max_in_flight == 40 and max_requests("the agent", model) == 80
    explicit = ModelConfig(path="m", engine="vllm", concurrency=300)
    assert addressed("the agent", explicit).max_in_flight == 300 and max_requests("the agent", explicit) == 600
    elsewhere = ModelConfig(path="m", engine="vllm", url="http://far:1/v1")
    assert max_requests("the agent", elsewhere) == 64, "nothing is known of that server"


def test_a_model_of_this_process_takes_a_batch() -> None:
    assert max_requests("agent", ModelConfig(path="m", batch=24)) == 24
