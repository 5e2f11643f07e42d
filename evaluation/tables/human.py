"""`ratchet evaluate agreement --human FILE`: how well rewards agree with people's preferences between two answers.

The measure is that of RAGChecker's meta-evaluation (Ru et al. 2024, arXiv 2408.08067, and its published code):
Pearson's correlation, in hundredths, of the difference of the two answers' scores with the label that a person gave,
from -2 (the first answer is much better) to 2. Every label counts by itself. A difference that is missing is put at
the median of the others, and is counted. People are compared by the first two labels of every pair. Intervals are of a
bootstrap over questions: all labels of a question are drawn together.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field, ValidationError
from rich.markup import escape

from ratchet.core.config import Config, find_score
from ratchet.core.errors import UserError
from ratchet.core.records import Passage, Question, Trajectory, content_key
from ratchet.core.runfolder import file_digest
from ratchet.core.tables import new_table, print_table
from ratchet.core.text import replace_surrogates
from ratchet.evaluation.formats import format_interval, format_number
from ratchet.evaluation.measures.estimates import Estimate
from ratchet.evaluation.measures.statistics import Rows, statistic_interval
from ratchet.questions.load import read_rows
from ratchet.rewards.reward import judge_of, judged, known_rewards, load_reward
from ratchet.rewards.scoring import Scorer, unfinished
from ratchet.rewards.selection import parse_weights, reward
from ratchet.sampling.trajectories import Trajectories

ASPECTS = ("correctness", "completeness", "overall")
LENGTH = "answer length, words"
"""What every reward should be better than, and what its agreement may come from."""
CAPTION = """\
Pearson's correlation x 100 of score differences with labels, of overall with its 95%
bootstrap interval over questions; Spearman: Spearman's, of overall; null: pairs without a
score, which are put at the median; -: undefined, as all values are equal"""
Weights = Mapping[str, float]
Values = NDArray[np.float64]


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
class Agreement:
    """The correlation of a reward, or of one person, with people's labels, in hundredths."""

    by_aspect: tuple[Estimate, ...]
    """By `ASPECTS`; the mean is None where all values or labels are equal."""
    spearman: float
    """Spearman's correlation with the overall labels; NaN where it is undefined."""
    nulls: int = 0
    """Pairs of which an answer has no score."""


def read_pairs(path: Path) -> list[Pair]:
    """The pairs of a file in RAGChecker's format (JSON, JSONL), in its order. Rows with the same question, reference
    and answers are several people's labels of one pair. Raises UserError that names the row."""
    labelled: dict[str, tuple[Question, tuple[Trajectory, Trajectory], list[tuple[float, ...]]]] = {}
    for place, fields in read_rows(path):
        try:
            row = _Row.model_validate(fields)
        except ValidationError as error:
            problem = error.errors()[0]
            raise UserError(
                f"{place}: {'.'.join(map(str, problem['loc']))}: {problem['msg']}; a row has query, gt_answer, "
                f"model1 and model2 with a response each, and {', '.join(f'{aspect}_label' for aspect in ASPECTS)} "
                "from -2 to 2, as in RAGChecker's human_labeled_data.json"
            ) from error
        text, reference = replace_surrogates(row.query), replace_surrogates(row.gt_answer)
        if not reference:
            raise UserError(f"{place}: gt_answer is empty; rewards compare the two answers with it")
        number = content_key(text, reference)[:16]
        question = Question(id=number, text=text, reference=reference, kind=row.dataset)
        answers = (_trajectory(question, row.model1, 0), _trajectory(question, row.model2, 1))
        labels = (row.correctness_label, row.completeness_label, row.overall_label)
        key = content_key(question.id, *(answer.key for answer in answers))
        labelled.setdefault(key, (question, answers, []))[2].append(labels)
    if not labelled:
        raise UserError(f"{path}: has no rows; it should be a list of labelled pairs of answers")
    return [Pair(question, answers, tuple(labels)) for question, answers, labels in labelled.values()]


def _trajectory(question: Question, answer: _Answer, sample: int) -> Trajectory:
    response = replace_surrogates(answer.response)
    documents = [(replace_surrogates(each.doc_id), replace_surrogates(each.text)) for each in answer.retrieved_context]
    passages = tuple(
        Passage(id=f"{i}", document_id=name or f"{i}", text=text) for i, (name, text) in enumerate(documents)
    )
    return Trajectory(
        key=content_key("human", question, response, [passage.model_dump() for passage in passages]),
        question_id=question.id, system="human", policy="base", sample=sample, seed=0, status="finished",
        answer=response, passages=passages,
    )  # fmt: skip


def human_agreement(pairs: Sequence[Pair], differences: Sequence[float | None], seed: int) -> Agreement:
    """The correlation of a reward with people. `differences`: for each pair, the second answer's score less the
    first's; None where one is missing."""
    known = [difference for difference in differences if difference is not None]
    middle = float(np.median(known)) if known else 0.0
    filled = [middle if difference is None else difference for difference in differences]
    values = np.repeat(np.array(filled, np.float64), [len(pair.labels) for pair in pairs])
    values = values / spread if (spread := float(values.std())) > 1e-9 else np.zeros_like(values)
    labels = np.array([label for pair in pairs for label in pair.labels])
    texts = [pair.question.text for pair in pairs for _ in pair.labels]
    found = _agreement(texts, np.tile(values[:, None], len(ASPECTS)), labels, seed)
    return replace(found, nulls=len(differences) - len(known))


def people_agreement(pairs: Sequence[Pair], seed: int) -> Agreement | None:
    """The correlation of the first two people's labels, over the pairs that have two; None where none has."""
    both = [pair for pair in pairs if len(pair.labels) > 1]
    first, second = (np.array([pair.labels[person] for pair in both]) for person in (0, 1))
    return _agreement([pair.question.text for pair in both], first, second, seed) if both else None


