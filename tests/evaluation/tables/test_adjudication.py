"""Sheets for people to judge, and what is read back from them."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from commands.evaluate import main
from evaluation.tables.adjudication import Judgement, cohen_kappa, majority, wrong_part_shares
from ratchet.errors import UserError
from tests.helpers.scripted import scripted_experiment

FACTS = '{"triplets": [{"subject": "Velm", "relation": "has", "object": "a pier", "attributions": []}], "keywords": []}'
STEPS = [
    {"prompt": "Take the text apart", "reply": FACTS},
    {"match": "Evidence found", "reply": '{"thought": "=It says so.", "verdict": "true"}'},
    {"match": "", "reply": '{"thought": "", "action": "search", "arguments": {"query": "harbour"}}'},
]


def judged(annotator: str, key: str, label: str, **more: Any) -> Judgement:
    return Judgement(annotator, key, gold="true", verdict="false", label=label, **more)


def test_an_outcome_follows_from_three_labels() -> None:
    said = {label: judged("a", "k", label).outcome for label in ("true", "false", "UNCERTAIN", "mixed")}
    assert said == {"true": "model error", "false": "data set error", "UNCERTAIN": "uncertain", "mixed": "both wrong"}
    assert Judgement("a", "k", "true", "true", "true").outcome == "right"


def test_the_majority_of_annotators_decides_and_a_tie_decides_nothing() -> None:
    three = [judged("a", "x", "true"), judged("b", "x", "true"), judged("c", "x", "false")]
    assert majority([*three, judged("a", "y", "true"), judged("b", "y", "false")]) == {"x": "model error", "y": None}


def test_kappa_is_agreement_beyond_chance() -> None:
    # Of 50 claims both say yes to 20 and no to 15; the first alone says yes to 5, the second alone to 10.
    pairs = [("y", "y")] * 20 + [("n", "n")] * 15 + [("y", "n")] * 5 + [("n", "y")] * 10
    assert cohen_kappa(pairs) == pytest.approx(0.4)
    assert cohen_kappa([]) is None and cohen_kappa([("y", "y")] * 3) is None


def test_parts_are_counted_over_the_decompositions_that_were_judged() -> None:
    some = [judged("a", "x", "true", wrong_parts=("object",)), judged("a", "y", "true", wrong_parts=())]
    shares = wrong_part_shares([*some, judged("a", "z", "true")])
    assert shares == {"subject": 0, "relation": 0, "object": 0.5, "attributions": 0} and not wrong_part_shares([])


@pytest.fixture(scope="module")
def config_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four claims, all called true by MERMAID, two of them false by their gold labels; evaluated."""
    folder = tmp_path_factory.mktemp("adjudication")
    labels = [{"name": name, "meaning": name, "stance": name} for name in ("true", "false")]
    splits = {
        split: [
            {"id": f"{split}{i}", "form": "claim", "text": words.format(i), "labels": labels, "label": label}
            for i, label in enumerate(("true", "false", "true", "false"))
        ]
        for split, words in {"train": "Orra lies {} miles off.", "test": "=Velm has {} piers."}.items()
    }
    path = scripted_experiment(
        folder,
        STEPS,
        {**splits, "dev": splits["train"]},
        sources={"search": {"service": "tavily", "mode": "local"}},
        system={"name": "mermaid"},
        rewards={"weights": {"accuracy": 1.0}},
        evaluation={"scores": ["accuracy"], "resamples": 10},
    )
    main(["--config", str(path), "--base-only", "--set", "questions.leakage.questions=warn"])
    return path


def filled(path: Path, copy: Path, *cells: dict[str, str]) -> Path:
    """A copy of a sheet with these cells in its lines."""
    with path.open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    with copy.open("w", newline="") as out:
        writer = csv.DictWriter(out, rows[0].keys())
        writer.writeheader()
        writer.writerows(row | given for row, given in zip(rows, cells, strict=True))
    return copy


def test_a_sheet_goes_out_and_judgements_come_back(
    config_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "sheet.csv"
    main(["adjudicate", "--config", str(config_path), "--out", str(out)])
    assert "2 of 2 trajectories written" in capsys.readouterr().out
    with out.open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert [(row["claim"], row["gold"], row["verdict"]) for row in rows] == [
        ("'=Velm has 1 piers.", "false", "true"),
        ("'=Velm has 3 piers.", "false", "true"),
    ]
    assert rows[0]["reasons"] == "'=It says so.", "no spreadsheet runs it"
    assert "a pier" in rows[0]["facts"] and "1. executor: search" in rows[0]["steps"]
    assert rows[0]["evidence"] == "Velm: The harbour of Velm is deep, and Ada Pell keeps it." and rows[0]["label"] == ""
    with pytest.raises(UserError, match="is there already"):
        main(["adjudicate", "--config", str(config_path), "--out", str(out)])

    first = {"label": "FALSE", "errors": "stopped_early; reasoning", "wrong_parts": "object"}
    ann = filled(out, tmp_path / "ann.csv", first, {"label": "true", "errors": "wrong_label", "wrong_parts": "none"})
    bob = filled(out, tmp_path / "bob.csv", {"label": "uncertain"}, {"label": "true"})
    main(["adjudicated", "--config", str(config_path), str(ann), str(bob)])
    printed = capsys.readouterr().out
    shown = {line.split()[0]: line.split() for line in printed.splitlines() if line.split()}
    assert shown["ann"][1:3] == ["1", "(50.0%)"] and shown["bob"][-1] == "2" and shown["majority"][-1] == "2"
    assert shown["stopped_early"][-2:] == ["1", "25.0%"] and shown["object"][1] == "50.0%"
    assert shown["ann,"][2:] == ["2", "0.500", "0.333"]
    with pytest.raises(UserError, match="ann judged a trajectory twice"):
        main(["adjudicated", "--config", str(config_path), str(ann), str(ann)])
    # One of two errors was the data set's; the other is tied, and left out.
    assert shown["test,"][2:] == ["4", "50.0", "100.0", "1", "0"]


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ({"label": "maybe"}, r"ann\.csv: row 2, label: 'maybe' is none of true, false, UNCERTAIN"),
        ({"label": "true", "errors": "resoning"}, r"row 2, errors: 'resoning' is none of .*did you mean 'reasoning'"),
        ({"label": "true", "key": "k"}, r"row 2: no trajectory of base on test has the key 'k'"),
        ({"label": "true", "arm": "bas"}, r"the arm 'bas' was not run on test"),
        ({}, "nothing was judged yet"),
    ],
)
def test_what_cannot_be_is_named_with_its_row(
    config_path: Path, tmp_path: Path, cells: dict[str, str], message: str
) -> None:
    main(["adjudicate", "--config", str(config_path), "--out", str(tmp_path / "s.csv"), "--sample", "1"])
    ann = filled(tmp_path / "s.csv", tmp_path / "ann.csv", cells)
    with pytest.raises(UserError, match=message):
        main(["adjudicated", "--config", str(config_path), str(ann)])


def test_a_file_that_is_no_sheet_is_named(config_path: Path, tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_bytes(b"a,b\n1,2\n")
    with pytest.raises(UserError, match=r"x\.csv: the column 'split' is missing"):
        main(["adjudicated", "--config", str(config_path), str(tmp_path / "x.csv")])
    (tmp_path / "x.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="cannot be read as CSV"):
        main(["adjudicated", "--config", str(config_path), str(tmp_path / "x.csv")])
