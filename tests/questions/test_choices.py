"""Multiple choice as benchmarks publish it: the option's text is the answer, or the row is refused by name."""

import json
from pathlib import Path
from typing import Any

import pytest

from ratchet.commands.init import format_of
from ratchet.core.config import SplitConfig
from ratchet.core.errors import UserError
from ratchet.core.records import Question
from ratchet.questions.load import load_split

ISLES = ["Oskel", "Velm", "Tarn", "Brimm"]
PAIRS = {"text": ISLES, "label": ["A", "B", "C", "D"]}
ASKED = "Which isle has a harbour?"
SHOWN = f"{ASKED}\nOptions:\n- Oskel\n- Velm\n- Tarn\n- Brimm"
PUBLISHED: dict[str, dict[str, Any]] = {
    "MMLU": {"question": ASKED, "subject": "isles", "choices": ISLES, "answer": 1},
    "MMLU's columns": {"question": ASKED, "A": "Oskel", "B": "Velm", "C": "Tarn", "D": "Brimm", "answer": "B"},
    "MMLU-Pro": {"question_id": 7, "question": ASKED, "options": ISLES, "answer": "B", "answer_index": 1},
    "ARC": {"id": "a", "question": ASKED, "choices": PAIRS, "answerKey": "B"},
    "ARC with digits": {"question": ASKED, "choices": PAIRS | {"label": ["1", "2", "3", "4"]}, "answerKey": "2"},
    "ARC's release": {
        "question": {"stem": ASKED, "choices": [{"text": t, "label": a} for t, a in zip(ISLES, "ABCD", strict=True)]},
        "answerKey": "B",
    },
    "CommonsenseQA": {"question": ASKED, "question_concept": "isle", "choices": PAIRS, "answerKey": "B"},
    "OpenBookQA": {"question_stem": ASKED, "choices": PAIRS, "answerKey": "B"},
    "HellaSwag": {"ctx_a": "x", "ctx": ASKED, "endings": ISLES, "label": "1", "source_id": "s"},
    "MedQA": {"question": ASKED, "answer": "Velm", "answer_idx": "B", "options": dict(zip("ABCD", ISLES, strict=True))},
    "a list of keys and values": {
        "question": ASKED,
        "answer_idx": "B",
        "options": [{"key": a, "value": t} for a, t in zip("ABCD", ISLES, strict=True)],
    },
    "AQuA": {"question": ASKED, "options": ["A)Oskel", "B)Velm", "C)Tarn", "D)Brimm"], "correct": "B"},
    "WinoGrande": {"sentence": ASKED, "option1": "Oskel", "option2": "Velm", "answer": "2"},
    "JSON as text": {"question": ASKED, "choices": json.dumps(PAIRS), "answerKey": "B"},
    "the text": {"question": ASKED, "choices": ISLES, "answer": "velm"},
    "FlashRAG": {"id": "f", "question": ASKED, "choices": ISLES, "golden_answers": [1]},
    "FlashRAG by text": {"id": "f", "question": ASKED, "choices": ISLES, "golden_answers": ["Velm"]},
}


def loaded(folder: Path, *rows: dict[str, Any]) -> list[Question]:
    path = folder / "q.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return load_split(SplitConfig.model_validate({"path": str(path), "format": format_of(path)})).questions


@pytest.mark.parametrize("form", PUBLISHED)
def test_the_answer_is_the_text_of_the_right_option(tmp_path: Path, form: str) -> None:
    [question] = loaded(tmp_path, PUBLISHED[form])
    assert question.answers == ("Velm",)
    assert question.text == (SHOWN if form != "WinoGrande" else f"{ASKED}\nOptions:\n- Oskel\n- Velm")
    assert question.kind == ("isles" if form == "MMLU" else "")


def test_sciqs_options_are_in_an_order_that_gives_nothing_away(tmp_path: Path) -> None:
    row = {"question": ASKED, "correct_answer": "Velm", "distractor1": "Tarn", "distractor2": "Oskel"}
    [question] = loaded(tmp_path, {**row, "distractor3": "Brimm", "support": ""})
    assert question.answers == ("Velm",) and question.text.endswith("- Brimm\n- Oskel\n- Tarn\n- Velm")


def test_a_table_of_mmlu(tmp_path: Path) -> None:
    path = tmp_path / "q.csv"
    path.write_text(f"question,subject,choices,answer\n{ASKED},isles,\"['Oskel' 'Velm' 'Tarn' 'Brimm']\",1\n")
    [question] = load_split(SplitConfig(path=str(path))).questions
    assert (question.text, question.answers) == (SHOWN, ("Velm",))


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"question": ASKED, "choices": ISLES, "answer": 4}, r"answer: '4' names no option \(0 to 3"),
        ({"question": ASKED, "choices": ISLES}, "no field says which is right"),
        ({"question": ASKED, "choices": ["2", "3", "1"], "answer": "1"}, "one option by its text and another by its"),
        ({"question": ASKED, "choices": "Oskel, Velm", "answer": 1}, "choices: cannot be read as the options"),
        ({"question": ASKED, "choices": PAIRS, "answerKey": "1"}, r"'1' names no option \(a, b, c, d\)"),
        ({"question": ASKED, "choices": PAIRS, "answerKey": ""}, "kept secret"),
        ({"ctx": ASKED, "endings": ISLES, "label": ""}, "kept secret"),
        ({"goal": ASKED, "sol1": "x", "sol2": "y", "label": -1}, "kept secret"),
        ({"goal": ASKED, "sol1": "x", "sol2": "y", "label": 0}, r"label: '0' names no option \(1, 2\)"),
        ({"question": ASKED, "opa": "x", "opb": "y", "opc": "z", "cop": 1}, r"cop: '1' names no option \(a, b, c\)"),
        ({"article": "x", "question": ASKED, "options": ISLES, "answer": "B"}, "article: a question about a text"),
        ({"choices": ISLES, "answer": 1}, "options without a question"),
    ],
)
def test_what_cannot_be_told_is_refused_by_name(tmp_path: Path, row: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=rf"q\.jsonl:1: .*{said}"):
        loaded(tmp_path, row)


def test_fields_that_disagree_are_refused(tmp_path: Path) -> None:
    row = {"question": ASKED, "choices": ISLES, "answer": "Tarn", "answer_idx": 1}
    with pytest.raises(UserError, match="answer_idx and answer call different options right"):
        loaded(tmp_path, row)