def _agreement(texts: Sequence[str], x: Values, y: Values, seed: int) -> Agreement:
    """Of values [labels, aspects]."""
    from scipy.stats import spearmanr  # late: half a second that other commands need not wait

    columns = range(len(ASPECTS))
    sums = [_sums(texts, x[:, at], y[:, at]) for at in columns]
    constant = np.ptp(x[:, -1]) == 0 or np.ptp(y[:, -1]) == 0
    spearman = float("nan") if constant else 100 * float(spearmanr(x[:, -1], y[:, -1]).statistic)
    return Agreement(tuple(statistic_interval(rows, pearson, seed) for rows in sums), spearman)


def pearson(sums: Values) -> Values:
    """Pearson's correlation, in hundredths, from rows of (n, sum x, sum y, sum xx, sum yy, sum xy), which a bootstrap
    over questions can draw; NaN where it is undefined."""
    n, x, y, xx, yy, xy = sums.T
    with np.errstate(invalid="ignore", divide="ignore"):
        spread = (n * xx - x * x) * (n * yy - y * y)
        # Below this, what is left of equal values is rounding.
        return np.where(spread > 1e-9 * n**4, 100 * (n * xy - x * y) / np.sqrt(spread), np.nan)


def _sums(texts: Sequence[str], x: Values, y: Values) -> Rows:
    """What each question, named by its text for every pair of values, adds to the sums of `pearson`."""
    places = {text: at for at, text in enumerate(dict.fromkeys(texts))}
    sums = np.zeros((len(places), 6))
    np.add.at(sums, [places[text] for text in texts], np.stack((np.ones_like(x), x, y, x * x, y * y, x * y), axis=1))
    return sums


def print_human_agreement(file: Path, asked: Sequence[str], config: Config | None) -> None:
    """Print the agreement of rewards with the people whose labels `file` has, best first.

    `asked`: names of rewards, or weights such as 'f1=1,correctness=2' for a weighted mean; empty: all rewards that need
    no model, and those of the config. The scores are stored in the config's run folder, and a judge's are resumed;
    without a config nothing is stored, and no judge is there. Raises UserError.
    """
    pairs = read_pairs(file)
    named = {text: _weights(text, config) for text in asked} or _default(config.rewards.weights if config else {})
    names = list(dict.fromkeys(name for weights in named.values() for name, weight in weights.items() if weight))
    if config is None and (by_judge := judged(names)):
        raise UserError(
            f"{' and '.join(by_judge)}: a judge gives these scores; add --config with a config that has "
            "rewards.judge and that model under models"
        )
    questions = list({pair.question.id: pair.question for pair in pairs}.values())
    trajectories = Trajectories.of(answer for pair in pairs for answer in pair.answers)
    with tempfile.TemporaryDirectory() as nowhere:
        config = config or Config(run=nowhere)
        judge_of(config, names)
        with Scorer(config) as scorer:
            folder, seed = config.folder / "human" / file_digest(file)[:12], config.seed
            scores = scorer.score(questions, trajectories, names, folder)
    if left := unfinished(scores):
        raise UserError(
            f"{len(left)} scores are unfinished because the judge was not available; run the same command again to "
            "compute only these"
        )
    agreements = {}
    for text, weights in named.items():
        values = [tuple(reward(answer.key, scores, weights) for answer in pair.answers) for pair in pairs]
        differences = [None if first is None or second is None else second - first for first, second in values]
        agreements[text] = human_agreement(pairs, differences, seed)
    words = [[len(answer.answer.split()) for answer in pair.answers] for pair in pairs]
    agreements[LENGTH] = human_agreement(pairs, [float(second - first) for first, second in words], seed)
    _print_agreements(pairs, agreements, people_agreement(pairs, seed))


def _default(weights: Weights) -> dict[str, Weights]:
    """Every reward that needs no model, and a config's reward with the scores that it is made of."""
    loaded = {name: load_reward(name) for name in known_rewards()}
    rules = [name for name, found in loaded.items() if not found.needs_judge and not found.needs_embedder]
    own = {name: weight for name, weight in weights.items() if weight}
    whole = {",".join(f"{name}={weight:g}" for name, weight in own.items()): own} if len(own) > 1 else {}
    alone: dict[str, Weights] = {name: {name: 1.0} for name in (*rules, *own)}
    return alone | whole


def _weights(text: str, config: Config | None) -> Weights:
    named = config.score_name if config else find_score
    if "=" in text:
        return parse_weights(text, "--reward", named)
    load_reward(name := named(text), "--reward")
    return {name: 1.0}


def _print_agreements(pairs: Sequence[Pair], agreements: Mapping[str, Agreement], people: Agreement | None) -> None:
    """The rewards of `agreements`, the best first, under the people's agreement with each other."""
    labels = sum(len(pair.labels) for pair in pairs)
    questions = len({pair.question.text for pair in pairs})
    table = new_table(
        f"Agreement with people: {len(pairs)} pairs, {questions} questions, {labels} labels",
        ("reward",),
        ("correct", "complete", "overall", "Spearman", "null"),
        CAPTION,
        (0, 1),
    )
    ordered = sorted(agreements.items(), key=lambda item: -(item[1].by_aspect[-1].mean or 0))
    for name, found in [*([("people, one with another", people)] if people else []), *ordered]:
        *aspects, overall = (format_number(aspect.mean, 1) for aspect in found.by_aspect)
        interval = escape(format_interval(found.by_aspect[-1], 1))
        ranked = "-" if np.isnan(found.spearman) else f"{found.spearman:.1f}"
        table.add_row(escape(name), *aspects, f"{overall} {interval}".rstrip(), ranked, str(found.nulls))
    print_table(table)
