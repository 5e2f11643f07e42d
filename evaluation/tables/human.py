"""`python -m evaluation agreement --human FILE`: how well rewards agree with people's preferences between two answers.

The measure is that of RAGChecker's meta-evaluation (Ru et al. 2024, arXiv 2408.08067, and its published code):
Pearson's correlation, in hundredths, of the difference of the two answers' scores with the label that a person gave,
from -2 (the first answer is much better) to 2. Every label counts by itself; two people who judged one pair are two
labels. A difference that is missing is put at the median of the others, and is counted. People are compared by the
first two labels of every pair. Spearman's correlation, which asks for the same order alone, is given for the overall
labels too.

Intervals are of a bootstrap over questions: all pairs and labels of a question are drawn together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field, ValidationError
from rich.markup import escape
from rich.table import Table

from evaluation.formats import format_interval
from evaluation.measures.estimates import Difference, Estimate
from evaluation.measures.statistics import Rows, paired_statistic, statistic_interval
from questions.load import read_rows
from ratchet.config import Environment, RewardsConfig
from ratchet.errors import UserError
from ratchet.records import Passage, Question, Score, Trajectory, content_key
from ratchet.runfolder import RunFolder, file_digest
from ratchet.tables import print_table
from ratchet.text import replace_surrogates
from rewards.reward import judge_of, judged, known_rewards, load_reward
from rewards.rules import references, token_precision, token_recall
from rewards.scoring import Scorer, unfinished
from rewards.selection import parse_weights, reward

ASPECTS = ("correctness", "completeness", "overall")
"""What people were asked to compare the two answers by. Rewards are ordered by the last."""
PLAIN: Mapping[str, Callable[[Question, Trajectory], float]] = {
    "token precision": lambda question, trajectory: token_precision(trajectory.answer, references(question)),
    "token recall": lambda question, trajectory: token_recall(trajectory.answer, references(question)),
    "answer length, words": lambda question, trajectory: float(len(trajectory.answer.split())),
}
"""What every reward should be better than, and what its agreement may come from."""
Weights = Mapping[str, float]


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


def print_human_agreement(
    file: Path,
    asked: Sequence[str],
    against: str,
    environment: Environment,
    rewards: RewardsConfig | None,
    resamples: int,
) -> None:
    """Print the agreement of rewards with the people whose labels `file` has, best first.

    `asked`: names of rewards, or weights such as 'f1=1,correctness=2' for a weighted mean; empty: all rewards without a
    judge, and those of `rewards`. `against`: the reward that every other is compared with. The scores are stored in the
    environment's run folder, and a judge's are resumed. `rewards`: None without a config, and then no judge is there.
    Raises UserError.
    """
    pairs = read_pairs(file)
    if no_text := sum(pair.question.reference is None for pair in pairs):
        raise UserError(f"{file}: {no_text} of {len(pairs)} pairs have an empty gt_answer, to which rewards compare")
    named = {text: _weights(text, "--reward") for text in asked} or _default(rewards.weights if rewards else {})
    named = {against: _weights(against, "--against")} | named
    names = list(dict.fromkeys(name for weights in named.values() for name, weight in weights.items() if weight))
    if rewards is None:
        if by_judge := judged(names):
            raise UserError(
                f"{' and '.join(by_judge)}: a judge gives these scores; add --config with a config that has "
                "rewards.judge and that model under models"
            )
        rewards = RewardsConfig()
    judge_of(rewards, environment.models, names)
    nuggets, seed = RunFolder(environment.run).nuggets, environment.seed
    folder = environment.run / "human" / file_digest(file)[:12]
    with Scorer(rewards, environment.models, environment.embedder, seed, nuggets) as scorer:
        scores, left_out = _score(scorer, pairs, names, folder, bool(asked))
    differences = {text: _differences(pairs, scores, weights) for text, weights in named.items()}
    for name, rule in PLAIN.items():
        values = [tuple(rule(pair.question, answer) for answer in pair.answers) for pair in pairs]
        differences[name] = [second - first for first, second in values]
    agreements = {
        name: human_agreement(pairs, own, resamples, seed, None if name == against else differences[against])
        for name, own in differences.items()
    }
    print_table(agreement_table(pairs, agreements, people_agreement(pairs, resamples, seed), against))
    for name, own in agreements.items():
        if own.by_aspect["overall"].mean is None:
            print(f"{name}: {_reason(pairs, scores, named.get(name, {}), left_out, differences[name])}")


def _default(weights: Weights) -> dict[str, Weights]:
    """Every reward without a judge, and a config's reward with the scores that it is made of."""
    rules: dict[str, Weights] = {name: {name: 1.0} for name in known_rewards() if not load_reward(name).needs_judge}
    weights = {str(name): weight for name, weight in weights.items() if weight}
    whole = {",".join(f"{name}={weight:g}" for name, weight in weights.items()): weights} if len(weights) > 1 else {}
    return rules | {name: {name: 1.0} for name in weights} | whole


