"""Read a run's records for the page of a round, once or again and again while the run goes on.

Trajectories are read as lines (`records.py`); what the page shows of one is read when it is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from ratchet.core.config import Config
from ratchet.core.config.evaluation import FINAL
from ratchet.core.errors import UserError
from ratchet.core.files import read_json_file
from ratchet.core.records import Question, QuestionChoice, Score, Selection
from ratchet.core.runfolder import RoundFolder, RunFolder
from ratchet.evaluation.arms import evaluated_splits, read_arms, results_path, scores_path, split_of
from ratchet.evaluation.results import TRAINED, Results, read_results
from ratchet.questions.load import load_questions
from ratchet.report.records import Line, LogLine, Replaced, StoreLines, Tally, count_rows, read_training_log
from ratchet.report.rounds import RoundNumbers, gather_rounds
from ratchet.rounds.ledger import read_ledger
from ratchet.rounds.records import Entry, read_promotion
from ratchet.sampling.store import TrajectoryStore
from ratchet.sampling.work import work_on

T = TypeVar("T")


@dataclass(frozen=True)
class Section:
    """Trajectories to show: the sampled ones, or the evaluated ones."""

    name: str
    title: str
    total: int
    """The number of questions in the records; those shown are `questions`."""
    questions: tuple[Question, ...]
    lines: Mapping[str, list[tuple[str, Line]]]
    """Question id to (arm, line); the arm is empty for sampled trajectories."""
    scores: Mapping[str, Mapping[str, Score]]
    """Trajectory key to its scores by name."""
    rewards: Mapping[str, float | None]
    choices: Mapping[str, QuestionChoice]
    """Question id to what was selected of it."""
    kept: frozenset[str] = frozenset()
    """The keys of the kept trajectories, those of the curriculum among them."""


@dataclass(frozen=True)
class Gathered:
    """Everything the page shows. A part that does not exist yet is None or empty, and `missing` says so."""

    folder: RoundFolder
    manifest: dict[str, Any]
    code: tuple[str, ...]
    """The versions of the code that began the run and ran its stages."""
    results: Results | None
    selection: Selection | None
    questions: dict[str, Question]
    sampled: Section | None
    evaluated: Section | None
    tallies: tuple[Tally, ...]
    training: tuple[LogLine, ...]
    """The log of each adapter by its group of roles; of a shared one, by an empty name."""
    rows: int
    left_out: dict[str, int]
    """Conversations that gave no row, by the reason."""
    missing: tuple[str, ...]
    rounds: tuple[RoundNumbers, ...] = ()

    @property
    def sections(self) -> list[Section]:
        return [section for section in (self.sampled, self.evaluated) if section is not None]


@dataclass
class _Arm:
    tally: Tally
    lines: StoreLines


@dataclass
class Gatherer:
    """Reads a run, and what is new when it reads again."""

    config: Config
    max_questions: int
    damaged: list[str] = field(default_factory=list)
    """The problem of each line that cannot be read."""
    _stores: dict[Path, StoreLines] = field(default_factory=dict)
    _files: dict[tuple[Path, ...], tuple[Any, Any]] = field(default_factory=dict)
    _asked: dict[str, dict[str, Question]] = field(default_factory=dict)

    def update(self, folder: RoundFolder) -> None:
        """Read what is new of a round's trajectories and scores."""
        split, _ = self._results(folder)
        arms = [*self._sampled(folder), *self._evaluated(folder, split)]
        for arm in arms:
            try:
                arm.lines.update()
            except Replaced:  # the next update reads the store from its beginning
                del self._stores[arm.lines.store.folder]
        self.damaged = [line for arm in arms for line in arm.lines.damaged]

    def gather(self, folder: RoundFolder) -> Gathered:
        """Collect what the page of a round shows, of what was read. UserError for records that cannot be read."""
        run = RunFolder(self.config.folder)
        split, results = self._results(folder)
        missing: list[str] = []
        questions = self._questions("train", missing)
        held_out = self._questions(split, missing)
        selection = self._read(folder.selection, folder.read_selection)
        if selection is None:
            missing.append("No selection yet: run `ratchet score`.")
        sampled_arms = self._sampled(folder)
        sampled = self._section("sampled", "Sampled for training", sampled_arms, questions, selection, results)
        if sampled is None:
            missing.insert(0, "No sampled trajectories yet: run `ratchet sample`.")
        if results is None:
            missing.append("No evaluation yet: run `ratchet evaluate`.")
        arms = self._evaluated(folder, split)
        evaluated = self._section("evaluated", f"Held out ({split})", arms, held_out, None, results)
        log = folder.training / "log.jsonl"
        training = self._read((log,), lambda: read_training_log(log))
        if not training:
            missing.append("No training log yet: run `ratchet train`.")
        rows, left_out = self._read(folder.rows, lambda: count_rows(folder.rows))
        if not rows:
            missing.append("No token rows yet, so trained tokens cannot be marked.")
        manifest = _manifest(run.manifest)
        ledger = self._read(run.ledger, lambda: read_ledger(run))
        patterns = ("round-*", "round-*/*.json", "round-*/evaluation/*.json", "round-*/training/log.jsonl")
        small_files = tuple(path for pattern in patterns for path in sorted(run.path.glob(pattern)))
        return Gathered(
            folder=folder,
            manifest=manifest,
            code=tuple(dict.fromkeys(filter(None, [manifest.get("code"), *(entry.code for entry in ledger)]))),
            results=results,
            selection=selection,
            questions={**held_out, **questions},
            sampled=sampled,
            evaluated=evaluated,
            tallies=tuple(arm.tally for arm in (*sampled_arms, *arms) if arm.tally.total),
            training=training,
            rows=rows,
            left_out=left_out,
            missing=(*missing, *_anyway_lines(ledger)),
            rounds=self._read(small_files, lambda: gather_rounds(run)),
        )

    def _read(self, paths: Path | tuple[Path, ...], read: Callable[[], T]) -> T:
        """The result of `read`, which is called again only where one of the files was written."""
        files = paths if isinstance(paths, tuple) else (paths,)
        stamps = [(s.st_mtime_ns, s.st_size) if (s := _status(path)) else None for path in files]
        known = self._files.get(files)
        if known is None or known[0] != stamps:
            known = self._files[files] = stamps, read()
        value: T = known[1]
        return value

    def _results_on(self, folder: RoundFolder, split: str) -> Results | None:
        path = results_path(folder, split)
        return self._read(path, lambda: read_results(path))

    def _results(self, folder: RoundFolder) -> tuple[str, Results | None]:
        """(split, results): of the test questions, else of promotion's split, else of one being evaluated."""
        if (results := self._results_on(folder, FINAL)) is not None:
            return FINAL, results
        if (promotion := read_promotion(folder)) is not None:
            return promotion.split, self._results_on(folder, promotion.split)
        started = evaluated_splits(folder)
        return (started[-1] if started and FINAL not in started else FINAL), None

    def _questions(self, split: str, missing: list[str]) -> dict[str, Question]:
        """The questions of a split by id; none, with the reason in `missing`, where their files do not exist."""
        if split not in self._asked:
            try:
                given = split_of(self.config, split)
                self._asked[split] = {question.id: question for question in load_questions(given, self.config.seed)}
            except UserError as error:
                missing.append(f"Question texts of the {split} split cannot be shown: {error}")
        return self._asked.get(split, {})

    def _lines(self, store: TrajectoryStore, scores: Path, split: str) -> StoreLines:
        if store.folder not in self._stores:
            questions = self._questions(split, [])
            self._stores[store.folder] = StoreLines(store, scores, questions, self.config.rewards)
        return self._stores[store.folder]

    def _sampled(self, folder: RoundFolder) -> list[_Arm]:
        """The round's own trajectories, or those of each member of a shared round."""
        shared = sorted(folder.path.parent.glob(f"*/{folder.path.name}/trajectories"))
        members = {path.parents[1].name: RoundFolder(path.parent) for path in shared}
        return [
            _Arm(
                Tally(f"Sampling, {name}" if name else "Sampling", "sampled", name, work_on(own.trajectories)),
                self._lines(TrajectoryStore(own.trajectories), own.scores, "train"),
            )
            for name, own in {"": folder, **members}.items()
        ]

    def _evaluated(self, folder: RoundFolder, split: str) -> list[_Arm]:
        """The arms of the round's evaluation, as in the table of results where there is one."""
        _, results = self._results(folder)
        stores = read_arms(folder, split)
        names = [arm.name for arm in results.arms if arm.name in stores] if results else list(stores)
        return [
            _Arm(
                Tally(f"Evaluation, {'trained' if name == TRAINED else name}", "evaluated", name),
                self._lines(stores[name], scores_path(stores[name]), split),
            )
            for name in names
        ]

    def _section(
        self,
        name: str,
        title: str,
        arms: Sequence[_Arm],
        questions: Mapping[str, Question],
        selection: Selection | None,
        results: Results | None,
    ) -> Section | None:
        """Count every trajectory, and keep the lines of the questions to show.

        Without a choice (no selection, no question file) the first questions read are shown.
        """
        chosen = selection.questions if selection else ()
        if chosen:
            ids = choose_mixed(chosen, self.max_questions)
        elif name == "evaluated" and results is not None:
            ids = spread(list(results.arms[0].values), self.max_questions)
        else:
            ids = spread(list(questions), self.max_questions)
        choices = selection.choices if selection else ()
        selected = {key: value for choice in choices for key, value in choice.rewards.items()}
        shown: dict[str, list[tuple[str, Line]]] = {question_id: [] for question_id in ids}
        scores, rewards, seen, is_free = {}, {}, set(), not shown
        for arm in arms:
            arm.tally.planned = len(arm.lines.keys)
            for line in arm.lines.lines():
                key, question_id = line.trajectory.key, line.trajectory.question_id
                reward = selected[key] if key in selected else arm.lines.reward(line)
                arm.tally.add(line, reward)
                seen.add(question_id)
                if is_free and len(shown) < self.max_questions:
                    shown.setdefault(question_id, [])
                if question_id in shown:
                    shown[question_id].append((arm.tally.arm, line))
                    scores[key], rewards[key] = arm.lines.scores.get(key, {}), reward
        if not seen:
            return None
        for lines in shown.values():
            lines.sort(key=lambda item: (_place(arms, item[0]), item[1].trajectory.sample))
        return Section(
            name,
            title,
            len(seen),
            tuple(questions.get(i) or Question(id=i, text=i) for i, lines in shown.items() if lines),
            {i: lines for i, lines in shown.items() if lines},
            scores,
            rewards,
            {choice.question_id: choice for choice in chosen},
            frozenset(selection.kept) if selection else frozenset(),
        )


def gather(config: Config, folder: RoundFolder, max_questions: int) -> Gathered:
    """Read everything that the page of a round shows. UserError for records that cannot be read."""
    gatherer = Gatherer(config, max_questions)
    gatherer.update(folder)
    if gatherer.damaged:
        raise UserError(gatherer.damaged[0])
    return gatherer.gather(folder)


def _place(arms: Sequence[_Arm], name: str) -> int:
    return next(i for i, arm in enumerate(arms) if arm.tally.arm == name)


def _status(path: Path) -> Any:
    try:
        return path.stat()
    except OSError:
        return None


def _anyway_lines(ledger: Iterable[Entry]) -> tuple[str, ...]:
    """The stages of the ledger that were done with inputs that were out of date."""
    return tuple(
        f"{entry.key.title} of round {entry.round} was done with --anyway: {entry.anyway}."
        for entry in {entry.key: entry for entry in ledger}.values()  # the last of each stage
        if entry.anyway
    )


def _manifest(path: Path) -> dict[str, Any]:
    try:
        value = read_json_file(path)
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


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
