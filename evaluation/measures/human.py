"""How well a reward agrees with people: with their preferences between two answers to one question.

The measure is that of RAGChecker's meta-evaluation (Ru et al. 2024, arXiv 2408.08067, and its published code):
Pearson's correlation, in hundredths, of the difference of the two answers' scores with the label that a person gave,
from -2 (the first answer is much better) to 2. Every label counts by itself; two people who judged one pair are two
labels. A difference that is missing is put at the median of the others, and is counted. People are compared by the
first two labels of every pair. Spearman's correlation, which asks for the same order alone, is given for the overall
labels too.

Intervals are of a bootstrap over questions: all pairs and labels of a question are drawn together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field, ValidationError

from evaluation.measures.estimates import Difference, Estimate
from evaluation.measures.statistics import Rows, paired_statistic, statistic_interval
from questions.load import read_rows
from ratchet.errors import UserError
from ratchet.records import Passage, Question, Trajectory, content_key
from ratchet.text import replace_surrogates

ASPECTS = ("correctness", "completeness", "overall")
"""What people were asked to compare the two answers by. Rewards are ordered by the last."""


class _Document(BaseModel):
    text: str
    doc_id: str = ""


class _Answer(BaseModel):
    response: str
    retrieved_context: tuple[_Document, ...] = ()


class _Row(BaseModel):
    """One person's labels of one pair, in RAGChecker's format. Further fields are ignored."""

    query: str
    gt_answer: str
    model1: _Answer
    model2: _Answer
    correctness_label: float = Field(ge=-2, le=2)
    completeness_label: float = Field(ge=-2, le=2)
    overall_label: float = Field(ge=-2, le=2)
    dataset: str = ""


@dataclass(frozen=True)
class Pair:
    """Two answers to one question, and what people preferred."""

    question: Question
    """Its `kind` is the data set that the question is from, where the file says so."""
    answers: tuple[Trajectory, Trajectory]
    labels: tuple[tuple[float, ...], ...]
    """For each person, the labels by `ASPECTS`; above 0 where the second answer is better."""


@dataclass(frozen=True)
class HumanAgreement:
    """One reward's correlation with people, in hundredths."""

    by_aspect: dict[str, Estimate]
    nulls: int
    """Pairs of which an answer has no score."""
    spearman: float | None
    """Spearman's correlation with the overall labels; None where it is undefined."""
    against: Difference | None = None
    """The overall correlation less that of the reward which it is compared with."""


def read_pairs(path: Path) -> list[Pair]:
    """The pairs of a file in RAGChecker's format (JSON, JSONL), in its order. Rows with the same question, reference
    and answers are several people's labels of one pair. Raises UserError that names the row.

    `retrieved_context` of an answer, a list of objects with `text` and `doc_id`, is optional: scores that compare the
    answer with its documents need it.
    """
    labelled: dict[str, tuple[Question, tuple[Trajectory, Trajectory], list[tuple[float, ...]]]] = {}
    for place, row in read_rows(path):
        try:
            parsed = _Row.model_validate(row)
        except ValidationError as error:
            problem = error.errors()[0]
            raise UserError(
                f"{place}: {'.'.join(map(str, problem['loc']))}: {problem['msg']}; a row has query, gt_answer, "
                f"model1 and model2 with a response each, and {', '.join(f'{aspect}_label' for aspect in ASPECTS)} "
                "from -2 to 2, as in RAGChecker's human_labeled_data.json"
            ) from error
        question = _question(parsed)
        answers = (_trajectory(question, parsed.model1, 0), _trajectory(question, parsed.model2, 1))
        labels = (parsed.correctness_label, parsed.completeness_label, parsed.overall_label)
        key = content_key(question.id, *(answer.key for answer in answers))
        labelled.setdefault(key, (question, answers, []))[2].append(labels)
    if not labelled:
        raise UserError(f"{path}: has no rows; it should be a list of labelled pairs of answers")
    return [Pair(question, answers, tuple(labels)) for question, answers, labels in labelled.values()]


def _question(row: _Row) -> Question:
    text, reference = replace_surrogates(row.query), replace_surrogates(row.gt_answer)
    return Question(id=content_key(text, reference)[:16], text=text, reference=reference or None, kind=row.dataset)


