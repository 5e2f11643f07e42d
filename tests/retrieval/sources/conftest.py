"""Services of the tests are asked again at once, and are told whom they may write to."""

from __future__ import annotations

import pytest

from ratchet.http.retry import Backoff
from retrieval.sources.web import client


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "BACKOFF", Backoff(tries=5, first=0.01, longest=60.0))
    monkeypatch.setenv("RATCHET_CONTACT", "me@velm.example")
