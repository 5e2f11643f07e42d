"""Read a round's records for the page. Trajectories are streamed: only those of the questions shown are kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from evaluation.arms import scores_path
from evaluation.question_sets import split_of
from evaluation.results import TRAINED, Results, read_results
from evaluation.round_arms import read_arms, results_path
from questions.load import load_questions
from ratchet.config import Config
from ratchet.errors import UserError
from ratchet.files import read_json_file
from ratchet.records import Question, QuestionChoice, Score, Selection, Trajectory
from ratchet.runfolder import RoundFolder, RunFolder
from report.messages import MessageDecoder, SpanTexts
from report.rounds import RoundNumbers, gather_rounds
from report.training import LogLine, TrainedRows, read_trained, read_training_logs
from rewards.store import stored_scores
from rounds.ledger import read_ledger
from rounds.promotion import read_promotion
from rounds.records import Entry
from sampling.store import TrajectoryStore

T = TypeVar("T")
MAX_QUESTIONS = 500
"""The limit of questions whose trajectories are on the page, per section."""


@dataclass
class RoleCount:
    """One role's actions over all trajectories of a stage."""

    calls: int = 0
    with_schema: int = 0
    malformed: int = 0
    repaired: int = 0
    reasked: int = 0
    cut_off: int = 0
    new_tokens: int = 0


@dataclass
class Tally:
    """How the trajectories of one stage ended."""

    title: str
    section: str
    """The section that shows its trajectories, and the arm there."""
    arm: str = ""
    total: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    errors: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(status, error) of every trajectory that did not finish."""
    roles: dict[str, RoleCount] = field(default_factory=dict)

    def add(self, trajectory: Trajectory) -> None:
        self.total += 1
        self.statuses[trajectory.status] += 1
        if trajectory.status != "finished":
            self.errors[trajectory.status, _first_line(trajectory.error) or "no message"] += 1
        for call in trajectory.model_calls:
            role = self.roles.setdefault(call.role, RoleCount())
            role.calls += 1
            role.with_schema += call.parse != "free"
            role.malformed += call.parse == "malformed"
            role.repaired += bool(call.repairs)
            role.reasked += call.attempt > 0
            role.cut_off += call.finish_reason != "stop"
            role.new_tokens += call.new_tokens


@dataclass(frozen=True)
class Section:
    """Trajectories to show: the sampled ones, or the evaluated ones."""

    name: str
    title: str
    total: int
    """The number of questions in the records; those shown are `questions`."""
    questions: tuple[Question, ...]
    trajectories: dict[str, list[tuple[str, Trajectory]]]
    """Question id to (arm, trajectory); the arm is empty for sampled trajectories."""
    scores: dict[str, dict[str, Score]]
    """Trajectory key to its scores by name."""
    messages: dict[str, tuple[SpanTexts, ...]]
    """Trajectory key to the decoded text of its conversations."""


@dataclass(frozen=True)
class Gathered:
    """Everything the page shows. A part that does not exist yet is None or empty, and `missing` says so."""

    round: int
    manifest: dict[str, Any]
    results: Results | None
    selection: Selection | None
    questions: dict[str, Question]
    sampled: Section | None
    evaluated: Section | None
    tallies: tuple[Tally, ...]
    training: Mapping[str, tuple[LogLine, ...]]
    """The log of each adapter by its group of roles; of a shared one, by an empty name."""
    rows: int
    trained: TrainedRows
    missing: tuple[str, ...]
    undecoded: tuple[str, ...] = ()
    """Why messages cannot be shown."""
    benchmarks: tuple[Results, ...] = ()
    """Results of the config's other question sets, as far as they were evaluated."""
    rounds: tuple[RoundNumbers, ...] = ()
    """Every round of the run."""
    ledger: tuple[Entry, ...] = ()


