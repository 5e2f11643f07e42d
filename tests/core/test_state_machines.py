"""The store as a state machine: whatever happens in whatever order, what it promises holds."""

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ratchet.core.errors import UserError
from ratchet.core.files import Segment
from ratchet.core.records import Trajectory
from ratchet.sampling.store import TrajectoryStore
from tests.helpers.playing import QUESTION

KEYS = [f"k{number}" for number in range(4)]
SMALL = settings(
    max_examples=min(30, settings().max_examples),
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    database=None,
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


TestStore = pytest.mark.slow(StoreMachine.TestCase)
TestStore.settings = SMALL
