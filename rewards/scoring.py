"""Scoring trajectories: rules at once, judged scores in a pool, each stored as it is finished."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections import Counter
from collections.abc import Callable, Container, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from inference.engine import Engine
from inference.engines import close_engines, open_engines
from inference.session import session
from ratchet.config import Config
from ratchet.errors import UserError
from ratchet.files import Segment, write_jsonl
from ratchet.lease import Lease
from ratchet.progress import Progress
from ratchet.records import Question, Score, Trajectory, content_key
from ratchet.runfolder import RunFolder
from ratchet.tasks import together
from ratchet.text import plain_text
from retrieval.encoders.embedder import Embed, open_embedder
from rewards import endings
from rewards.correctness import NuggetStore, correctness
from rewards.faithfulness import faithfulness
from rewards.judge import CallLog, Judge, JudgeFailed, TooLong
from rewards.precision import precision
from rewards.prompts import CORRECTNESS_VERSION, FAITHFULNESS_VERSION, PRECISION_VERSION
from rewards.ragas import ANSWER_RELEVANCE_VERSION, RAGAS_FAITHFULNESS_VERSION, answer_relevance, ragas_faithfulness
from rewards.rules import RULES, VERSION, rule_score
from rewards.store import (
    Settings,
    call_log_file,
    current_settings,
    note_settings,
    read_scores,
    score_file,
)

JUDGED = {
    "correctness": CORRECTNESS_VERSION,
    "faithfulness": FAITHFULNESS_VERSION,
    "precision": PRECISION_VERSION,
    "ragas_faithfulness": RAGAS_FAITHFULNESS_VERSION,
    "answer_relevance": ANSWER_RELEVANCE_VERSION,
}
"""Judged scores and the versions of their prompts."""
MODEL_IDENTITY = {"path", "revision", "served_name", "dtype", "max_context", "script"}
EMBEDDER_IDENTITY = {"path", "revision", "dtype", "max_length", "query_prefix"}

Scores = dict[tuple[str, str], Score]


def score_trajectories(
    config: Config,
    questions: Sequence[Question],
    trajectories: Sequence[Trajectory],
    names: Iterable[str],
    folder: Path,
    judge: OpenJudge | None = None,
) -> Scores:
    """Scores by (trajectory key, score name), for every pair; what `folder` already holds is not computed again.

    Stored scores count only under the same settings (for a judge: its fingerprint, runs, sampling, prompts). The
    judge's model is opened only where a judged score is missing; one that is given as `judge` stays open. A score whose
    judge calls were not all served comes back null in the state 'unfinished', is not stored, and is tried again by the
    next call; how many there are is printed on stderr. Raises UserError.
    """
    names = list(dict.fromkeys(names))
    unknown = [name for name in names if name not in JUDGED and name not in RULES]
    if unknown:
        raise ValueError(f"no such score: {', '.join(unknown)}")
    by_id = {question.id: question for question in questions}
    work = {trajectory.key: trajectory for trajectory in trajectories}
    check_known(by_id, work.values())
    found: Scores = {}
    judged = [name for name in names if name in JUDGED]
    with Lease(folder / ".lease", f"the scores in {folder}"):
        for name in names:
            if name in RULES:
                found |= _by_rule(name, by_id, work, folder)
        if judged:
            with contextlib.ExitStack() as stack:
                judge = judge or stack.enter_context(contextlib.closing(OpenJudge(config)))
                found |= _by_judge(config, judge, judged, by_id, work, folder)
    return found


class OpenJudge:
    """The judge's model: opened by the first score that is missing, and open for further folders until `close`."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._runner = asyncio.Runner()
        self._engine: Engine | None = None

    def run(self, judging: Callable[[Engine], Coroutine[Any, Any, Scores]]) -> Scores:
        name = self._config.rewards.judge
        self._engine = self._engine or open_engines(self._config.models, {name})[name]
        return self._runner.run(judging(self._engine))

    def close(self) -> None:
        with contextlib.closing(self._runner):
            if self._engine is not None:
                self._runner.run(close_engines({self._config.rewards.judge: self._engine}))


def check_known(question_ids: Container[str], trajectories: Iterable[Trajectory]) -> None:
    """Raises UserError for a trajectory whose question is not there."""
    for trajectory in trajectories:
        if trajectory.question_id not in question_ids:
            raise UserError(
                f"trajectory {trajectory.key} answers the question {trajectory.question_id!r}, which is not among the "
                "questions of this config; was the question file changed after sampling?"
            )


def unfinished(scores: Mapping[tuple[str, str], Score]) -> list[Score]:
    """The scores that the judge could not be reached for."""
    return [score for score in scores.values() if score.state == "unfinished"]


def _by_rule(name: str, by_id: Mapping[str, Question], work: Mapping[str, Trajectory], folder: Path) -> Scores:
    settings: Settings = {"rule": name, "version": VERSION}
    stored = read_scores(folder, name, settings, work)
    fresh = [rule_score(name, by_id[t.question_id], t) for t in work.values() if t.key not in stored]
    if fresh:
        # Rules are quick: one atomic write in place of a durable line for each.
        write_jsonl(score_file(folder, name, settings), [*stored.values(), *fresh])
    note_settings(folder, name, settings)
    return {(score.trajectory, name): score for score in (*stored.values(), *fresh)}


