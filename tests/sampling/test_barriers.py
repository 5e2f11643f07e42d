"""benchmarks/sampling.py compares like with like: its three ways do the same work, and differ in who waits for whom."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from agents.core.tools import Answer, Tools
from benchmarks.sampling import RunMeasurement, measure, table
from benchmarks.sampling_barriers import WAYS, Gauge, run
from index_build.build import build_index
from inference.completion import Completion, SamplingParams
from inference.scripted import ScriptedEngine
from inference.tokenizer import load_tokenizer
from ratchet.config import Config, Section
from ratchet.files import Segment, read_segments, write_jsonl
from ratchet.progress import Progress
from ratchet.records import Question, Trajectory
from sampling.pool import Task
from tests.helpers.playing import system_of
from tests.helpers.tiny import save_tiny_tokenizer, tiny_format
from tests.sampling.test_pool import QUESTIONS, SETTING, SYSTEM, NoIndex, plan

PLACES = 4


async def think(question: Question, tools: Tools, settings: Section) -> Answer:
    """One to three calls, each on top of the last one."""
    dialogue, said = tools.dialogue("answerer", "Think."), ""
    for step in range(1 + int(question.id[1:]) % 3):
        said = await tools.ask(dialogue, f"{question.text} {step}")
    return Answer(said)


class Logged(ScriptedEngine):
    """Answers after a while of its seed's, and keeps how many calls were in flight whenever one began or ended."""

    def __init__(self) -> None:
        super().__init__(tiny_format(), lambda prompt, params, messages: f"said {params.seed % 100}")
        self.log: list[tuple[str, int]] = []
        self.flying = 0

    async def generate(
        self, prompt: Any, params: SamplingParams, adapter: Any = None, messages: Any = ()
    ) -> Completion:
        self.flying += 1
        self.log.append(("begin", self.flying))
        await asyncio.sleep(0.001 * (params.seed % 7))
        self.flying -= 1
        self.log.append(("end", self.flying))
        return await super().generate(prompt, params, adapter, messages)

    def begun_after_an_end(self) -> list[int]:
        """In flight, with itself, when a call began right after another one had ended."""
        pairs = zip(self.log, self.log[1:], strict=False)
        return [flying for (before, _), (now, flying) in pairs if (before, now) == ("end", "begin")]


def run_way(way: str, folder: Path) -> tuple[Logged, Gauge, list[Trajectory]]:
    engine, gauge, system = Logged(), Gauge(), system_of(think, "answerer", name="think", config=SYSTEM)
    with Segment(folder / "part-0.jsonl") as segment, Progress(way, 18) as progress:
        tasks = [Task(job, system, SETTING, segment) for job in plan()]
        asyncio.run(run(way, tasks, {"agent": engine}, NoIndex(), PLACES, progress, gauge))
    return engine, gauge, list(read_segments(folder, Trajectory))


def test_every_way_does_the_same_work(tmp_path: Path) -> None:
    made = {way: run_way(way, tmp_path / way)[2] for way in WAYS}
    answers = [{t.key: (t.status, t.answer, len(t.model_calls)) for t in found} for found in made.values()]
    assert answers[0] == answers[1] == answers[2]
    assert len(answers[0]) == len(QUESTIONS) * 3 and {status for status, _, _ in answers[0].values()} == {"finished"}


@pytest.mark.parametrize("way", WAYS)
def test_all_places_are_used_and_no_more(way: str, tmp_path: Path) -> None:
    engine, gauge, _ = run_way(way, tmp_path)
    assert engine.max_running <= PLACES and max(flying for _, flying in engine.log) == PLACES
    assert gauge.idle >= 0 and gauge.flying == 0 and gauge.request_seconds > 0


def test_only_the_pool_has_no_barrier(tmp_path: Path) -> None:
    pool, batches, steps = (run_way(way, tmp_path / way)[0] for way in WAYS)
    assert set(steps.begun_after_an_end()) == {1}, "a step begins when every call of the last one has ended"
    # 18 trajectories in batches of 4: four times the last one of a batch has ended before the next batch begins.
    assert batches.begun_after_an_end().count(1) >= 4
    assert max(batches.begun_after_an_end()) > 1, "within a batch nobody waits"
    assert pool.begun_after_an_end().count(1) < 4


def test_trajectories_of_a_batch_end_before_the_next_batch_begins(tmp_path: Path) -> None:
    order = {job.key: i // PLACES for i, job in enumerate(plan())}
    for way in ("batches", "steps"):
        batches = [order[t.key] for t in run_way(way, tmp_path / way)[2]]
        assert batches == sorted(batches)


def test_a_gauge_tells_idle_from_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 2.0, 3.0, 5.0, 9.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    gauge = Gauge()
    for by in (+1, +1, -2, 0):
        gauge.change(by)
    assert (gauge.idle, gauge.request_seconds) == (2.0 + 4.0, 1.0 + 2 * 2.0)


def test_the_whole_measurement_and_its_table(tmp_path: Path) -> None:
    save_tiny_tokenizer(tmp_path / "model")
    (tmp_path / "script.jsonl").write_text('{"default": "nobody", "delay": 0.002}\n')
    write_jsonl(tmp_path / "train.jsonl", QUESTIONS)
    model = {"path": str(tmp_path / "model"), "engine": "scripted", "script": str(tmp_path / "script.jsonl")}
    split = {"path": str(tmp_path / "train.jsonl")}
    (tmp_path / "corpus.jsonl").write_text('{"id": "a", "text": "Nobody lives there."}\n')
    config = Config.model_validate(
        {
            "run": str(tmp_path / "never"),
            "models": {"agent": model},
            "index": {"path": str(tmp_path / "index"), "documents": [str(tmp_path / "corpus.jsonl")]},
            "questions": {"train": split, "dev": split, "test": split},
            "system": SYSTEM.model_dump(),
            "sampling": {"samples": 2, "concurrency": 3},
            "rewards": {"weights": {"f1": 1.0}},
            "evaluation": {"scores": ["f1"]},
        }
    )
    build_index(config.index, load_tokenizer(model["path"]), "tiny")
    found: list[tuple[RunMeasurement, set[str]]] = [measure(config, QUESTIONS, way, tmp_path / way) for way in WAYS]
    assert found[0][1] == found[1][1] == found[2][1]
    for measured, _ in found:
        assert measured.trajectories == measured.calls == 12 and measured.statuses == {"finished": 12}
        assert 0 <= measured.idle < 1 and 0 < measured.in_flight <= 1
    lines = table([measured for measured, _ in found]).splitlines()
    assert lines[0].split() == list(WAYS)
    assert lines[2].split()[-3] == "1.00", "the pool is what the others are held against"
    assert not (tmp_path / "never").exists(), "a benchmark leaves no run"
