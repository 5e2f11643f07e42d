"""Paths in a config: relative to the config or to the working directory; a run resumes from any directory."""

from pathlib import Path

import pytest
import yaml

from ratchet import Experiment
from ratchet.commands.main import run
from ratchet.core.config import load_config, load_members, written
from ratchet.core.runfolder import RunFolder
from ratchet.rounds.artefacts import Digests
from ratchet.rounds.stages import ExperimentRun, stages_of
from tests.helpers.commands import command_of
from tests.helpers.experiment import make_experiment

build_index = command_of("index")
sample = command_of("sample")
score = command_of("score")


def make_project(folder: Path, config: str) -> Path:
    """An experiment whose config, at this place in its folder, has relative paths only."""
    made = make_experiment(folder, questions=2)
    path = folder / config
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(made.read_text().replace(f"{folder}/", ""))
    made.unlink(missing_ok=made != path)
    assert str(folder) not in path.read_text()
    return path


@pytest.mark.slow
@pytest.mark.parametrize("place", ["mine.yaml", "configs/demo.yaml", "configs/small/demo.yaml"])
def test_a_run_that_was_started_beside_the_config_resumes_from_another_directory(
    tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    project, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    project.mkdir()
    elsewhere.mkdir()
    path = make_project(project, place)
    monkeypatch.chdir(project)
    for command in (build_index, sample, score):
        command(["--config", place])
    before = load_config(place)
    digests = {
        stage.id: _digests(ExperimentRun(before, ()), stage.id) for stage in stages_of(ExperimentRun(before, ()))
    }
    kept = [file for file in project.rglob("*") if file.is_file() and file.name[0] != "." and file.name != "plan.json"]
    files = {file: file.read_bytes() for file in kept}
    monkeypatch.chdir(elsewhere)
    capsys.readouterr()
    for command in (build_index, sample, score):
        command(["--config", str(path)])
    run(["search", "harbour of Velm", "--config", str(path), "-k", "1"])
    assert Experiment(path).ask("Who built Velm's harbour?").status != "failed"
    assert "already built, nothing to do" in capsys.readouterr().out
    after = load_config(path)
    assert after.model_dump(mode="json") == before.model_dump(mode="json")
    assert {stage: _digests(ExperimentRun(after, ()), stage) for stage in digests} == digests
    assert list(elsewhere.rglob("*")) == [], "nothing is written where the command runs"
    assert {file: file.read_bytes() for file in files} == files


def _digests(experiment: ExperimentRun, id: str) -> dict[str, str | None]:
    [stage] = [stage for stage in stages_of(experiment) if stage.id == id]
    known = Digests(RunFolder(experiment.config.folder))
    return {name: artefact.digest(known) for name, artefact in stage.reads.items()}


def test_a_path_is_beside_the_config_first_and_then_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, own = tmp_path / "work", tmp_path / "own"
    for folder in (work, own):
        folder.mkdir()
        (folder / "both.jsonl").touch()
    (work / "here.jsonl").touch()
    (own / "beside.jsonl").touch()
    splits = {"train": "both.jsonl", "dev": "here.jsonl", "test": "beside.jsonl"}
    path = own / "c.yaml"
    path.write_text(
        yaml.safe_dump(
            {
                "run": "runs/new",
                "models": {"agent": {"path": "org/a-model-of-the-hub"}},
                "index": {"path": "i", "kind": "sparse", "encoder": {"path": "both.jsonl"}},
                "questions": {name: {"path": file} for name, file in splits.items()},
            }
        )
    )
    monkeypatch.chdir(work)
    config = load_config(path)
    questions = config.questions
    assert questions.train.path == str(own / "both.jsonl") and written(questions.train.path) == "both.jsonl"
    assert (questions.dev.path, questions.test.path) == ("here.jsonl", str(own / "beside.jsonl"))
    assert (config.run, config.models["agent"].path) == ("runs/new", "org/a-model-of-the-hub")
    assert config.index.encoder is not None and config.index.encoder.path == str(own / "both.jsonl")
    assert config.index.model_dump(mode="json")["encoder"] == {"path": "both.jsonl"}
    assert load_config(path, ["questions.train.path=beside.jsonl"]).questions.train.path == str(own / "beside.jsonl")
    monkeypatch.chdir(own)
    assert load_config("c.yaml").model_dump(mode="json") == config.model_dump(mode="json")


def test_members_are_found_beside_the_config_that_names_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = tmp_path / "project"
    project.mkdir()
    make_project(project, "member.yaml")
    (project / "shared.yaml").write_text("run: runs/shared\nmembers: {one: member.yaml}\n")
    monkeypatch.chdir(tmp_path)
    config = load_config(project / "shared.yaml")
    assert config.members == {"one": str(project / "member.yaml")}
    assert config.model_dump(mode="json")["members"] == {"one": "member.yaml"}
    assert load_members(config)["one"].questions.train.path == str(project / "train.jsonl")
