"""Sweeps: the cells, in any order and any number of parts, and what is said of those that are not there."""

import json
from pathlib import Path

import pytest

from ratchet.commands.config import open_config
from ratchet.core.config import Config, load_config
from ratchet.core.errors import UserError
from ratchet.core.files import read_segments
from ratchet.core.records import Trajectory
from ratchet.evaluation.sweep import Sweep, plan_sweep
from ratchet.inference.scripted import ScriptedEngine
from tests.helpers.sweeping import make_adapter, make_sweep, results_of, run, without_seconds

CELLS = [f"{one}/no_retrieval/dev" for one in ("base", "run-round-1-step-5", "run-round-1", "run-round-2")]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return make_sweep(tmp_path)


def planned(config: Config) -> Sweep:
    return plan_sweep(config)


def states(path: Path, *overrides: str) -> list[str]:
    plan = planned(load_config(path, overrides))
    return [plan.status(cell).state for cell in plan.cells()]


def segments(path: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in (path.parent / "run" / "arms").rglob("part-*.jsonl")}


@pytest.mark.slow
def test_parts_in_any_order_make_the_same_tables_as_one_process(path: Path, tmp_path: Path) -> None:
    assert run(path) == 0
    whole = results_of(path)
    (tmp_path / "run" / "sweep").rename(tmp_path / "before")
    (tmp_path / "run" / "arms").rename(tmp_path / "arms before")
    for part in ("2/3", "0/3", "1/3", "0/3"):
        assert run(path, "cell", part) == 0
    assert run(path, "merge") == 0
    dev = results_of(path)
    assert [cell for cell in dev.cells if cell.stage == "test"] == []
    assert run(path, "test") == 0
    assert without_seconds(results_of(path)) == without_seconds(whole)
    means = {cell.checkpoint: cell.arm.measures["f1"].mean for cell in whole.cells if cell.stage == "dev"}
    assert len(set(means.values())) > 2, "the checkpoints differ, or this would show nothing"