def _by_judge(
    config: Config,
    judge: OpenJudge,
    names: list[str],
    by_id: Mapping[str, Question],
    work: Mapping[str, Trajectory],
    folder: Path,
) -> Scores:
    model = config.models.get(config.rewards.judge)
    if model is None:
        raise UserError(
            f"{' and '.join(names)} need a judge, and rewards.judge names {config.rewards.judge!r}, which is not under "
            f"models (known: {', '.join(sorted(config.models))})"
        )
    # A stage that was finished can be run again where the judge's server is down: nothing is asked, nothing is new.
    noted = current_settings(folder)
    found: Scores = {}
    for name in names:
        expected = judge_settings(config, name, noted.get(name, {}).get("fingerprint", ""))
        if noted.get(name) == expected:
            found |= {(key, name): score for key, score in read_scores(folder, name, expected, work).items()}
    if len(found) == len(work) * len(names):
        return found
    writer = content_key(str(folder.resolve()))[:8]
    return judge.run(lambda engine: _judge_all(config, engine, names, by_id, work, folder, writer))


def judge_settings(config: Config, name: str, fingerprint: str) -> Settings:
    """What a judged score depends on. The judge's url and machine settings are not among it, nor the embedder's."""
    rewards, model = config.rewards, config.models[config.rewards.judge]
    embedder = {key: value for key, value in config.embedder.items() if key in EMBEDDER_IDENTITY}
    return {
        **({"embedder": embedder} if name == "answer_relevance" else {}),
        "fingerprint": fingerprint,
        "model": model.model_dump(mode="json", include=MODEL_IDENTITY),
        "prompts": JUDGED[name],
        "endings": endings.VERSION,
        "seed": config.seed,
        **rewards.model_dump(mode="json", include={"runs", "temperature", "top_p", "max_tokens"}),
    }


@dataclass
class _Files:
    """What one judged score name writes to."""

    settings: Settings
    stored: dict[str, Score]
    scores: Segment
    log: CallLog


@dataclass
class _Tally:
    counts: Counter[str] = field(default_factory=Counter)

    def add(self, score: Score) -> None:
        self.counts["unfinished"] += score.state == "unfinished"
        self.counts["null"] += score.state == "null"
        self.counts["unparsed verdicts"] += score.unparsed

    def __str__(self) -> str:
        return "  ".join(f"{name} {count}" for name, count in self.counts.items() if count)


async def _judge_all(
    config: Config,
    engine: Engine,
    names: list[str],
    by_id: Mapping[str, Question],
    work: Mapping[str, Trajectory],
    folder: Path,
    writer: str,
) -> Scores:
    concurrency = config.models[config.rewards.judge].concurrency
    judge = Judge(engine, config.rewards, config.seed, concurrency)
    embed = open_embedder(config.embedder)
    tally = _Tally()
    if "answer_relevance" in names:  # a model that cannot be had is found out before the judge has worked
        await asyncio.to_thread(embed, ())
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(NuggetStore(RunFolder(config.folder).nuggets, judge, writer))
        files: dict[str, _Files] = {}
        for name in names:
            settings = judge_settings(config, name, engine.fingerprint)
            scores = stack.enter_context(Segment(score_file(folder, name, settings)))
            stored = read_scores(folder, name, settings, work)
            log = stack.enter_context(CallLog(call_log_file(folder, name, settings), set(stored)))
            files[name] = _Files(settings, stored, scores, log)
            note_settings(folder, name, settings)
        found = {(key, name): score for name in names for key, score in files[name].stored.items()}
        for score in found.values():
            tally.add(score)
        total = len(work) * len(names)
        progress = stack.enter_context(Progress("judge", total, len(found)))

        async def worker(todo: Iterator[tuple[str, Trajectory]]) -> None:
            for name, trajectory in todo:
                question = by_id[trajectory.question_id]
                with session(question.id):  # what is asked of one answer begins alike: one server, of several
                    score = await _judge_one(judge, store, embed, name, question, trajectory, files[name], found)
                found[trajectory.key, name] = score
                tally.add(score)
                progress.advance(note=str(tally))

        # Precision comes after the rest: it takes over the claims that faithfulness drew.
        for late in (False, True):
            turn = [name for name in names if (name == "precision") is late]
            todo = [(name, t) for t in work.values() for name in turn if (t.key, name) not in found]
            queue = iter(todo)
            await together([worker(queue) for _ in range(min(concurrency, len(todo)))])
    left = unfinished(found)
    for name in names:
        if not any(score.name == name for score in left):
            call_log_file(folder, name, files[name].settings).unlink(missing_ok=True)
    if left:
        print(
            f"{len(left)} of {total} judged scores are unfinished, such as: "
            f"{plain_text(left[0].reason)}\n"
            "The same command again asks only for what is missing.",
            file=sys.stderr,
        )
    return found


async def _judge_one(
    judge: Judge,
    store: NuggetStore,
    embed: Embed,
    name: str,
    question: Question,
    trajectory: Trajectory,
    files: _Files,
    found: Scores,
) -> Score:
    """One judged score, stored unless it is unfinished. `found` are the scores that there are already."""
    null = Score(trajectory=trajectory.key, name=name, value=None)
    try:
        if (known := endings.without_looking(name, question, trajectory)) is not None:
            score = known
        elif name == "correctness":
            score = await correctness(judge, store, question, trajectory, files.log)
        elif name == "faithfulness":
            score = await faithfulness(judge, question, trajectory, files.log)
        elif name == "ragas_faithfulness":
            score = await ragas_faithfulness(judge, question, trajectory, files.log)
        elif name == "answer_relevance":
            score = await answer_relevance(judge, embed, question, trajectory, files.log)
        else:
            claimed = found.get((trajectory.key, "faithfulness"))
            score = await precision(judge, question, trajectory, files.log, claimed)
    except TooLong as error:
        score = null.model_copy(update={"reason": str(error)})
    except JudgeFailed as error:
        return null.model_copy(update={"state": "unfinished", "reason": str(error)})
    files.scores.append(score)
    files.log.forget(trajectory.key)
    return score
