"""benchmarks/learning: a comparison of arms from one set of trajectories, run with a tiny model, and its arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

import benchmarks.learning.__main__ as learning
from benchmarks.learning.cell import CellResult
from benchmarks.learning.table import difference
from benchmarks.learning.tasks import ARMS, TASKS, Cell, Setting, cell_config, cells_of
from ratchet.errors import UserError
from ratchet.runfolder import RunFolder
from tests.helpers.experiment import make_experiment, run_words

SMALL = ("--steps", "2", "--rows", "4", "--set", "training.warmup_steps=1", "--set", "training.eval_steps=2")
IN_FORM = ("--set", "evaluation.controls=[form]", "--set", "system.malformed=reask")


def in_process(started: list[str]) -> object:
    """Runs a stage in the test's own process, where torch is loaded already."""

    def run(command: Sequence[str]) -> int:
        module, *words = command[2:]
        started.append(" ".join(words[1:4]) if words[0] == "--cell" else module)
        return run_words(command[1:])

    return run


def result(arm: str, seed: int, values: dict[str, float], answered: dict[str, float] | None = None) -> CellResult:
    return CellResult(
        task="t",
        arm=arm,
        seed=seed,
        primary="f1",
        questions="d",
        kinds=dict.fromkeys(values, ""),
        values=values,
        form={i: float(answered is None or i in answered) for i in values},
        answered=values if answered is None else answered,
        floor=None,
        training={},
        train_seconds=1,
        seconds=2,
        finished="2026-01-01",
        code="abc",
        machine={},
    )


@pytest.mark.slow
def test_all_cells_learn_from_one_set_of_trajectories_and_what_is_done_is_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started: list[str] = []
    monkeypatch.setattr(learning, "run_stage", in_process(started))
    config, out = make_experiment(tmp_path), tmp_path / "out"
    task = ("--tasks", str(config), "--out", str(out), "--seeds", "1")

    learning.main([*task, "--arms", "base,random,sft", *SMALL, *IN_FORM])
    assert started[:3] == ["index_build", "sampling", "rewards"]
    assert started[3:] == [f"{config} {arm} 1" for arm in ("base", "random", "sft")]
    printed = capsys.readouterr().out
    for name in ("base", "sft-seed1"):
        assert len(list((out / "config" / name / "arms" / "test").iterdir())) == 2, (
            "as it is, and with its form enforced"
        )
    assert "2 cells left" in printed and "config: 8 questions, f1, seeds 1" in printed

    learning.main([*task, "--arms", "base,random,gold,sft,kto", "--minutes", "60"])
    assert started[6:] == [f"{config} {arm} 1" for arm in ("gold", "kto")]
    for name in ("sft-seed1", "kto-seed1"):
        one = RunFolder(out / "config" / name).round(1)
        assert one.adapter.exists() and not one.training.exists()
        assert one.trajectories.resolve() == (out / "config" / "pool" / "round-1" / "trajectories").resolve()
    learning.main([*task, "--table", "--arms", "sft,kto,weighted"])
    assert len(started) == 8 and "1 of 3 cells are missing: config weighted seed 1" in capsys.readouterr().out
    with pytest.raises(UserError, match="these options differ; name another --out"):
        learning.main([*task, "--steps", "3"])


def test_every_task_and_arm_is_a_config_that_can_be_read(tmp_path: Path) -> None:
    for task in TASKS:
        for arm in (*ARMS, "sft+training.learning_rate=3e-4"):
            config = cell_config(tmp_path, Setting(dtype="bfloat16"), Cell(task, arm, 2))
            splits = (config.questions.train, config.questions.dev, config.questions.test)
            assert config.seed == 2 and config.training.max_steps == 30 and config.models["agent"].dtype == "bfloat16"
            assert not any(split.sample or split.share or split.order != "file" for split in splits), "seeds differ"
    with pytest.raises(UserError, match=r"no such arm .did you mean 'sft'"):
        cell_config(tmp_path, Setting(), Cell("demo", "stf", 1))
    assert [cell.name for cell in cells_of(["demo"], ["base", "sft+seed=3"], [1, 2])] == [
        "base",
        "sft-seed-3-seed1",
        "sft-seed-3-seed2",
    ]


def test_differences_are_paired_by_question_and_seed() -> None:
    sft = [result("sft", 1, {"a": 0.0, "b": 1.0}, {"b": 1.0}), result("sft", 2, {"a": 1.0, "b": 1.0})]
    dpo = [result("dpo", 2, {"a": 1.0, "b": 0.0}), result("dpo", 1, {"a": 1.0, "b": 1.0})]
    assert difference(sft, dpo, "values").mean == pytest.approx(((1 - 0.5) + (0.5 - 1)) / 2)
    in_substance = difference(sft, dpo, "answered")  # a: only of seed 2, in which both answered it
    assert (in_substance.before, in_substance.after) == (1.0, pytest.approx((1.0 + 0.5) / 2))
    assert difference(sft, dpo[:1], "values").before == 1.0, "only the seeds that both have"