def gather(config: Config, folder: RoundFolder, number: int, max_questions: int = MAX_QUESTIONS) -> Gathered:
    """Read everything that the page of a round shows. UserError for records that cannot be read."""
    missing: list[str] = []
    rounds = gather_rounds(config, RunFolder(config.folder))
    split, results = _results(config, folder)
    questions = _questions(config, split, missing)
    selection = folder.read_selection()
    if selection is None:
        missing.append("No selection yet: run `python -m rewards`.")
    tallies: list[Tally] = []
    decoder = MessageDecoder(config)
    sampled = _sampled(folder, questions["train"], selection, max_questions, tallies, decoder)
    if sampled is None:
        missing.insert(0, "No sampled trajectories yet: run `python -m sampling`.")
    if results is None:
        missing.append("No evaluation yet: run `python -m evaluation`.")
    evaluated = _evaluated(folder, split, questions["held out"], results, max_questions, tallies, decoder)
    training = read_training_logs(folder.training)
    if not training:
        missing.append("No training log yet: run `accelerate launch train.py`.")
    shown = {t.key for found in sampled.trajectories.values() for _, t in found} if sampled else set()
    chosen = selection.questions if selection else ()
    question_of = {key: choice.question_id for choice in chosen for key in choice.rewards}
    rows, trained = read_trained(config, folder.rows, shown, question_of)
    if not rows:
        missing.append("No token rows yet, so trained tokens cannot be marked.")
    return Gathered(
        round=number,
        manifest=_manifest(config.folder / "manifest.json"),
        results=results,
        selection=selection,
        questions={**questions["held out"], **questions["train"]},
        sampled=sampled,
        evaluated=evaluated,
        tallies=tuple(tallies),
        training=training,
        rows=rows,
        trained=trained,
        missing=tuple(missing),
        undecoded=tuple(decoder.problems),
        benchmarks=tuple(
            found
            for name in config.evaluation.benchmarks
            if (found := read_results(results_path(folder, config.evaluation, name))) is not None
        ),
        rounds=rounds,
        ledger=tuple(read_ledger(RunFolder(config.folder))),
    )


def _results(config: Config, folder: RoundFolder) -> tuple[str, Results | None]:
    """The config's split and its results; without results, the split on which promotion was decided."""
    final = config.evaluation.split
    results = read_results(results_path(folder, config.evaluation, final))
    promotion = read_promotion(folder) if results is None else None
    if promotion is None:
        return final, results
    return promotion.split, read_results(results_path(folder, config.evaluation, promotion.split))


def _questions(config: Config, held_out: str, missing: list[str]) -> dict[str, dict[str, Question]]:
    """Questions by section and id. Where the question files do not exist, ids replace the texts."""
    found: dict[str, dict[str, Question]] = {}
    for section, split in (("train", "train"), ("held out", held_out)):
        try:
            found[section] = {
                q.id: q
                for q in load_questions(split_of(config.questions, config.evaluation.benchmarks, split), config.seed)
            }
        except UserError as error:
            found[section] = {}
            missing.append(f"Question texts of the {split} split cannot be shown: {error}")
    return found


def _manifest(path: Path) -> dict[str, Any]:
    try:
        value = read_json_file(path)
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _sampled(
    folder: RoundFolder,
    questions: dict[str, Question],
    selection: Selection | None,
    limit: int,
    tallies: list[Tally],
    decoder: MessageDecoder,
) -> Section | None:
    chosen = choose_mixed(selection.questions, limit) if selection else spread(list(questions), limit)
    tally = Tally("Sampling", "sampled")
    kept, seen, messages = _stream([(tally, TrajectoryStore(folder.trajectories))], chosen, limit, decoder)
    if not tally.total:
        return None
    tallies.append(tally)
    return _section("sampled", "Sampled for training", kept, seen, questions, [folder.scores], messages)


