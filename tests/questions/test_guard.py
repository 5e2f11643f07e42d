"""A run that trains on what it is evaluated on stops, before anything is done."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from ratchet.core.config import Config, LeakageConfig, load_config
from ratchet.core.errors import UserError
from ratchet.core.files import write_json
from ratchet.core.records import Question
from ratchet.evaluation.tables.suite import print_leaks
from ratchet.questions.leakage import (
    TRAINING_QUESTIONS,
    check_adapter_leakage,
    check_leakage,
    leakage_between_splits,
    training_question_digests,
)
from ratchet.questions.load import load_split
from ratchet.questions.manifest import open_run
from tests.helpers.commands import command_of
from tests.helpers.configs import SPLITS, config_values, write_config

sample = command_of("sample")

CONFIGS = Path(__file__).parents[2] / "configs"
ISLES = ("Velm", "Tarn", "Oskel", "Brimm", "Duvay", "Harrow")


def config_of(folder: Path, leakage: Any = None, **texts: Any) -> Config:
    """A config whose splits hold these questions; other ones where nothing is given."""
    for number, name in enumerate((*SPLITS, "extra")):
        rows = texts.get(name, [{"text": f"Who rules {ISLES[number]}?"}])
        path = folder / f"{name}.jsonl"
        path.write_text("".join(json.dumps({"id": f"{name}-{i}", **row}) + "\n" for i, row in enumerate(rows)))
    questions = config_values(folder)["questions"] | {"leakage": leakage or {}}
    benchmarks = {"extra": {"path": str(folder / "extra.jsonl")}}
    return load_config(write_config(folder, questions=questions, evaluation={"benchmarks": benchmarks}))


SAME = [{"text": "Who built the harbour?"}, {"text": "Where is the tower of the northern isle of Velm now?"}]
AGAIN = [{"text": "who built THE harbour"}, {"text": "Where is the tower of the Northern Isle of Velm now"}]


@pytest.mark.parametrize("where", ["test", "extra"])
def test_training_on_evaluated_questions_stops_with_the_pairs_and_the_way_out(tmp_path: Path, where: str) -> None:
    key = "questions.test" if where == "test" else "evaluation.benchmarks.extra"
    with pytest.raises(UserError) as caught:
        check_leakage(config_of(tmp_path, train=SAME, **{where: AGAIN}))
    message = str(caught.value)
    assert f"2 of the 2 questions of {key} are in questions.train as well" in message
    assert f"{where}-0 ({tmp_path / where}.jsonl) and train-0 ({tmp_path / 'train'}.jsonl)" in message
    assert f"{where}-1" in message and "questions.leakage.questions=warn" in message
    [warning] = check_leakage(config_of(tmp_path, {"questions": "warn"}, train=SAME, **{where: AGAIN}))
    assert warning.startswith("warning: 2 of the 2 questions")
    assert check_leakage(config_of(tmp_path, {"questions": "off"}, train=SAME, **{where: AGAIN})) == []


def test_dev_is_a_warning_and_so_is_a_shared_document_unless_asked_for(tmp_path: Path) -> None:
    [warning] = check_leakage(config_of(tmp_path, train=SAME, dev=AGAIN))
    assert "of questions.dev" in warning
    gold = {"train": [{"text": "Who?", "gold_ids": ["d"]}], "test": [{"text": "Where is it?", "gold_ids": ["d", "e"]}]}
    [warning] = check_leakage(config_of(tmp_path, **gold))
    assert "1 of the 1 questions of questions.test have a gold document in common" in warning
    with pytest.raises(UserError, match=r": 50% of its gold documents\n.*questions\.leakage\.documents=warn"):
        check_leakage(config_of(tmp_path, {"documents": "stop"}, **gold))
    assert check_leakage(config_of(tmp_path, {"documents": "off"}, **gold)) == []


def test_sampling_stops_before_anything_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config_of(tmp_path, train=SAME, test=AGAIN)
    monkeypatch.setattr(sys, "argv", ["sampling", "--config", str(tmp_path / "config.yaml")])
    with pytest.raises(UserError, match=r"are in questions\.train as well"):
        sample()
    assert not (tmp_path / "run").exists()


def test_an_adapter_is_not_evaluated_on_its_training_questions(tmp_path: Path) -> None:
    config = config_of(tmp_path, train=[{"text": "Who built the harbour?", "gold_ids": ["d7"]}, {"text": "Who else?"}])
    trained = {"": load_split(config.questions.train)}
    write_json(tmp_path / TRAINING_QUESTIONS, training_question_digests(trained))
    kept = (tmp_path / TRAINING_QUESTIONS).read_text()
    assert "harbour" not in kept and "d7" not in kept, "no text of a data set is published with an adapter"
    modes = LeakageConfig()
    same, other = Question(id="x", text="who built the HARBOUR"), Question(id="y", text="When?", gold_ids=("d7",))
    assert check_adapter_leakage(tmp_path, [Question(id="z", text="Who came?", gold_titles=("d7",))], modes) == []
    with pytest.raises(UserError, match=r"trained on 1 of the 2 questions of nq:\n  x\n.*leakage\.questions=warn"):
        check_adapter_leakage(tmp_path, [same, other], modes, "nq")
    first, second = check_adapter_leakage(tmp_path, [same, other], modes, "nq", strict=False)
    assert "trained on 1 of the 2" in first and "gold documents of 1 of the 2" in second
    with pytest.raises(UserError, match="gold documents of 1"):
        check_adapter_leakage(tmp_path, [other], LeakageConfig(documents="stop"))
    assert check_adapter_leakage(tmp_path, [same, other], LeakageConfig(questions="off", documents="off")) == []
    (tmp_path / TRAINING_QUESTIONS).write_text("{")
    with pytest.raises(UserError, match=r"training_questions\.json: cannot read"):
        check_adapter_leakage(tmp_path, [same], modes)
    (tmp_path / TRAINING_QUESTIONS).unlink()
    [warning] = check_adapter_leakage(tmp_path, [same], modes)
    assert "does not say" in warning


def test_the_manifest_keeps_what_was_used_and_follows_the_benchmarks(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    kept = json.loads(open_run(config).manifest.read_text())["questions"]
    assert kept.keys() == {"train", "dev", "test", "extra"}
    assert kept["train"]["count"] == 1 and len(kept["train"]["file"]) == 64 and len(kept["train"]["digest"]) == 32
    trajectories = open_run(config).round(1).trajectories
    trajectories.mkdir(parents=True)
    (trajectories / "part-0-of-1.jsonl").write_text("{}\n")
    (tmp_path / "train.jsonl").write_text('{"id": "other", "text": "Who?"}\n')
    benchmarks = {"more": config.questions.dev}
    evaluation = config.evaluation.model_copy(update={"benchmarks": benchmarks})
    now = json.loads(open_run(config.model_copy(update={"evaluation": evaluation})).manifest.read_text())["questions"]
    assert now.keys() == {"train", "dev", "test", "more"} and now["train"] == kept["train"]
    assert now["more"] == kept["dev"]


def test_what_the_command_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = config_of(tmp_path, train=SAME, test=AGAIN)
    print_leaks(leakage_between_splits(config))
    shown = capsys.readouterr().out
    row = next(line for line in shown.splitlines() if line.startswith("  questions.test"))
    assert row.split() == ["questions.test", "questions.train", "2", "2", "0"]
