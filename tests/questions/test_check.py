"""Questions that a reward cannot score, and gold ids that the index lacks, are found before anything is sampled."""

import json
from pathlib import Path
from typing import Any

import pytest

from ratchet.core.config import Config, IndexConfig, load_config
from ratchet.core.errors import UserError
from ratchet.core.records import Question
from ratchet.questions.load import load_split
from ratchet.rewards.check import check_corpus, check_questions, describe_splits
from tests.helpers.configs import write_config
from tests.helpers.tiny_index import tiny_index


def make(folder: Path, train: list[dict[str, Any]], **sections: Any) -> Config:
    fine = [{"question": "Name it?", "answer": "x"}]
    for name, rows in (("train", train), ("dev", fine), ("test", [{"question": "Call it?"}, *fine])):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return load_config(write_config(folder, **sections))


def checked(config: Config, *keys: str) -> list[str]:
    splits = {key: load_split(split, config.seed) for key, split in config.splits.items()}
    asked = {key: splits[key] for key in keys} if keys else splits
    return check_questions(asked, config.rewards.weights, config.evaluation.scores, config.index)


def test_training_questions_that_no_reward_can_score_stop_the_run(tmp_path: Path) -> None:
    config = make(tmp_path, [{"id": "a", "question": "Who?"}, {"id": "b", "question": "What?"}])
    with pytest.raises(UserError, match=r"questions\.train: 2 of 2 questions have no answers or reference.*: a, b"):
        checked(config)


def test_some_training_questions_that_no_reward_can_score_are_a_warning(tmp_path: Path) -> None:
    config = make(tmp_path, [{"id": "a", "question": "Who?"}, {"question": "What?", "answer": "x"}])
    warning = checked(config, "questions.train")[0]
    assert "1 of 2 questions have no answers or reference" in warning and "nothing is learnt from them" in warning


def test_other_questions_without_an_answer_are_a_warning(tmp_path: Path) -> None:
    config = make(tmp_path, [{"question": "What?", "answer": "x"}])
    assert checked(config) == [
        "warning: questions.test: 1 of 2 questions have no answers or reference, which the score 'f1' compares with: "
        "row-0; they get no f1"
    ]
    splits = {key: load_split(split) for key, split in config.splits.items()}
    lines = list(describe_splits(splits))
    assert lines[0] == f"questions.train: 1 questions of {tmp_path}/train.jsonl: 1 with answers"
    assert lines[2].endswith("2 questions of " + f"{tmp_path}/test.jsonl: 1 with answers")


@pytest.mark.parametrize("document", ["pubmedqa:7", "7"])
def test_a_corpus_that_holds_a_tests_own_documents_stops_the_run_where_it_must_not(
    tmp_path: Path, document: str
) -> None:
    tiny_index(tmp_path, [{"id": document, "text": "An abstract."}, {"id": "8", "text": "Another one."}])
    questions = {"questions.test": [Question(id="a", text="Does it help?", gold_ids=("pubmedqa:7",))]}
    index = IndexConfig(path=str(tmp_path / "index"))
    assert check_corpus(questions, index, "off") == []
    [warning] = check_corpus(questions, index, "warn")
    assert "holds gold documents of 1 of 1 questions: pubmedqa:7" in warning
    with pytest.raises(UserError, match=r"--without NAME/SPLIT.*questions\.leakage\.corpus=off"):
        check_corpus(questions, index, "stop")