def _weights(text: str, option: str) -> Weights:
    if "=" in text:
        return parse_weights(text, option)
    load_reward(text, option)
    return {text: 1.0}


def _score(
    scorer: Scorer, pairs: Sequence[Pair], names: Sequence[str], folder: Path, required: bool
) -> tuple[dict[tuple[str, str], Score], dict[str, str]]:
    """(All scores, and the rewards that could not be computed with the reason, unless they are `required`)."""
    questions = list({pair.question.id: pair.question for pair in pairs}.values())
    trajectories = list({answer.key: answer for pair in pairs for answer in pair.answers}.values())
    scores: dict[tuple[str, str], Score] = {}
    left_out: dict[str, str] = {}
    by_judge = judged(names)
    for group in filter(None, [*([name] for name in names if name not in by_judge), by_judge]):
        try:
            scores |= scorer.score(questions, trajectories, group, folder)
        except UserError as error:
            # An embedder that is not installed should not hide the other rewards.
            if required or not all(load_reward(name).needs_embedder for name in group):
                raise
            left_out |= dict.fromkeys(group, str(error))
    if left := unfinished(scores):
        raise UserError(
            f"{len(left)} scores are unfinished because the judge was not available; run the same command again to "
            "compute only these"
        )
    return scores, left_out


def _differences(
    pairs: Sequence[Pair], scores: Mapping[tuple[str, str], Score], weights: Weights
) -> list[float | None]:
    """A reward's difference of the two answers of each pair."""
    values = [[reward(answer.key, scores, weights) for answer in pair.answers] for pair in pairs]
    return [None if first is None or second is None else second - first for first, second in values]


def _reason(
    pairs: Sequence[Pair],
    scores: Mapping[tuple[str, str], Score],
    weights: Weights,
    left_out: Mapping[str, str],
    differences: Sequence[float | None],
) -> str:
    """Why a reward agrees with nobody."""
    reasons = [left_out[name] for name in weights if name in left_out]
    if not reasons and all(each is None for each in differences):
        reasons = [scores[answer.key, name].reason for pair in pairs for answer in pair.answers for name in weights]
    return next(filter(None, reasons), "it is the same for both answers of every pair")


def agreement_table(
    pairs: Sequence[Pair], agreements: Mapping[str, HumanAgreement], people: HumanAgreement | None, against: str
) -> Table:
    """The rewards of `agreements`, the best first, under the people's agreement with each other."""
    labels = sum(len(pair.labels) for pair in pairs)
    questions = len({pair.question.text for pair in pairs})
    table = Table(
        title=f"Agreement with people: {len(pairs)} pairs of answers to {questions} questions, {labels} labels",
        caption="Pearson's correlation x 100 of score differences with labels; 95% bootstrap intervals over\n"
        "questions. Spearman: Spearman's correlation of overall. null: pairs without a score, which are\n"
        "put at the median.",
    )
    table.add_column("reward", no_wrap=True)
    for heading in (*ASPECTS, "Spearman", f"less {against}", "null"):
        table.add_column(escape(heading), justify="right", no_wrap=True)
    ordered = sorted(agreements.items(), key=lambda item: -(item[1].by_aspect["overall"].mean or 0))
    rows = [("people, one with another", people)] if people else []
    for name, agreement in [*rows, *ordered]:
        *aspects, overall = (agreement.by_aspect[aspect] for aspect in ASPECTS)
        if overall.mean is None:
            continue
        compared = agreement.against
        less = (
            "" if compared is None or compared.mean is None else f"{compared.mean:+.1f} {format_interval(compared, 1)}"
        )
        ranked = "-" if agreement.spearman is None else f"{agreement.spearman:.1f}"
        cells = ["-" if aspect.mean is None else f"{aspect.mean:.1f}" for aspect in aspects]
        cells += [f"{overall.mean:.1f} {format_interval(overall, 1)}", ranked, less, str(agreement.nulls)]
        table.add_row(escape(name), *cells)
    return table
