"""Agreement of rewards with people: RAGChecker's format, its measure, and intervals over questions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import pearsonr, spearmanr

from ratchet.core.errors import UserError
from ratchet.evaluation.tables.human import Pair, human_agreement, people_agreement, read_pairs
from tests.helpers.labelled_pairs import Row, labelled


def pairs_of(folder: Path, rows: Sequence[Row]) -> list[Pair]:
    path = folder / "human.json"
    path.write_text(json.dumps(rows))
    return read_pairs(path)


@pytest.fixture
def many(tmp_path: Path) -> list[Pair]:
    """Forty pairs, each labelled by two people."""
    drawn = np.random.default_rng(0).integers(-2, 3, (40, 2, 3)).tolist()
    return pairs_of(tmp_path, [labelled(f"q{at}", labels) for at, both in enumerate(drawn) for labels in both])


def test_rows_of_one_pair_are_labels_of_several_people(tmp_path: Path) -> None:
    rows = [labelled("q", [1, 0, 2]), labelled("q", [0, 0, 1]), labelled("q", [0, 0, 0], second="three")]
    documents = [{"doc_id": "d", "text": "what was retrieved"}, {"text": "more"}]
    rows.append(labelled("r", [0, 0, -2], second="", dataset="set", critiques="ignored"))
    rows[-1]["model1"]["retrieved_context"] = documents
    found = pairs_of(tmp_path, rows)
    assert [pair.labels for pair in found] == [((1, 0, 2), (0, 0, 1)), ((0, 0, 0),), ((0, 0, -2),)]
    assert found[0].question == found[1].question and found[0].question.reference == "the reference"
    assert found[2].question.kind == "set" and found[2].answers[1].answer == ""
    assert [passage.text for passage in found[2].answers[0].passages] == ["what was retrieved", "more"]
    assert len({answer.key for pair in found for answer in pair.answers}) == 5, "one answer is in two pairs"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"overall_label": 3}, r"human\.json: row 2: overall_label: .*less than or equal to 2"),
        ({"overall_label": None}, "row 2: overall_label"),
        ({"model2": {"model_name": "b"}}, r"row 2: model2\.response: Field required.*as in RAGChecker's"),
        ({"gt_answer": 5}, "row 2: gt_answer"),
        ({"gt_answer": ""}, r"human\.json: row 2: gt_answer is empty"),
    ],
)
def test_a_row_of_another_form_is_named(tmp_path: Path, change: Row, message: str) -> None:
    with pytest.raises(UserError, match=message):
        pairs_of(tmp_path, [labelled("q", [0, 0, 0]), {**labelled("r", [0, 0, 0]), **change}])


def test_every_label_counts_by_itself_and_missing_differences_are_put_at_the_median(many: list[Pair]) -> None:
    differences = np.random.default_rng(1).normal(size=len(many)).round(3).tolist()
    labels = np.array([[label[2] for label in pair.labels] for pair in many]).ravel()
    found = human_agreement(many, differences, 0)
    overall = found.by_aspect[2]
    assert overall.mean == pytest.approx(100 * pearsonr(np.repeat(differences, 2), labels)[0])
    assert found.nulls == 0 and found.spearman == pytest.approx(100 * spearmanr(np.repeat(differences, 2), labels)[0])
    scaled = human_agreement(many, [1000 * difference for difference in differences], 0)
    assert scaled.by_aspect[2].low == pytest.approx(overall.low), "the scale does not matter"
    filled = np.repeat([*[np.median(differences[2:])] * 2, *differences[2:]], 2)
    found = human_agreement(many, [None, None, *differences[2:]], 0)
    assert found.nulls == 2 and found.by_aspect[2].mean == pytest.approx(100 * pearsonr(filled, labels)[0])


def test_people_are_compared_by_two_labels_of_each_pair(many: list[Pair]) -> None:
    first, second = (np.array([pair.labels[at] for pair in many]) for at in (0, 1))
    found = people_agreement(many, 0)
    assert found is not None and found.spearman == pytest.approx(100 * spearmanr(first[:, 2], second[:, 2])[0])
    assert found.by_aspect[0].mean == pytest.approx(100 * pearsonr(first[:, 0], second[:, 0])[0])
    alone = [Pair(pair.question, pair.answers, pair.labels[:1]) for pair in many]
    assert people_agreement(alone, 0) is None


def test_pairs_of_one_question_are_drawn_together(many: list[Pair]) -> None:
    differences = np.random.default_rng(3).normal(size=len(many)).tolist()
    apart = human_agreement(many, differences, 0).by_aspect[2]
    # The same labels as five questions with eight pairs each: eight times fewer units.
    grouped = [Pair(many[at % 5].question, pair.answers, pair.labels) for at, pair in enumerate(many)]
    together = human_agreement(grouped, differences, 0).by_aspect[2]
    assert together.mean == pytest.approx(apart.mean) and (together.n, apart.n) == (5, 40)


def test_equal_differences_have_no_correlation(many: list[Pair]) -> None:
    for differences in ([0.0] * len(many), [0.1] * len(many), [None] * len(many)):
        found = human_agreement(many, differences, 0)
        assert found.by_aspect[2].mean is None and np.isnan(found.spearman)
