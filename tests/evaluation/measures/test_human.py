"""Agreement of rewards with people: RAGChecker's format, its measure, and intervals over questions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import pearsonr, spearmanr

from evaluation.tables.human import Pair, human_agreement, people_agreement, read_pairs
from ratchet.errors import UserError
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
    ],
)
def test_a_row_of_another_form_is_named(tmp_path: Path, change: Row, message: str) -> None:
    with pytest.raises(UserError, match=message):
        pairs_of(tmp_path, [labelled("q", [0, 0, 0]), {**labelled("r", [0, 0, 0]), **change}])


def test_every_label_counts_by_itself_and_missing_differences_are_put_at_the_median(many: list[Pair]) -> None:
    differences = np.random.default_rng(1).normal(size=len(many)).round(3).tolist()
    labels = np.array([[label[2] for label in pair.labels] for pair in many])
    found = human_agreement(many, differences, 200, 0)
    expected = 100 * pearsonr(np.repeat(differences, 2), labels.ravel())[0]
    assert found.by_aspect["overall"].mean == pytest.approx(expected) and found.nulls == 0
    scaled = human_agreement(many, [1000 * difference for difference in differences], 200, 0)
    assert scaled.by_aspect["overall"].low == pytest.approx(found.by_aspect["overall"].low), "the scale does not matter"
    filled = [None, None, *differences[2:]]
    middle = [float(np.median(differences[2:]))] * 2
    found = human_agreement(many, filled, 200, 0)
    assert found.nulls == 2
    assert found.by_aspect["overall"].mean == pytest.approx(
        100 * pearsonr(np.repeat([*middle, *differences[2:]], 2), labels.ravel())[0]
    )


def test_spearman_is_of_the_overall_labels_and_agrees_with_scipy(many: list[Pair]) -> None:
    differences = [float(at // 3) for at in range(len(many))]
    labels = np.array([[label[2] for label in pair.labels] for pair in many])
    found = human_agreement(many, differences, 50, 0)
    assert found.spearman == pytest.approx(100 * spearmanr(np.repeat(differences, 2), labels.ravel())[0])
    assert human_agreement(many, [np.exp(one) for one in differences], 50, 0).spearman == pytest.approx(found.spearman)
    people = people_agreement(many, 50, 0)
    assert people is not None and people.spearman == pytest.approx(100 * spearmanr(labels[:, 0], labels[:, 1])[0])
    assert human_agreement(many, [0.0] * len(many), 50, 0).spearman is None


def test_people_are_compared_by_two_labels_of_each_pair(many: list[Pair]) -> None:
    first, second = (np.array([pair.labels[at][0] for pair in many]) for at in (0, 1))
    found = people_agreement(many, 200, 0)
    assert found is not None
    assert found.by_aspect["correctness"].mean == pytest.approx(100 * pearsonr(first, second)[0])
    alone = [Pair(pair.question, pair.answers, pair.labels[:1]) for pair in many]
    assert people_agreement(alone, 200, 0) is None


def test_a_reward_is_compared_with_another_on_the_same_questions(many: list[Pair]) -> None:
    people = [float(np.mean([label[2] for label in pair.labels])) for pair in many]
    noise = np.random.default_rng(2).normal(size=len(many)).tolist()
    near = human_agreement(many, people, 500, 0, against=noise).against
    assert near is not None and near.clear and near.mean is not None and near.mean > 0
    same = human_agreement(many, people, 500, 0, against=[10 * value for value in people]).against
    assert same is not None and (same.mean, same.low, same.high) == (
        pytest.approx(0),
        pytest.approx(0),
        pytest.approx(0),
    )


def test_pairs_of_one_question_are_drawn_together(many: list[Pair]) -> None:
    differences = np.random.default_rng(3).normal(size=len(many)).tolist()
    apart = human_agreement(many, differences, 2000, 0).by_aspect["overall"]
    # The same labels as five questions with eight pairs each: eight times fewer units.
    grouped = [Pair(many[at % 5].question, pair.answers, pair.labels) for at, pair in enumerate(many)]
    together = human_agreement(grouped, differences, 2000, 0).by_aspect["overall"]
    assert together.mean == pytest.approx(apart.mean) and (together.n, apart.n) == (5, 40)


def test_equal_differences_have_no_correlation(many: list[Pair]) -> None:
    for differences in ([0.0] * len(many), [0.1] * len(many), [None] * len(many)):
        assert human_agreement(many, differences, 50, 0, against=[0.0] * len(many)).by_aspect["overall"].mean is None
