"""Answers that are hidden, several in one text, or not texts."""

import json
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from ratchet.core.config import SplitConfig, load_config
from ratchet.core.errors import UserError
from ratchet.core.records import Question
from ratchet.questions.load import load_split
from tests.helpers.commands import command_of
from tests.helpers.configs import SPLITS, write_config

init = command_of("init")


def loaded(folder: Path, *rows: dict[str, Any], **split: Any) -> list[Question]:
    path = folder / "q.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return load_split(SplitConfig.model_validate({"path": str(path), **split})).questions


UNKNOWN = {"value": "<unk>", "aliases": [], "normalized_aliases": []}


@pytest.mark.parametrize(
    ("row", "split"),
    [
        ({"question": "Who?", "question_id": "t", "answer": UNKNOWN}, {"benchmark": "triviaqa"}),
        ({"id": "t", "question": "Who?", "golden_answers": ["<unk>"]}, {"benchmark": "triviaqa"}),
        ({"question": "Who?", "answer": "<unk>"}, {}),
        ({"id": "h", "question": "Who?", "answer": None, "supporting_facts": []}, {"benchmark": "hotpotqa"}),
        ({"question": "Who?", "answer": None}, {}),
        ({"question": "Who?", "answers": []}, {}),
        ({"claim": "Velm is an isle.", "label": ""}, {}),
        ({"claim": "Velm is an isle.", "label": None}, {}),
        ({"claim": "Velm is an isle.", "label": -1}, {}),
        ({"text": "Is it?", "label": -1, "labels": ["a", "b"]}, {}),
        ({"id": "1", "claim": "Velm is an isle.", "label": -1, "evidence": []}, {"benchmark": "fever"}),
    ],
)
def test_the_file_of_a_test_without_answers_is_refused(
    tmp_path: Path, row: dict[str, Any], split: dict[str, str]
) -> None:
    with pytest.raises(UserError, match="kept secret"):
        loaded(tmp_path, row, **split)


def test_a_question_without_an_answer_stays_one_beside_others(tmp_path: Path) -> None:
    assert len(loaded(tmp_path, {"question": "Who?", "answer": ""}, {"question": "Where?", "answer": "Velm"})) == 2
    assert len(loaded(tmp_path, {"question": "Who?"})) == 1, "without the field, nothing is hidden"


@pytest.mark.parametrize("answer", ["Ada; Bo", "Ada|Bo"])
@pytest.mark.parametrize("name", ["q.csv", "q.jsonl"])
def test_an_answer_that_may_be_several_is_asked_about(tmp_path: Path, answer: str, name: str) -> None:
    path, mark = tmp_path / name, answer.replace(" ", "")[3]
    csv = f'question,answer,gold_ids\nWho?,"{answer}","d1{mark}d2"\n'
    path.write_text(csv if name == "q.csv" else json.dumps({"question": "Who?", "answer": answer, "gold_ids": "d1"}))
    with pytest.raises(UserError, match=rf"{name}:\d: answer: is .* one answer or several\?.*separator: \"\{mark}\""):
        load_split(SplitConfig(path=str(path)))
    [question] = load_split(SplitConfig(path=str(path), separator=mark)).questions
    assert question.answers == ("Ada", "Bo") and question.gold_ids == ("d1", "d2")[: 1 + (name == "q.csv")]
    [question] = load_split(SplitConfig(path=str(path), separator="none")).questions
    assert question.answers == (answer,)


def test_lists_options_and_references_are_not_asked_about(tmp_path: Path) -> None:
    prose = "She drew the maps of the northern coast; the harbour was built later."
    assert loaded(tmp_path, {"question": "Who?", "answer": prose})[0].answers == (prose,)
    assert loaded(tmp_path, {"question": "Who?", "answers": ["Ada; Bo"]})[0].answers == ("Ada; Bo",)
    assert loaded(tmp_path, {"question": "Who?", "reference": "Ada; or Bo"})[0].reference == "Ada; or Bo"
    [question] = loaded(tmp_path, {"question": "Who?", "choices": ["Ada; Bo", "Cy"], "answer": "Ada; Bo"})
    assert question.answers == ("Ada; Bo",)


def test_one_separator_for_the_three_files(tmp_path: Path) -> None:
    splits = {name: {"path": str(tmp_path / f"{name}.csv")} for name in SPLITS}
    path = write_config(tmp_path, questions=splits)
    config = load_config(path, ["questions.separator=;", "questions.test.separator='|'"])
    assert [split.separator for split in config.splits.values()] == [";", ";", "|"]


def test_init_asks_for_the_separator_and_writes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("Ada and Bo keep the lights of Velm.")
    rows = "".join(f"Who keeps light {i}?,Ada; Bo\n" for i in range(12))
    (tmp_path / "q.csv").write_text(f"question,answer\n{rows}")
    with pytest.raises(UserError, match=r"ratchet init: --separator"):
        init(["notes", "q.csv"])
    init(["notes", "q.csv", "--separator", ";"])
    assert yaml.safe_load((tmp_path / "notes.yaml").read_text())["questions"]["separator"] == ";"
    assert load_split(load_config("notes.yaml").questions.test).questions[0].answers == ("Ada", "Bo")


def test_json_booleans_and_parquet_dates(tmp_path: Path) -> None:
    yes, no = loaded(tmp_path, {"question": "Is it?", "answer": True}, {"question": "Was it?", "answers": [False]})
    assert (yes.answers, no.answers) == (("yes",), ("no",))
    born = [date(1912, 6, 23), date(1815, 12, 10)]
    table = {"question": ["When?", "When then?"], "answer": born, "id": [datetime(1, 1, 1), datetime(1, 1, 1, 7, 30)]}
    pq.write_table(pa.table(table), tmp_path / "q.parquet")
    first, second = load_split(SplitConfig(path=str(tmp_path / "q.parquet"))).questions
    assert (first.answers, second.answers) == (("1912-06-23",), ("1815-12-10",))
    assert (first.id, second.id) == ("0001-01-01", "0001-01-01 07:30:00")


@pytest.mark.parametrize("facts", [[["Velm", 0], ["Tarn", 2]], {"title": ["Velm", "Tarn"], "sent_id": [0, 2]}])
def test_supporting_facts_as_json_text(tmp_path: Path, facts: Any) -> None:
    row = {"_id": "a", "question": "Who?", "answer": "Ada", "supporting_facts": json.dumps(facts), "type": "bridge"}
    [question] = loaded(tmp_path, row, benchmark="twowiki")
    assert question.gold_titles == ("Velm", "Tarn")
    more = {"id": "a", "question": "Who?", "golden_answers": ["Ada"]}
    [question] = loaded(tmp_path, more | {"metadata": json.dumps({"supporting_facts": facts})}, benchmark="twowiki")
    assert question.gold_titles == ("Velm", "Tarn")
