"""Verdicts out of free text: a table of replies with the labels that they give in a form, and what a prompt shows.

In verdict_replies.jsonl the texts of source "smollm2" are what SmolLM2-135M-Instruct said at temperatures from 0.7 to
1.0, cut off where its tokens ended; "large" are written as models of 7B parameters and more write; "written" are made
to break the reading. `reading` is the label that a person finds in one of the forms at the head of labels.py: ""
for prose, whatever it says.
"""

import json
from pathlib import Path

import pytest

from ratchet.agents.core import labels as reader
from ratchet.agents.core.labels import find_label, labels_of, read_verdict
from ratchet.agents.core.lookahead import first_sentence
from ratchet.agents.core.output import Malformed
from ratchet.agents.core.task import task_with_options
from ratchet.core.errors import UserError
from ratchet.core.records import Label
from ratchet.questions.labels import AVERITEC, FEVER, HOVER, SCIFACT, TRUE_FALSE, YES_NO_MAYBE, choice_labels
from tests.helpers.playing import CLAIM, QUESTION

SETS: dict[str, tuple[Label, ...]] = {
    "FEVER": FEVER,
    "AVERITEC": AVERITEC,
    "HOVER": HOVER,
    "SCIFACT": SCIFACT,
    "TRUE_FALSE": TRUE_FALSE,
    "YES_NO_MAYBE": YES_NO_MAYBE,
    "CHOICES": choice_labels({"A": "the liver", "B": "the pancreas", "C": "the kidney", "D": "the heart"}),
}
REPLIES = Path(__file__).parent / "verdict_replies.jsonl"
CHOICES = choice_labels({"A": "Tin", "B": "Zinc (raw)", "C": "Vitamin C", "D": "None of these"})
MARKS = choice_labels({"C": "one", "C++": "two", "+": "three"})
GRADES = (
    Label(name="true", meaning="all of it", stance="true"),
    Label(name="half true", meaning="some of it", stance="mixed"),
    Label(name="mostly false", meaning="little of it", stance="false"),
    Label(name="pants on fire", meaning="none of it", stance="false"),
)


def test_of_all_replies_no_label_is_wrong_and_few_are_lost() -> None:
    rows = [json.loads(line) for line in REPLIES.read_text(encoding="utf-8").splitlines()]
    read = [(row, find_label(row["text"], SETS[row["labels"]])) for row in rows]
    wrong = [(row["text"], label) for row, label in read if label and label != row["reading"]]
    lost = [row["text"] for row, label in read if row["reading"] and not label]
    labelled = sum(bool(row["reading"]) for row in rows)
    models = sum(row["source"] != "written" for row in rows)
    print(f"{len(rows)} replies, {labelled} with a label: {len(wrong)} wrong, {len(lost)} lost")
    assert len(rows) >= 300 and 2 * models >= len(rows) and {row["labels"] for row in rows} == set(SETS)
    assert wrong == [] and len(lost) < 0.05 * labelled, lost


CONCLUDING = [
    f"{mark}{cue}{inner} "
    for cue in ("Therefore,", "So,", "Thus,", "Hence,", "Output:", "Result:", "Final output:")
    for mark, inner in (("", ""), ("**", ""), ("**", "**"), ("### ", ""))
]
NO_VERDICTS = (
    "it cannot be said that it is {}",
    "not {}",
    "it is not {}",
    "neither {} nor {}",
    "hardly {}",
    "probably {}",
    "perhaps {}",
    "{} or {}",
    "{}, or not",
    "{}?",
    "{} if the source is right",
    "{} would be wrong",
    "some call it {}",
    "{} was the first guess",
    "the answer is not {}",
    "I doubt that it is {}",
    "one would say {}, but the text does not",
    "{} is what they claim",
    '"{}" is how they put it',
    'the label "{}" does not fit',
    "far from {}",
    "{} (if at all)",
    "mostly {}",
    "{}\nI take that back.",
)
AROUND = (
    "They wrote:\n{}",
    "> {}",
    '"{}"',
    "\u201c{}\u201d",
    "It says that\n{}",
    "If it is so,\n{}",
    "{}\nBut it is not.",
    "{}\nMore of it.",
)


@pytest.mark.slow
def test_a_label_behind_a_concluding_word_counts_at_the_end_alone() -> None:
    read = wrong = 0
    for name, labels in SETS.items():
        for label in labels:
            other = next(one.name for one in labels if one.name != label.name)
            for cue in CONCLUDING:
                bold = "**" if cue.startswith("**") and not cue.endswith("** ") else ""
                said = f"{cue}{label.name}{bold}"
                for text in (
                    said,
                    f"It is in the text.\n\n{said}",
                    f"It is in the text. {said}.\n",
                    cue + "**" + label.name + "**",
                ):
                    read += 1
                    assert find_label(text, labels) == label.name, (name, text)
                assert find_label(f"{cue}\n{label.name}", labels) == label.name
                probes = [cue + form.format(label.name, other) + bold for form in NO_VERDICTS]
                probes += [form.format(said) for form in AROUND] + [f"{cue}{other}{bold}\n{said}"]
                for text in probes:
                    wrong += find_label(text, labels) not in ("", _negated(text, labels))
                    read += 1
    print(f"{read} probes, {wrong} wrong")
    assert wrong == 0 and read > 5_000


