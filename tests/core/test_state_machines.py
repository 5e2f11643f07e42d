"""The store and the lease as state machines: whatever happens in whatever order, what they promise holds."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, precondition, rule

from ratchet.core.errors import UserError
from ratchet.core.files import Segment
from ratchet.core.holder import Holder
from ratchet.core.lease import STALE_SECONDS, Lease, holder_of
from ratchet.core.records import Trajectory
from ratchet.sampling.store import TrajectoryStore
from tests.helpers.playing import QUESTION

KEYS = [f"k{number}" for number in range(4)]
SMALL = settings(
    max_examples=30, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck), database=None
)


def trajectory(key: str, status: str, try_number: int) -> Trajectory:
    return Trajectory.model_validate(
        {
            "key": key,
            "question_id": QUESTION.id,
            "system": "s",
            "sample": 0,
            "seed": try_number,
            "policy": "base",
            "status": status,
            "answer": f"{try_number}",
        }
    )


class StoreMachine(RuleBasedStateMachine):
    """Two segments of one store, whose writers come, are killed in the middle of a line, and go."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.store = TrajectoryStore(self.folder)
        self.open: dict[str, Segment] = {}
        self.written: dict[str, list[Trajectory]] = {"a.jsonl": [], "b.jsonl": []}
        self.tries = 0

    @rule(name=st.sampled_from(["a.jsonl", "b.jsonl"]), key=st.sampled_from(KEYS), failed=st.booleans())
    def append(self, name: str, key: str, failed: bool) -> None:
        if name not in self.open:
            self.open[name] = self.store.open_segment(name)
        self.tries += 1
        one = trajectory(key, "failed" if failed else "finished", self.tries)
        self.open[name].append(one)
        self.written[name].append(one)

    @precondition(lambda self: self.open)
    @rule(part=st.floats(0, 0.99))
    def kill_in_the_middle_of_a_line(self, part: float) -> None:
        name, segment = self.open.popitem()
        segment.close()
        line = trajectory("k0", "finished", 10**6).model_dump_json().encode()
        with (self.folder / name).open("ab") as file:
            file.write(line[: int(len(line) * part)])

    @precondition(lambda self: self.open)
    @rule()
    def close(self) -> None:
        self.open.popitem()[1].close()

    @precondition(lambda self: self.open)
    @rule()
    def second_writer(self) -> None:
        with pytest.raises(UserError, match="another process"):
            self.store.open_segment(next(iter(self.open)))

    @invariant()
    def everything_acknowledged_is_read_once(self) -> None:
        inorder = [*self.written["a.jsonl"], *self.written["b.jsonl"]]
        wanted: dict[str, Trajectory] = {}
        for one in inorder:
            if one.key not in wanted or (wanted[one.key].status == "failed" and one.status != "failed"):
                wanted[one.key] = one
        read = list(self.store.read(KEYS))
        assert {one.key: one for one in read} == wanted and len(read) == len(wanted)
        assert self.store.finished() == {one.key for one in inorder if one.status != "failed"}

    def teardown(self) -> None:
        for segment in self.open.values():
            segment.close()
        shutil.rmtree(self.folder)


class LeaseMachine(RuleBasedStateMachine):
    """Several takers of one lease; the file may become a dead process's or another machine's."""

    takers = Bundle("takers")

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.path = self.folder / ".lease"
        # The heartbeat would stop this process when it finds that a lease is lost; `renew` does its work here.
        self.no_heartbeat = mock.patch("ratchet.core.lease._heartbeat.add")
        self.no_heartbeat.start()
        self.no_watch = mock.patch("ratchet.core.lease.WATCH_SECONDS", 0.0)
        self.no_watch.start()
        self.holders: list[Lease] = []
        """Those that were given the lease and were not told yet that they have lost it."""
        self.is_ours = True
        """Whether the file, if there is one, names one of these takers."""

    @rule(target=takers)
    def come(self) -> Lease:
        return Lease(self.path, "it", wait=0.0)

    @rule(taker=takers)
    def take(self, taker: Lease) -> None:
        if taker in self.holders:
            return
        is_free = not self.path.exists() or holder_of(self.path) is None
        assert (taker.try_acquire() is None) == is_free
        if is_free:
            self.holders.append(taker)
            self.is_ours = True

    @precondition(lambda self: self.holders)
    @rule()
    def release(self) -> None:
        self.holders.pop().release()

    @precondition(lambda self: self.holders and self.is_ours and self.path.exists())
    @rule(seconds=st.sampled_from([0.0, 2 * STALE_SECONDS]))
    def lose_to_another_machine(self, seconds: float) -> None:
        """As after a long suspension; the other one may have ended since."""
        there = Holder.model_validate_json(self.path.read_bytes())
        other = there.model_copy(update={"token": "other", "machine": "node7", "host": "node7"})
        self.path.write_text(json.dumps(other.model_dump()))
        os.utime(self.path, (time.time() - seconds, time.time() - seconds))
        self.is_ours = False

    @precondition(lambda self: self.holders and self.is_ours)
    @rule()
    def delete(self) -> None:
        self.path.unlink(missing_ok=True)

    @rule(taker=takers)
    def renew(self, taker: Lease) -> None:
        if taker not in self.holders:
            return
        taker.renew()
        if taker.lost:
            self.holders.remove(taker)

    @invariant()
    def at_most_one_writes(self) -> None:
        """Whoever looks before it writes: of all that were given the lease at most one may still write."""
        for holder in self.holders:
            holder.renew()
        allowed = [holder for holder in self.holders if not holder.lost]
        assert len(allowed) <= 1
        self.holders = allowed
        left = {path.name for path in self.folder.iterdir()}
        assert left <= {".lease"}, left

    def teardown(self) -> None:
        for holder in self.holders:
            holder.release()
        self.no_heartbeat.stop()
        self.no_watch.stop()
        shutil.rmtree(self.folder)


TestStore = StoreMachine.TestCase
TestStore.settings = SMALL
TestLease = LeaseMachine.TestCase
TestLease.settings = SMALL