def _evaluated(
    folder: RoundFolder,
    split: str,
    questions: dict[str, Question],
    results: Results | None,
    limit: int,
    tallies: list[Tally],
    decoder: MessageDecoder,
) -> Section | None:
    if results is None:
        return None
    stores = read_arms(folder, split)
    titles = {arm.name: "trained" if arm.name == TRAINED else arm.name for arm in results.arms if arm.name in stores}
    sources = [(Tally(f"Evaluation, {title}", "evaluated", arm), stores[arm]) for arm, title in titles.items()]
    kept, seen, messages = _stream(sources, spread(list(results.arms[0].values), limit), limit, decoder)
    tallies += [tally for tally, _ in sources if tally.total]
    if not kept:
        return None
    scores = [scores_path(store) for _, store in sources]
    return _section("evaluated", f"Held out ({split})", kept, seen, questions, scores, messages)


def _section(
    name: str,
    title: str,
    kept: dict[str, list[tuple[str, Trajectory]]],
    total: int,
    questions: dict[str, Question],
    scores: Sequence[Path],
    messages: dict[str, tuple[SpanTexts, ...]],
) -> Section:
    keys = {trajectory.key for found in kept.values() for _, trajectory in found}
    by_key: dict[str, dict[str, Score]] = {}
    for folder in scores:
        for (key, score_name), score in stored_scores(folder, keys).items():
            by_key.setdefault(key, {})[score_name] = score
    return Section(
        name=name,
        title=title,
        total=total,
        questions=tuple(questions.get(i) or Question(id=i, text=i) for i in kept),
        trajectories=kept,
        scores=by_key,
        messages=messages,
    )


def _stream(
    sources: Sequence[tuple[Tally, TrajectoryStore]], chosen: Iterable[str], limit: int, decoder: MessageDecoder
) -> tuple[dict[str, list[tuple[str, Trajectory]]], int, dict[str, tuple[SpanTexts, ...]]]:
    """Count every trajectory, keep those of the chosen questions.

    `sources`: each store with the tally to count it in. Returns those kept by question, the number of questions seen,
    and the messages of those kept by key.

    Without a choice (no selection, no question file) the first questions read are shown. A trajectory that failed and
    was retried has two records, and so may one that a scheduler started twice: the one that did not fail counts.
    """
    kept: dict[str, list[tuple[str, Trajectory]]] = {question_id: [] for question_id in chosen}
    free = not kept
    seen: set[str] = set()
    messages: dict[str, tuple[SpanTexts, ...]] = {}

    for tally, store in sources:
        for trajectory in store.read():
            seen.add(trajectory.question_id)
            tally.add(trajectory)
            if free and len(kept) < limit:
                kept.setdefault(trajectory.question_id, [])
            if trajectory.question_id in kept:
                messages[trajectory.key] = tuple(decoder.decode(c) for c in trajectory.conversations)
                # Token ids are most of a trajectory's memory, and needed no more.
                slim = tuple(c.model_copy(update={"ids": ()}) for c in trajectory.conversations)
                kept[trajectory.question_id].append((tally.arm, trajectory.model_copy(update={"conversations": slim})))
    order = [tally.arm for tally, _ in sources]
    for found in kept.values():
        found.sort(key=lambda item: (order.index(item[0]), item[1].sample))
    return {question_id: found for question_id, found in kept.items() if found}, len(seen), messages


def choose_mixed(choices: Sequence[QuestionChoice], limit: int) -> list[str]:
    """At most `limit` question ids, in file order: half kept and half dropped, more of one where the other is short."""
    kept = [choice.question_id for choice in choices if choice.kept]
    dropped = [choice.question_id for choice in choices if not choice.kept]
    of_dropped = min(len(dropped), max(limit // 2, limit - len(kept)))
    chosen = {*spread(kept, limit - of_dropped), *spread(dropped, of_dropped)}
    return [choice.question_id for choice in choices if choice.question_id in chosen]


def spread(ids: Sequence[T], limit: int) -> list[T]:
    """At most `limit` of `ids`, evenly over their order."""
    if len(ids) <= limit:
        return list(ids)
    return [ids[i * len(ids) // limit] for i in range(limit)]


def _first_line(text: str) -> str:
    line = text.strip().partition("\n")[0]
    return line if len(line) <= 200 else line[:199] + "…"