@pytest.mark.slow
def test_merge_names_what_is_missing_and_chooses_nothing(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(path, "cell", "1/3")
    run(path, "cell", "0/4", "--phase", "sample")
    assert states(path) == ["part", "done", "missing", "missing"]
    capsys.readouterr()
    assert run(path, "merge") == 1
    out = capsys.readouterr().out
    assert "3 cell(s) are missing" in out and CELLS[0] in out and CELLS[3] in out and f"{CELLS[1]}:" not in out
    results = results_of(path)
    missing = (f"{CELLS[0]}: 12 of 12 scores are missing", *(f"{cell}: not started" for cell in CELLS[2:]))
    assert (results.missing, results.choices) == (missing, ())
    with pytest.raises(UserError, match=f"(?s)no checkpoint is chosen on dev yet.*{CELLS[2]}"):
        run(path, "test")
    assert run(path, "cell", "0/4", "--phase", "score") == 0
    assert states(path) == ["done", "done", "missing", "missing"]
    with pytest.raises(UserError, match=r"not sampled yet.*--phase sample"):
        run(path, "cell", "0/1", "--phase", "score")


@pytest.mark.slow
def test_a_sweep_that_is_stopped_goes_on_and_repeats_nothing(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calm = make_sweep(tmp_path / "calm")
    run(calm, "cell", "0/1")
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
            run(path, "cell", "0/1")
    torn = next(iter(segments(path)))
    torn.write_bytes(torn.read_bytes() + b'{"key": "torn')
    run(path, "cell", "0/1")
    every = [trajectory for file in segments(path) for trajectory in read_segments(file.parent, Trajectory)]
    assert len(every) == len({trajectory.key for trajectory in every}) == 4 * 6
    run(path, "merge")
    run(calm, "merge")
    for noisy, quiet in zip(results_of(path).cells, results_of(calm).cells, strict=True):
        assert noisy.arm.statuses == quiet.arm.statuses
        assert noisy.arm.measures["f1"] == quiet.arm.measures["f1"]


@pytest.mark.slow
def test_other_weights_samples_or_scores_are_missing_again(path: Path) -> None:
    run(path, "cell", "0/1")
    before = segments(path)
    more = ["--set", "evaluation.scores=[em, f1, lexical_support]"]
    assert run(path, "merge", *more) == 1
    assert results_of(path).missing[0] == f"{CELLS[0]}: 6 of 18 scores are missing"
    run(path, "cell", "0/1", *more)
    assert run(path, "merge", *more) == 0
    assert segments(path) == before, "scores are made without sampling"
    make_adapter(path.parent / "run" / "round-2" / "adapter", "other weights")
    assert states(path) == ["done", "done", "done", "missing"]
    assert states(path, "evaluation.samples=2") == ["part", "part", "part", "missing"]


def test_adapters_of_runs_and_of_training_are_found_in_order(path: Path) -> None:
    plan = planned(load_config(path))
    assert [(found.name, found.round, found.step) for found in plan.checkpoints] == [
        ("base", 0, None),
        ("run-round-1-step-5", 1, 5),
        ("run-round-1", 1, None),  # checkpoint-10 is the same adapter
        ("run-round-2", 2, None),
    ]
    assert plan.checkpoints[1].leak_checked == path.parent / "run" / "round-1" / "adapter"
    other = make_adapter(path.parent / "other", "other")
    named = planned(load_config(path, [f"sweep.checkpoints={{other: {other}}}"]))
    assert [found.name for found in named.checkpoints] == ["base", "other"]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("sweep.checkpoints={'a/b': x}", r"sweep\.checkpoints: 'a/b' cannot be a name here"),
        ("sweep.checkpoints={base: x}", "choose another"),
        ("sweep.checkpoints={x: nowhere}", "nowhere is no adapter folder"),
        ("sweep.runs=[nowhere]", "nowhere has no adapter"),
        ("sweep.dev=[dve]", r"sweep\.dev: dve: no such split.*'dev'"),
        ("sweep.test=[dev]", "what chooses cannot test the choice"),
        ("sweep.chekpoints={}", "unknown key.*'checkpoints'"),
        ("sweep={grid: [dev], test: []}", "it takes the place of dev and test"),
        ("sweep.grid=[dve]", r"sweep\.grid: dve: no such split.*'dev'"),
        ("questions.test.path={dev}", "6 of the 6 questions of test are in the sweep's dev sets as well"),
    ],
)
def test_a_wrong_section_is_said_by_its_key(path: Path, override: str, message: str) -> None:
    override = override.replace("{dev}", str(path.parent / "dev.jsonl"))
    with pytest.raises(UserError, match=message):
        planned(open_config(path, [override]))


@pytest.mark.slow
def test_a_grid_measures_every_checkpoint_on_every_set_and_chooses_none(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = ("--set", "sweep.grid=[dev, test]")
    assert run(path, *grid) == 0
    results = results_of(path)
    assert [(cell.checkpoint, cell.split) for cell in results.cells] == [
        (one.split("/")[0], split) for one in CELLS for split in ("dev", "test")
    ]
    assert {cell.stage for cell in results.cells} == {"grid"} and not results.choices and not results.undecided
    assert sum(cell.p_holm is not None for cell in results.cells) == 6, "corrected over all of the table"
    assert "Every checkpoint, and none chosen" in capsys.readouterr().out
    with pytest.raises(UserError, match=r"sweep\.grid chooses no checkpoint"):
        run(path, "test", *grid)


def test_an_adapter_of_another_model_is_named(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    adapter = make_adapter(path.parent / "other", "other")
    config = json.loads((adapter / "adapter_config.json").read_text())
    for base, is_named in (("org/Model", False), ("Qwen/Qwen3-8B", True)):
        (adapter / "adapter_config.json").write_text(json.dumps(config | {"base_model_name_or_path": base}))
        planned(load_config(path, [f"sweep.checkpoints={{other: {adapter}}}"]))
        said = f"warning: {adapter}: an adapter of {base}, and models.agent is {path.parent / 'model'}\n"
        assert capsys.readouterr().err == (said if is_named else "")
