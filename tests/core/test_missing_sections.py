"""A config needs only what its command uses, and a command says which section it lacks."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from ratchet import Experiment
from ratchet.commands.main import run
from ratchet.core.config import Config, is_missing, load_config
from ratchet.core.errors import UserError
from ratchet.core.runfolder import RunFolder
from ratchet.questions.manifest import open_run
from ratchet.rounds.stages import ExperimentRun, stages_of
from ratchet.sampling.store import TrajectoryStore
from tests.helpers.commands import command_of
from tests.helpers.experiment import make_experiment

evaluate = command_of("evaluate")
build_index = command_of("index")
sample = command_of("sample")
score = command_of("score")

NO_RETRIEVAL = {"name": "no_retrieval"}


def without(config: Path, *sections: str, **changes: Any) -> Path:
    """The config without these sections, as a file beside it."""
    data = {key: value for key, value in yaml.safe_load(config.read_text()).items() if key not in sections} | changes
    path = config.with_name("without.yaml")
    path.write_text(yaml.safe_dump(data))
    return path


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    return make_experiment(tmp_path, questions=2)


def test_an_index_is_built_and_searched_and_a_question_asked_without_questions(
    experiment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = without(experiment, "questions", "rewards", "evaluation")
    build_index(["--config", str(path)])
    run(["search", "harbour of Velm", "--config", str(path), "-k", "1"])
    assert "velm" in capsys.readouterr().out
    assert Experiment(path).ask("Who built Velm's harbour?").status != "failed"


def test_an_index_is_built_and_searched_without_models(experiment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    index = yaml.safe_load(experiment.read_text())["index"] | {"tokenizer": str(experiment.parent / "model")}
    path = without(experiment, "models", "questions", index=index)
    build_index(["--config", str(path)])
    run(["search", "harbour of Velm", "--config", str(path)])
    assert "velm" in capsys.readouterr().out
    with pytest.raises(UserError, match="models"):
        Experiment(path).ask("Who?")


def test_an_index_is_built_and_searched_with_its_section_alone(
    experiment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = yaml.safe_load(experiment.read_text())
    path = experiment.with_name("alone.yaml")
    path.write_text(yaml.safe_dump({"index": data["index"] | {"tokenizer": str(experiment.parent / "model")}}))
    build_index(["--config", str(path)])
    run(["search", "harbour of Velm", "--config", str(path)])
    assert "velm" in capsys.readouterr().out
    with pytest.raises(UserError, match=r"alone\.yaml: run is missing: `ratchet x` needs run; add `run: runs/NAME`"):
        _ = load_config(path, command="ratchet x").folder


def test_a_command_names_the_split_that_it_does_not_find(experiment: Path) -> None:
    questions = yaml.safe_load(experiment.read_text())["questions"]
    path = without(experiment, questions={"test": questions["test"]})
    config = load_config(path)
    assert list(config.splits) == ["questions.test"] and config.model_dump(mode="json")["questions"]["train"] is None
    assert is_missing(Config.model_validate(config.model_dump(mode="json")).questions.dev)
    with pytest.raises(
        UserError, match=r"without\.yaml: questions\.train is missing: `ratchet sample` needs questions"
    ):
        sample(["--config", str(path)])
    with pytest.raises(UserError, match="questions: name train, dev and test, or path and split"):
        load_config(without(experiment, questions={"leakage": {"documents": "off"}}))


def test_a_system_without_retrieval_is_asked_and_sampled_without_an_index(
    experiment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = without(experiment, "index", system=NO_RETRIEVAL)
    assert Experiment(path).ask("Who built Velm's harbour?").status == "finished"
    sample(["--config", str(path)])
    config = load_config(path)
    manifest = TrajectoryStore(RunFolder(config.folder).round(1).trajectories).manifest()
    assert manifest is not None and manifest.index == "no index"
    assert open_run(config).config.exists(), "the same config is accepted again"
    assert is_missing(Config.model_validate(yaml.safe_load(open_run(config).config.read_text())).index)
    assert "index" not in [stage.id for stage in stages_of(ExperimentRun(config, ()))]
    assert "8 trajectories of 2 questions" in capsys.readouterr().out


def test_a_command_names_the_file_the_section_and_itself(experiment: Path) -> None:
    path = str(without(experiment, "questions"))
    with pytest.raises(
        UserError, match=r"without\.yaml: questions is missing: `ratchet sample` needs questions\.\w+; add"
    ):
        sample(["--config", path])
    path = str(without(experiment, "index"))
    for command in (lambda: run(["search", "x", "--config", path]), lambda: build_index(["--config", path])):
        with pytest.raises(UserError, match=r"without\.yaml: index is missing: `ratchet \w+` needs index\."):
            command()
    with pytest.raises(UserError, match=r"without\.yaml: index is missing: `ratchet sample` needs index"):
        sample(["--config", path])


def test_the_scores_of_an_evaluation_are_those_of_the_rewards(experiment: Path) -> None:
    config = load_config(without(experiment, "evaluation"))
    assert config.evaluation.scores == ("f1", "lexical_support")
    config = load_config(without(experiment, evaluation={"samples": 9}, rewards={"weights": {"em": 1.0}}))
    assert config.evaluation.scores == ("em",) and config.evaluation.samples == 9
    dump = config.model_dump(mode="json")
    assert Config.model_validate(dump).model_dump(mode="json") == dump


def test_a_judge_is_demanded_by_the_command_that_scores(experiment: Path) -> None:
    path = without(experiment, "rewards", "evaluation", system=NO_RETRIEVAL)
    config = load_config(path)
    train = Path(config.questions.train.path)
    rows = [json.loads(line) | {"reference": "Ada Torrin built it."} for line in train.read_text().splitlines()]
    train.write_text("".join(json.dumps(row) + "\n" for row in rows))
    build_index(["--config", str(path)])
    sample(["--config", str(path)])
    message = "correctness and faithfulness need a judge, and rewards.judge names 'judge', which is not under models"
    with pytest.raises(UserError, match=message):
        score(["--config", str(path)])
    with pytest.raises(UserError, match=message):
        evaluate(["--config", str(path), "--base-only"])
    assert not (RunFolder(config.folder).path / "arms").exists(), "nothing was sampled for it"
    with pytest.raises(UserError, match=message):
        list(stages_of(ExperimentRun(config, ())))
