"""Sweeps: the cells, in any order and any number of parts, and what is said of those that are not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from commands.config import open_config
from evaluation.arms import arm_settings
from evaluation.sweep.cells import Sweep, plan_sweep
from inference.scripted import ScriptedEngine
from ratchet.config import Config, load_config
from ratchet.errors import UserError
from ratchet.files import read_segments
from ratchet.records import Trajectory
from tests.helpers.sweeping import make_adapter, make_sweep, results_of, run, without_seconds

CELLS = [f"{one}/no_retrieval/dev" for one in ("base", "run-round-1-step-5", "run-round-1", "run-round-2")]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return make_sweep(tmp_path)


def planned(config: Config) -> Sweep:
    return plan_sweep(arm_settings(config), config.sweep)


def segments(path: Path) -> dict[Path, bytes]:
    return {one: one.read_bytes() for one in (path.parent / "run" / "arms").rglob("part-*.jsonl")}


def test_the_cells_are_listed_with_their_state(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, path, "cells") == 0
    assert capsys.readouterr().out.splitlines() == [f"{name}\tmissing" for name in CELLS]
    assert not any((path.parent / "run" / name).exists() for name in ("sweep", "arms")), "looking leaves nothing behind"
    run(monkeypatch, path, "cell", "1/3")
    run(monkeypatch, path, "cell", "0/4", "--phase", "sample")
    capsys.readouterr()
    run(monkeypatch, path, "cells")
    states = dict(line.split("\t")[:2] for line in capsys.readouterr().out.splitlines())
    assert states == dict(zip(CELLS, ("part", "done", "missing", "missing"), strict=True))
    assert run(monkeypatch, path, "cell", "0/4", "--phase", "score") == 0
    capsys.readouterr()
    run(monkeypatch, path, "cells")
    assert capsys.readouterr().out.splitlines()[0] == f"{CELLS[0]}\tdone"
    with pytest.raises(UserError, match=r"not sampled yet.*--phase sample"):
        run(monkeypatch, path, "cell", "0/1", "--phase", "score")


@pytest.mark.slow
def test_parts_in_any_order_make_the_same_tables_as_one_process(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(monkeypatch, path) == 0
    whole = results_of(path)
    (tmp_path / "sweep.csv").write_bytes((tmp_path / "run" / "sweep" / "sweep.csv").read_bytes())
    (tmp_path / "run" / "sweep").rename(tmp_path / "before")
    (tmp_path / "run" / "arms").rename(tmp_path / "arms before")
    for part in ("2/3", "0/3", "1/3", "0/3"):
        assert run(monkeypatch, path, "cell", part) == 0
    assert run(monkeypatch, path, "merge") == 0
    dev = results_of(path)
    assert [cell for cell in dev.cells if cell.stage == "test"] == []
    assert run(monkeypatch, path, "test") == 0
    assert without_seconds(results_of(path)) == without_seconds(whole)
    means = {cell.checkpoint: cell.arm.measures["f1"].mean for cell in whole.cells if cell.stage == "dev"}
    assert len(set(means.values())) > 2, "the checkpoints differ, or this would show nothing"


def test_merge_names_what_is_missing_and_chooses_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(monkeypatch, path, "cell", "0/2")
    capsys.readouterr()
    assert run(monkeypatch, path, "merge") == 1
    out = capsys.readouterr().out
    assert "2 cell(s) are missing" in out and CELLS[1] in out and CELLS[3] in out and f"{CELLS[0]}:" not in out
    results = results_of(path)
    assert results.missing == (f"{CELLS[1]}: not started", f"{CELLS[3]}: not started")
    assert not results.choices
    with pytest.raises(UserError, match=f"(?s)dev has not chosen.*{CELLS[1]}"):
        run(monkeypatch, path, "test")


@pytest.mark.slow
def test_running_again_asks_no_model(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(monkeypatch, path)
    before, results = segments(path), results_of(path)

    async def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("a stored trajectory was sampled again")

    monkeypatch.setattr(ScriptedEngine, "generate", refuse)
    monkeypatch.setattr(ScriptedEngine, "from_config", refuse)
    assert run(monkeypatch, path) == 0
    assert (segments(path), results_of(path)) == (before, results)


def test_a_sweep_that_is_stopped_goes_on_and_repeats_nothing(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calm = make_sweep(tmp_path / "calm")
    run(monkeypatch, calm, "cell", "0/1")
    calls = 0
    real = ScriptedEngine.generate

    async def dies(self: ScriptedEngine, *args: object, **kwargs: object) -> object:
        nonlocal calls
        calls += 1
        if calls == 10:
            raise UserError("the server is gone")
        return await real(self, *args, **kwargs)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(ScriptedEngine, "generate", dies)
        with pytest.raises(UserError, match="the server is gone"):
            run(monkeypatch, path, "cell", "0/1")
    torn = next(iter(segments(path)))
    torn.write_bytes(torn.read_bytes() + b'{"key": "torn')
    run(monkeypatch, path, "cell", "0/1")
    every = [t for one in segments(path) for t in read_segments(one.parent, Trajectory)]
    assert len(every) == len({t.key for t in every}) == 4 * 6
    assert {t.answer for t in every} > {"nobody"}
    run(monkeypatch, path, "merge")
    run(monkeypatch, calm, "merge")
    noisy, quiet = (results_of(one).cells for one in (path, calm))
    assert [cell.arm.statuses for cell in noisy] == [cell.arm.statuses for cell in quiet]
    assert [cell.arm.measures["f1"] for cell in noisy] == [cell.arm.measures["f1"] for cell in quiet]


def test_other_questions_or_weights_reset_a_cell(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(monkeypatch, path, "cell", "0/1")
    make_adapter(path.parent / "run" / "round-2" / "adapter", "other weights")
    plan = planned(load_config(path))
    assert [plan.status(cell).state for cell in plan.cells()] == ["done", "done", "done", "missing"]
    plan = planned(load_config(path, ["evaluation.samples=2"]))
    assert [plan.status(cell).state for cell in plan.cells()] == ["part", "part", "part", "missing"]


def test_a_missing_score_is_a_part_and_is_made_without_sampling(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(monkeypatch, path, "cell", "0/1")
    before = segments(path)
    more = ["--set", "evaluation.scores=[em, f1, lexical_support]"]
    assert run(monkeypatch, path, "merge", *more) == 1
    assert results_of(path).missing[0] == f"{CELLS[0]}: 6 of 18 scores are missing"
    run(monkeypatch, path, "cell", "0/1", *more)
    assert run(monkeypatch, path, "merge", *more) == 0
    assert segments(path) == before


def test_adapters_of_runs_and_of_training_are_found_in_order(path: Path) -> None:
    plan = planned(load_config(path))
    found = [(one.name, one.round, one.step, one.place) for one in plan.checkpoints]
    assert found == [
        ("base", 0, None, 0.0),
        ("run-round-1-step-5", 1, 5, 0.45),
        ("run-round-1", 1, None, 1.0),  # checkpoint-10 is the same adapter
        ("run-round-2", 2, None, 2.0),
    ]
    assert plan.checkpoints[1].leak_checked == path.parent / "run" / "round-1" / "adapter"
    plain = planned(load_config(path, ["sweep.steps=false"]))
    assert [one.name for one in plain.checkpoints] == ["base", "run-round-1", "run-round-2"]
    other = make_adapter(path.parent / "other", "other")
    named = planned(load_config(path, [f"sweep.checkpoints={{other: {other}}}"]))
    assert [one.name for one in named.checkpoints] == ["base", "other"]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("sweep.checkpoints={'../up': x}", r"sweep\.checkpoints: '\.\./up' cannot be a folder's"),
        ("sweep.checkpoints={base: x}", "choose another"),
        ("sweep.checkpoints={x: nowhere}", "nowhere is no adapter folder"),
        ("sweep.systems={'.': {}}", r"sweep\.systems"),
        ("sweep.runs=[nowhere]", "nowhere has no adapter"),
        ("sweep.dev=[dve]", r"sweep\.dev: dve: no such split.*'dev'"),
        ("sweep.test=[dev]", "what chooses cannot test the choice"),
        ("sweep.chekpoints={}", "unknown key.*'checkpoints'"),
    ],
)
def test_a_wrong_section_is_said_by_its_key(path: Path, override: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        planned(open_config(path, [override]))


def test_questions_that_choose_cannot_test(path: Path) -> None:
    twin = f"questions.test.path={path.parent / 'dev.jsonl'}"
    with pytest.raises(UserError, match="6 of the 6 questions of test are in the sweep's dev sets as well"):
        planned(load_config(path, [twin]))
    planned(load_config(path, [twin, "questions.leakage.questions=warn"]))


def test_two_processes_cannot_write_one_cell(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ratchet.files import Segment

    plan = planned(load_config(path))
    folder = plan.cells()[0].arm.store.folder
    folder.mkdir(parents=True)
    with Segment(folder / "part-0.jsonl"):
        run(monkeypatch, path, "cell", "1/4")  # another cell is free
        with pytest.raises(UserError):
            run(monkeypatch, path, "cell", "0/4")