def _negated(text: str, labels: tuple[Label, ...]) -> str:
    """A label that is itself a negation, as "NOT_SUPPORTED", where the text gives that one."""
    return next((one.name for one in labels if one.name.lower().startswith("not_") and "not " in text), "")


@pytest.mark.parametrize(
    ("text", "labels", "label"),
    [
        ("REFUTES\nno,\n**not  enough info.**\n\n", FEVER, "NOT ENOUGH INFO"),
        ("x\n```\nRefutes\n```", FEVER, "REFUTES"),
        ("### \u201cSUPPORTS\u201d", FEVER, "SUPPORTS"),
        ("\u00a0\uff33\uff35\uff30\uff30\uff2f\uff32\uff34\uff33\u200b", FEVER, "SUPPORTS"),
        ("NOT\\_SUPPORTED", HOVER, "NOT_SUPPORTED"),
        ("B) Zinc (raw)", CHOICES, "B"),
        ("C: vitamin c.", CHOICES, "C"),
        ("The answer is Vitamin C.", CHOICES, "C"),
        ("A study shows that vitamin C helps.", CHOICES, ""),
        ("The answer is K capsule.", choice_labels({"A": "Toxin B", "B": "K capsule"}), "B"),
        ("C", MARKS, "C"),
        ("C++", MARKS, "C++"),
        ("so\n +", MARKS, "+"),
        ("c", MARKS, "C"),
        ("Verdict: half-true", GRADES, "half true"),
        ("Verdict: not true", GRADES, ""),
        ("Verdict: refuted", GRADES, ""),
        ("Verdict: correct", GRADES, "true"),
        ("- the liver\n- the pancreas", SETS["CHOICES"], ""),
    ],
)
def test_marks_signs_and_grades_are_told_apart(text: str, labels: tuple[Label, ...], label: str) -> None:
    assert find_label(text, labels) == label


def test_reasons_are_what_stands_above_a_label_alone_and_else_all_that_is_said() -> None:
    for last in ("**SUPPORTS**\n---\n", "Verdict: SUPPORTED", "So the answer is SUPPORTS."):
        verdict = read_verdict(f"One.\n\nTwo.\n\n{last}", FEVER)
        assert (verdict.label, verdict.reasons) == ("SUPPORTS", "One.\n\nTwo.")
    assert read_verdict("SUPPORTS", FEVER).reasons == ""
    said = "It was her. So the answer is SUPPORTS."
    assert read_verdict(said, FEVER).reasons == said
    with pytest.raises(Malformed, match=r"last line.* labels SUPPORTS / REFUTES"):
        read_verdict("It supports it.", FEVER)


def test_of_a_long_reply_no_more_than_its_end_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    read = list[int]()

    def measured(line: str) -> int:
        read.append(len(line))
        return first_sentence(line)

    monkeypatch.setattr(reader, "first_sentence", measured)
    pieces = (
        'answer |*|not |A, |answer is  |St. |**x**|SUPPORTS [1], |the answer: |"answer": |\\boxed{|\\text{|<answer>'
    )
    for piece in [*pieces.split("|"), "\n", "Claim: SUPPORTS?\n", "the claim is ", "Label: no. "]:
        find_label(f"SUPPORTS {piece * (1_000_000 // len(piece))}", FEVER)
        assert max(read, default=0) <= reader.MAX_CHARS + 1 and len(read) <= reader.MAX_CHARS, piece
        read.clear()
    words = "word " * 200_000
    assert find_label(f"{words}\nSUPPORTS", FEVER) == "SUPPORTS"
    assert find_label(f"Verdict: SUPPORTS\n{words}", FEVER) == ""
    dashes = "-" * (reader.MAX_CHARS - 8)
    assert find_label(f"not {dashes}SUPPORTS", FEVER) == "", "what is left of a sentence is no sentence"


def test_a_choice_has_its_options_below_where_no_instructions_list_them() -> None:
    exam = QUESTION.model_copy(update={"text": "Which metal rusts?", "labels": CHOICES[:2]})
    assert task_with_options(exam) == "Question: Which metal rusts?\nA: Tin\nB: Zinc (raw)"
    assert task_with_options(CLAIM) == f"Claim: {CLAIM.text}"


def test_a_question_without_labels_is_refused_with_a_way_out() -> None:
    with pytest.raises(UserError, match=r"'q1' has no labels.*benchmark"):
        labels_of(QUESTION)