def _trajectory(question: Question, answer: _Answer, sample: int) -> Trajectory:
    response = replace_surrogates(answer.response)
    passages = tuple(
        Passage(
            id=f"{number}", document_id=replace_surrogates(document.doc_id) or f"{number}",
            text=replace_surrogates(document.text),
        )
        for number, document in enumerate(answer.retrieved_context)
    )  # fmt: skip
    return Trajectory(
        key=content_key("human", question, response, [passage.model_dump() for passage in passages]),
        question_id=question.id,
        system="human",
        policy="base",
        sample=sample,
        seed=0,
        status="finished",
        answer=response,
        passages=passages,
    )


def human_agreement(
    pairs: Sequence[Pair],
    differences: Sequence[float | None],
    resamples: int,
    seed: int,
    against: Sequence[float | None] | None = None,
) -> HumanAgreement:
    """The correlation of a reward with people.

    `differences`: for each pair, the second answer's score less the first's; None where one is missing. `against`:
    those of the reward that it is compared with. An estimate's mean is None where all differences, or labels, are
    equal.
    """
    nulls = sum(difference is None for difference in differences)
    texts = [pair.question.text for pair in pairs for _ in pair.labels]
    labels = np.array([label for pair in pairs for label in pair.labels])
    counts = [len(pair.labels) for pair in pairs]
    values = np.repeat(_filled(differences), counts)
    by_aspect = {
        aspect: statistic_interval(_sums(texts, values, labels[:, at]), pearson, resamples, seed)
        for at, aspect in enumerate(ASPECTS)
    }
    compared = None
    if against is not None and by_aspect["overall"].mean is not None:
        other, own = (_sums(texts, x, labels[:, -1]) for x in (np.repeat(_filled(against), counts), values))
        compared = paired_statistic(other, own, pearson, resamples, seed)
    return HumanAgreement(by_aspect, nulls, spearman(values, labels[:, -1]), compared)


def people_agreement(pairs: Sequence[Pair], resamples: int, seed: int) -> HumanAgreement | None:
    """The correlation of the first two people's labels, over the pairs that have two; None where none has."""
    both = [pair for pair in pairs if len(pair.labels) > 1]
    if not both:
        return None
    texts = [pair.question.text for pair in both]
    first, second = (np.array([pair.labels[person] for pair in both]) for person in (0, 1))
    by_aspect = {
        aspect: statistic_interval(_sums(texts, first[:, at], second[:, at]), pearson, resamples, seed)
        for at, aspect in enumerate(ASPECTS)
    }
    return HumanAgreement(by_aspect, 0, spearman(first[:, -1], second[:, -1]))


def pearson(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    """Pearson's correlation, in hundredths, from rows of (n, sum x, sum y, sum xx, sum yy, sum xy); NaN where it is
    undefined."""
    n, x, y, xx, yy, xy = sums.T
    with np.errstate(invalid="ignore", divide="ignore"):
        spread = (n * xx - x * x) * (n * yy - y * y)
        # Below this, what is left of equal values is rounding.
        return np.where(spread > 1e-9 * n**4, 100 * (n * xy - x * y) / np.sqrt(spread), np.nan)


def spearman(x: NDArray[np.float64], y: NDArray[np.float64]) -> float | None:
    """Spearman's correlation, in hundredths: Pearson's of the ranks, where equal values share their mean rank; None
    where it is undefined."""
    from scipy.stats import rankdata  # late: half a second that other commands need not wait

    correlation = pearson(_moments(rankdata(x), rankdata(y)).sum(axis=0, keepdims=True))[0]
    return None if np.isnan(correlation) else float(correlation)


def _filled(differences: Sequence[float | None]) -> NDArray[np.float64]:
    """The differences on a scale of their own (standard deviation 1), as rewards on different scales are compared."""
    known = [difference for difference in differences if difference is not None]
    middle = float(np.median(known)) if known else 0.0
    values = np.array([middle if difference is None else difference for difference in differences], np.float64)
    return values / spread if (spread := float(values.std())) > 1e-9 else np.zeros_like(values)


def _sums(texts: Sequence[str], x: NDArray[np.float64], y: NDArray[np.float64]) -> Rows:
    """What each question, named by its text for every pair of values, adds to the sums of `pearson`."""
    places = {text: at for at, text in enumerate(dict.fromkeys(texts))}
    sums = np.zeros((len(places), 6))
    np.add.at(sums, [places[text] for text in texts], _moments(x, y))
    return sums


def _moments(x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.float64]:
    """[values, 6]: the terms of `pearson`."""
    return np.stack((np.ones_like(x), x, y, x * x, y * y, x * y), axis=1)
