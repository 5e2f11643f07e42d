"""The client of the search services: patient with what is transient, quick about what is not, and discreet."""

import asyncio
import logging
from pathlib import Path

import pytest

from ratchet.core.http.retry import Backoff
from ratchet.retrieval.retriever import SourceError
from ratchet.retrieval.sources import client
from tests.helpers.fake_server import Reply
from tests.helpers.waiting import wait_for
from tests.helpers.web_upstream import KEY, Upstream, opened, stored

pytestmark = pytest.mark.server


async def test_what_is_transient_is_tried_again(up: Upstream, tmp_path: Path) -> None:
    source = opened(up, "tavily", tmp_path)
    up.faults += [
        Reply(429, "slow down"),
        Reply(503),
        Reply(body="{" * 99, broken=True),
        Reply(body=b"\x1f\x8bno", headers={"Content-Encoding": "gzip"}),
    ]
    assert len(await source.search("tide", 3)) == 3
    assert len(up.requests) == 5


async def test_retry_after_is_kept_to_by_all_searches(up: Upstream, tmp_path: Path) -> None:
    source = opened(up, "tavily", tmp_path)
    up.faults.append(Reply(429, headers={"Retry-After": "0.3"}))
    first = asyncio.create_task(source.search("tide", 3))
    await asyncio.to_thread(wait_for, lambda: bool(up.requests))
    await asyncio.sleep(0.05)
    await asyncio.gather(first, source.search("harbour", 1))
    times = [asked.at for asked in up.requests]
    assert len(times) == 3 and min(times[1:]) - times[0] >= 0.3


async def test_patience_ends(up: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = opened(up, "tavily", tmp_path)
    up.faults += [Reply(500, "oops")] * 9
    with pytest.raises(SourceError, match=r"tavily answered 500: oops \(after 5 tries\); run the same command again"):
        await source.search("tide", 3)
    assert len(up.requests) == 5
    monkeypatch.setattr(client, "DEADLINE", 0.0)
    with pytest.raises(SourceError, match=r"after 1 tries"):
        await source.search("tides", 3)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 432])
async def test_what_is_wrong_for_good_is_not_tried_again(status: int, up: Upstream, tmp_path: Path) -> None:
    source = opened(up, "tavily", tmp_path)
    up.faults.append(Reply(status, f"no: \x1b[31m{KEY}\n is wrong" + "x" * 1000))
    with pytest.raises(SourceError, match=rf"tavily answered {status}: no: \*\*\* is wrongx+ \[cut\]; ") as caught:
        await source.search("tide", 3)
    assert KEY not in str(caught.value) and len(up.requests) == 1
    assert ("TAVILY_API_KEY" in str(caught.value)) == (status in (401, 403))


@pytest.mark.parametrize("slow", [Reply(delay=2), Reply(body="x" * 500, drip=0.01)])
async def test_slow_answers_are_given_up_and_tried_again(
    slow: Reply, up: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "TIMEOUT", 0.6)
    source = opened(up, "tavily", tmp_path)
    up.faults.append(slow)
    assert len(await source.search("tide", 3)) == 3
    monkeypatch.setattr(client, "TIMEOUT", 0.1)
    monkeypatch.setattr(client, "BACKOFF", Backoff(tries=2, first=0.01))
    up.faults += [slow, slow]
    with pytest.raises(SourceError, match=r"no complete answer within 0.1 s \(after 2 tries\)"):
        await source.search("tides", 3)


async def test_redirects_and_floods_are_refused(up: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = opened(up, "tavily", tmp_path)
    up.faults.append(Reply(302, headers={"Location": f"{up.url}/w/api.php"}))
    with pytest.raises(SourceError, match=r"302.*sends us on to .*/w/api\.php, which is not followed"):
        await source.search("tide", 3)
    monkeypatch.setattr(client, "MAX_BYTES", 1 << 20)
    up.faults.append(Reply(body=b" " * ((1 << 20) + 1)))
    with pytest.raises(SourceError, match="more than 1 MiB"):
        await source.search("tide", 3)
    assert len(up.requests) == 2


async def test_keys_are_told_to_nobody_else(
    up: Upstream, tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    for service in ("tavily", "pubmed"):
        source = opened(up, service, tmp_path)
        up.faults.append(Reply(500, f"key {KEY}"))
        await source.search("tide", 2)
        assert KEY not in source.digest + repr(source) + repr(vars(source))
    texts = [path.read_text() for path in stored(tmp_path)]
    assert len(texts) == 3 and "me@velm.example" not in "".join(texts)
    assert KEY not in "".join([*texts, caplog.text, *capfd.readouterr()])
    assert "tavily answered 500: key ***" in caplog.text


def test_a_source_outlives_an_event_loop(up: Upstream, tmp_path: Path) -> None:
    source = opened(up, "tavily", tmp_path)
    for query in ("tide", "harbour"):
        assert len(asyncio.run(source.search(query, 1))) == 1
    asyncio.run(source.close())
