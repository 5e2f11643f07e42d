"""The label sets of tasks with a closed set of answers. What a label means is written for a prompt, in our words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ratchet.core.records import Label

RIGHT, WRONG = "the evidence shows that the claim is correct", "the evidence shows that the claim is incorrect"
UNCLEAR = "the evidence is missing, unclear or inconsistent"

FEVER = (
    Label(name="SUPPORTS", meaning=RIGHT, stance="true"),
    Label(name="REFUTES", meaning=WRONG, stance="false"),
    Label(name="NOT ENOUGH INFO", meaning=UNCLEAR, stance="unknown"),
)
"""FEVER (Thorne et al. 2018), and FEVEROUS."""
FEVER_TWO = FEVER[:2]
"""FEVER-symmetric, and FaVIQ and FEVEROUS without the third label."""
AVERITEC = (
    Label(name="Supported", meaning=RIGHT, stance="true"),
    Label(name="Refuted", meaning=WRONG, stance="false"),
    Label(name="Not Enough Evidence", meaning="there is not enough evidence to decide", stance="unknown"),
    Label(
        name="Conflicting Evidence/Cherrypicking",
        meaning="some evidence supports the claim and some refutes it, or the claim picks what suits it",
        stance="mixed",
    ),
)
HOVER = (
    Label(name="SUPPORTED", meaning=RIGHT, stance="true"),
    Label(name="NOT_SUPPORTED", meaning="the evidence contradicts the claim, or does not show it all", stance="false"),
)
SCIFACT = (
    Label(name="SUPPORT", meaning=RIGHT, stance="true"),
    Label(name="CONTRADICT", meaning=WRONG, stance="false"),
    Label(name="NOT ENOUGH INFO", meaning=UNCLEAR, stance="unknown"),
)
SCIFACT_TWO = SCIFACT[:2]
"""SciFact without the claims that have no evidence."""
TRUE_FALSE = (
    Label(name="true", meaning="the claim is factually correct", stance="true"),
    Label(name="false", meaning="the claim is factually incorrect", stance="false"),
)
"""FacTool-QA, BingCheck, FactCheck-Bench."""
YES_NO_MAYBE = (
    Label(name="yes", meaning="the studies answer the question with yes", stance="true"),
    Label(name="no", meaning="the studies answer it with no", stance="false"),
    Label(name="maybe", meaning="the studies leave it open", stance="mixed"),
)
"""PubMedQA."""


NO_LABEL = "has no label; is this the file of a test whose labels are kept secret?"
KNOWN_SETS = (TRUE_FALSE, FEVER, AVERITEC, HOVER, SCIFACT, YES_NO_MAYBE)
"""For a row that names its label and not the task's other labels: the first set that has it."""


def label_named(name: str) -> Label:
    """The label of this name: as a known set has it, or else with the name as its meaning."""
    known = (label for labels in KNOWN_SETS for label in labels if label.name.casefold() == name.strip().casefold())
    return next((label.model_copy(update={"name": name.strip()}) for label in known), Label(name=name, meaning=name))


def set_of(name: str) -> tuple[Label, ...]:
    """The first known set of labels that has this one. Raises ValueError where none has."""
    for labels in KNOWN_SETS:
        if name.strip().casefold() in label_names(labels):
            return labels
    raise ValueError(f"label {name!r} is of no known set: list all labels of the task under `labels`")


def claim_fields(text: str, labels: Sequence[Label], value: Any) -> dict[str, Any]:
    """The fields of a `Question` that is a claim; `value` is its label as the row writes it."""
    return {"text": text, "form": "claim", "labels": tuple(labels), "label": parse_label(value, labels)}


def choice_labels(options: Mapping[str, str]) -> tuple[Label, ...]:
    """A multiple-choice question's options: letter to text, in order."""
    return tuple(Label(name=name, meaning=text) for name, text in options.items())


def parse_label(value: Any, labels: Sequence[Label]) -> str:
    """A row's label in the task's own spelling, whatever its case. Raises ValueError for any other."""
    if is_hidden(value):
        raise ValueError(NO_LABEL)
    names = label_names(labels)
    name = names.get(str(value).strip().casefold())
    if name is None:
        raise ValueError(f"label {str(value)!r} is none of {', '.join(names)}")
    return name


def is_hidden(value: Any) -> bool:
    """Tell whether a label is kept secret: nothing or -1 stands in its place."""
    return value is None or str(value).strip() in ("", "-1")


def label_names(labels: Sequence[Label]) -> dict[str, str]:
    """Every label's name by the case-folded one."""
    return {label.name.casefold(): label.name for label in labels}
