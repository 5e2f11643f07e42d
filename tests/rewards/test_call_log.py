"""The log of a judge's replies: what is used is on disk, and replies that come together are flushed together."""

import asyncio
import os
from pathlib import Path

import pytest

from ratchet.core.errors import UserError
from ratchet.core.files import read_segment
from ratchet.rewards.judge import CallLog, Verdict


def reply(number: int) -> Verdict:
    return Verdict(owner="t", key=f"k{number}", text=f"{number}", finish_reason="stop")


def keys_on_disk(path: Path) -> list[str]:
    return [call.key for call in read_segment(path, Verdict)]


async def test_a_reply_is_on_disk_when_it_is_used_and_many_share_a_flush(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, flushes = tmp_path / "calls.jsonl", 0
    fsync = os.fsync

    def counted(number: int) -> None:
        nonlocal flushes
        flushes += 1
        fsync(number)

    with CallLog(path, set()) as log:
        monkeypatch.setattr(os, "fsync", counted)

        async def add(number: int) -> None:
            await log.add(reply(number))
            assert f"k{number}" in keys_on_disk(path) and log.get("t", f"k{number}") is not None

        await asyncio.gather(*map(add, range(100)))
    assert flushes < 10
    assert sorted(keys_on_disk(path)) == sorted(f"k{number}" for number in range(100))


async def test_a_full_disk_reaches_everybody_who_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "calls.jsonl"
    with CallLog(path, set()) as log:
        await log.add(reply(0))

        def full(number: int) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            outcomes = await asyncio.gather(*(log.add(reply(n)) for n in (1, 2)), return_exceptions=True)
        assert all(isinstance(error, UserError) and "No space left" in str(error) for error in outcomes)
        assert log.get("t", "k1") is None
        await log.add(reply(3))
    assert keys_on_disk(path) == ["k0", "k3"]


async def test_replies_that_came_just_before_the_end_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    with CallLog(path, set()) as log:
        adding = [asyncio.create_task(log.add(reply(number))) for number in range(3)]
        await asyncio.sleep(0)  # they wait for the first flush
        for task in adding:
            task.cancel()
        await asyncio.gather(*adding, return_exceptions=True)
    assert sorted(keys_on_disk(path)) == ["k0", "k1", "k2"]
