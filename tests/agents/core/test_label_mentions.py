"""The label that a text in prose asserts: a table of sentences, half of them a small model's own, and denying frames.

The texts of source "smollm2" in verdict_sentences.jsonl are what SmolLM2-135M-Instruct said at temperatures from 0.7 to
1.0, cut off where its tokens ended, and read by a person.
"""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from agents.core.label_mentions import mentioned_label
from questions.labels import AVERITEC, FEVER, HOVER, SCIFACT, TRUE_FALSE, YES_NO_MAYBE, choice_labels
from ratchet.records import Label

SETS: dict[str, tuple[Label, ...]] = {
    "FEVER": FEVER,
    "AVERITEC": AVERITEC,
    "HOVER": HOVER,
    "SCIFACT": SCIFACT,
    "TRUE_FALSE": TRUE_FALSE,
    "YES_NO_MAYBE": YES_NO_MAYBE,
    "CHOICES": choice_labels({"A": "the liver", "B": "the pancreas", "C": "the kidney", "D": "the heart"}),
}
TABLE: list[dict[str, Any]] = [
    json.loads(line)
    for line in (Path(__file__).parent / "verdict_sentences.jsonl").read_text(encoding="utf-8").splitlines()
]

ASSERTING = (
    "the answer is {}",
    "the verdict is **{}**",
    "I choose {}",
    "the page says {}",
    "it is {}",
    "it comes to {} here",
)
DENYING = (
    "It is not the case that {}.",
    "I do not think that {}.",
    "I doubt that {}.",
    "It is unclear whether {}.",
    "It is uncertain if, on all these pages, {}.",
    "No page shows that {}.",
    "None of the pages, old or new, tells us that {}.",
    "Neither page shows that {}.",
    "Nobody can say that {}.",
    "I cannot say that {}.",
    "One can\u2019t be sure that {}.",
    "It never follows that {}.",
    "The evidence fails to show that {}.",
    "There is a lack of reasons to believe that {}.",
    "The pages are insufficient to conclude that {}.",
    "It is hardly the case that {}.",
    "It may be that {}.",
    "It could be that {}.",
    "It would be wrong to say that {}.",
    "I deny that {}.",
    "Perhaps {}.",
    "If all pages are right, {}.",
    "Is it so that {}?",
    "The opponent says that {}.",
    "The other agent claims that {}.",
    "{}, but I am not sure.",
    "{}, if all pages are right.",
    "{}?",
)


def test_the_table_is_half_a_models_own_words() -> None:
    own = [row for row in TABLE if row["source"] == "smollm2"]
    assert len(TABLE) >= 60 and len(own) >= 30 and {row["labels"] for row in TABLE} == set(SETS)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row["text"][-60:])
def test_a_text_comes_to_the_label_that_it_asserts(row: dict[str, Any]) -> None:
    assert mentioned_label(row["text"], SETS[row["labels"]]) == row["reading"]


@pytest.mark.parametrize("name", SETS)
def test_what_asserts_a_label_asserts_none_within_a_denial_a_doubt_or_another_view(name: str) -> None:
    labels = SETS[name]
    for label, asserting in product(labels, ASSERTING):
        sentence = asserting.format(label.name)
        read = mentioned_label(f"So {sentence}.", labels)
        assert read == label.name or (read == "" and len(label.name) < 4), sentence
        for denying in DENYING:
            for before in ("", "It is an old page.\n", f"The first page comes to {label.name}. "):
                assert mentioned_label(before + denying.format(sentence), labels) == "", (denying, sentence)


@pytest.mark.parametrize("text", ["it SUPPORTS x, " * 500, "not " * 5_000 + "SUPPORTS", "SUPPORTS " * 500])
def test_a_long_text_full_of_labels_ends(text: str) -> None:
    assert mentioned_label(text, FEVER) in ("", "SUPPORTS")
