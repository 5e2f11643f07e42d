"""What counts as a leak, and that the division of one file and the leakage check agree on it."""

import json
from itertools import pairwise
from pathlib import Path

import pytest

from ratchet.core.config import SplitConfig
from ratchet.core.records import Question
from ratchet.questions.leakage import find_leakage
from ratchet.questions.load import load_split

PAIRS = [
    ("Who rules Velm?", "who rules  VELM"),
    ("Who rules “Velm”?", 'Who rules "Velm"'),
    ("Ｗho rules Velm", "Who rules Velm"),
    ("Who rules Velm-Tarn?", "Who rules Velm, Tarn"),
    ("!", " ! "),
]


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_the_same_question_in_other_dress(one: str, other: str) -> None:
    [leak] = find_leakage([Question(id="a", text=one)], [Question(id="b", text=other)]).questions
    assert (leak.train, leak.test) == ("a", "b")


@pytest.mark.parametrize(
    ("one", "other"), [("Velm ruler", "Velm ruler now"), ("Velm ruler", "ruler, Velm"), ("?", "!"), ("Is it?", "It is")]
)
def test_another_question(one: str, other: str) -> None:
    assert not find_leakage([Question(id="a", text=one)], [Question(id="b", text=other)]).questions


def write(path: Path, texts: list[str]) -> Path:
    rows = ({"id": f"{path.stem}-{i}", "text": text, "answers": ["x"]} for i, text in enumerate(texts))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("seed", range(5))
def test_the_same_question_is_in_one_share_of_a_file(tmp_path: Path, seed: int) -> None:
    texts = [text for i in range(20) for text in (f"Who rules isle {i}?", f"who rules ISLE {i}", f"Who rules isle {i}")]
    path = write(tmp_path / "all.jsonl", texts)
    bounds = (0.0, 0.7, 0.8, 1.0)
    parts = [load_split(SplitConfig(path=str(path), share=share), seed).questions for share in pairwise(bounds)]
    assert sorted(question.id for part in parts for question in part) == sorted(f"all-{i}" for i in range(60))
    train, dev, test = parts
    assert not find_leakage(train, [*dev, *test]).questions and not find_leakage(dev, test).questions


def test_a_shared_gold_document_is_one_by_id_or_by_title() -> None:
    train = [
        Question(id="a", text="Who?", gold_ids=("d1", "d2")),
        Question(id="b", text="Where?", gold_titles=("Isle of Velm",)),
    ]
    test = [
        Question(id="c", text="When was it?", gold_ids=("d2", "d3")),
        Question(id="d", text="Why is it?", gold_titles=("isle of velm",)),
        Question(id="e", text="What is it?", gold_titles=("d1",), gold_ids=("Isle of Velm",)),
    ]
    found = [(leak.test, leak.train, leak.share) for leak in find_leakage(train, test).documents]
    assert found == [("c", "a", 0.5), ("d", "b", 1.0)]
