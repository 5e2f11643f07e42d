"""Scoring trajectories: rules at once, judged scores in a pool, each stored as it is finished. rewards/reward.py says
what a reward is."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections import Counter
from collections.abc import Callable, Container, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from inference.engine import Engine
from inference.engines import close_engines, max_requests, open_engines
from inference.session import session
from ratchet.config import EmbedderConfig, ModelConfig, RewardsConfig
from ratchet.errors import UserError
from ratchet.files import Segment, write_jsonl
from ratchet.lease import Lease
from ratchet.plugins import short_name
from ratchet.progress import Progress
from ratchet.records import Question, Score, Trajectory, content_key
from ratchet.tasks import gather_or_cancel, run_or_cancel
from ratchet.text import NORMALISATIONS, plain_text
from retrieval.encoders.dense import Embed
from retrieval.encoders.embedder import open_embedder
from retrieval.errors import SourceError
from rewards.correctness import NuggetStore
from rewards.judge import CallLog, Judge, JudgeError, PromptTooLong, ScoreJudge, cut_off
from rewards.prompts import LEFT_OUT_INCORRECT_VERSION, judge_prompts, replaced_digest
from rewards.reward import ENDINGS_VERSION, Reward, fixed_score, judge_of, judged, load_reward, rule_score
from rewards.store import (
    Settings,
    call_log_file,
    current_settings,
    read_scores,
    record_settings,
    score_file,
)

MODEL_IDENTITY = {"path", "revision", "served_name", "dtype", "max_context", "script"}
JUDGING = {"runs", "temperature", "top_p", "max_tokens", "constrained", "parsing"}
"""Settings under `rewards` that every judged score depends on."""

MAX_IN_FLIGHT = 8
"""Trajectories that an async reward without a judge scores at once."""

Scores = dict[tuple[str, str], Score]


class Scorer:
    """Scores trajectories under one config's settings, and opens the judge's model for the first score that is missing.

    `nuggets`: the folder of the nuggets that a judge draws, shared by every stage and round of a run.
    """

    def __init__(
        self,
        rewards: RewardsConfig,
        models: Mapping[str, ModelConfig],
        embedder: EmbedderConfig,
        seed: int,
        nuggets: Path,
    ) -> None:
        self.rewards, self.models, self.embedder, self.seed, self.nuggets = rewards, models, embedder, seed, nuggets
        self._runner = asyncio.Runner()
        self._engine: Engine | None = None

    def score(
        self,
        questions: Sequence[Question],
        trajectories: Sequence[Trajectory],
        names: Iterable[str],
        folder: Path,
    ) -> Scores:
        """Scores by (trajectory key, score name), for every pair; what `folder` already holds is not computed again.

        Stored scores count only under the same settings (for a judge: its fingerprint, runs, sampling, prompts). A
        score whose judge calls were not all served comes back null in the state 'unfinished', is not stored, and is
        tried again by the next call; how many there are is printed on stderr. Raises UserError.
        """
        names = list(dict.fromkeys(names))
        by_id = {question.id: question for question in questions}
        work = {trajectory.key: trajectory for trajectory in trajectories}
        check_question_ids(by_id, work.values())
        scores: Scores = {}
        by_judge = judged(names)
        with Lease(folder / ".lease", f"the scores in {folder}"):
            for name in names:
                if name not in by_judge:
                    scores |= _by_rule(self, load_reward(name), by_id, work, folder)
            if by_judge:
                scores |= _by_judge(self, by_judge, by_id, work, folder)
        return scores

    def run(self, judging: Callable[[Engine], Coroutine[Any, Any, Scores]]) -> Scores:
        """What `judging` returns, given the judge's engine."""
        name = self.rewards.judge
        self._engine = self._engine or open_engines(self.models, {name})[name]
        return run_or_cancel(self._runner, judging(self._engine))

    def __enter__(self) -> Scorer:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        with contextlib.closing(self._runner):
            if self._engine is not None:
                self._runner.run(close_engines({self.rewards.judge: self._engine}))


def check_question_ids(question_ids: Container[str], trajectories: Iterable[Trajectory]) -> None:
    """Raises UserError for a trajectory whose question is not among these."""
    for trajectory in trajectories:
        if trajectory.question_id not in question_ids:
            raise UserError(
                f"trajectory {trajectory.key} answers the question {trajectory.question_id!r}, which is not among the "
                "questions of this config; was the question file changed after sampling?"
            )


def unfinished(scores: Mapping[tuple[str, str], Score]) -> list[Score]:
    """The scores that are unfinished because the judge was not available."""
    return [score for score in scores.values() if score.state == "unfinished"]


def _by_rule(
    scorer: Scorer, reward: Reward, by_id: Mapping[str, Question], work: Mapping[str, Trajectory], folder: Path
) -> Scores:
    name, settings = reward.name, _rule_settings(scorer, reward)
    stored = read_scores(folder, name, settings, work)
    missing = [t for t in work.values() if t.key not in stored]
    inputs: dict[str, Any] = {"normalise": NORMALISATIONS[scorer.rewards.normalisation]}
    if reward.needs_embedder and missing:
        inputs["embed"] = open_embedder(scorer.embedder)
    fresh: list[Score] = []
    try:
        if reward.is_async and missing:
            asyncio.run(_await_scores(reward, by_id, missing, inputs, fresh))
        else:
            for trajectory in missing:
                fresh.append(rule_score(name, by_id[trajectory.question_id], trajectory, inputs))
    finally:
        if fresh:
            # Rules are quick: one atomic write in place of a durable line for each.
            write_jsonl(score_file(folder, name, settings), [*stored.values(), *fresh])
    record_settings(folder, name, settings)
    return {(score.trajectory, name): score for score in (*stored.values(), *fresh)}


async def _await_scores(
    reward: Reward,
    by_id: Mapping[str, Question],
    missing: Sequence[Trajectory],
    inputs: Mapping[str, Any],
    fresh: list[Score],
) -> None:
    """Add the scores of an async reward to `fresh` as they are finished."""
    queue = iter(missing)

    async def worker() -> None:
        for trajectory in queue:
            question = by_id[trajectory.question_id]
            score = fixed_score(reward.name, question, trajectory)
            fresh.append(score or await _await_score(reward, question, trajectory, inputs))

    await gather_or_cancel([worker() for _ in range(min(MAX_IN_FLIGHT, len(missing)))])


async def _await_score(reward: Reward, question: Question, trajectory: Trajectory, inputs: Mapping[str, Any]) -> Score:
    """The score by an async reward. Raises PromptTooLong and JudgeError; UserError for an exception of outside code."""
    with reward.errors(question, trajectory, PromptTooLong, JudgeError):
        result = await reward.run(question, trajectory, inputs)
    return reward.make_score(trajectory, result)


def _rule_settings(scorer: Scorer, reward: Reward) -> Settings:
    """What a score without a judge depends on."""
    settings: Settings = {"rule": short_name(reward.name), "version": reward.version}
    if reward.is_outside:
        settings["endings"] = ENDINGS_VERSION
    if "normalise" in reward.asks_for and scorer.rewards.normalisation != "unicode":
        settings["normalisation"] = scorer.rewards.normalisation
    return settings | _embedder_settings(scorer, reward)


def _embedder_settings(scorer: Scorer, reward: Reward) -> Settings:
    if not reward.needs_embedder:
        return {}
    return {"embedder": scorer.embedder.identity}


def _by_judge(
    scorer: Scorer,
    names: list[str],
    by_id: Mapping[str, Question],
    work: Mapping[str, Trajectory],
    folder: Path,
) -> Scores:
    judge_of(scorer.rewards, scorer.models, names)
    # A stage that was finished can be run again where the judge's server is down: nothing is asked, nothing is new.
    noted = current_settings(folder)
    found: Scores = {}
    for name in names:
        expected = judge_settings(scorer, name, noted.get(name, {}).get("fingerprint", ""))
        if noted.get(name) == expected:
            found |= {(key, name): score for key, score in read_scores(folder, name, expected, work).items()}
    if len(found) == len(work) * len(names):
        return found
    writer = content_key(str(folder.resolve()))[:8]
    return scorer.run(lambda engine: _judge_all(scorer, engine, names, by_id, work, folder, writer))


def judge_settings(scorer: Scorer, name: str, fingerprint: str) -> Settings:
    """What a judged score depends on. The judge's url and machine settings are not among it, nor the embedder's."""
    rewards, model, reward = scorer.rewards, scorer.models[scorer.rewards.judge], load_reward(name)
    return {
        **_embedder_settings(scorer, reward),
        "fingerprint": fingerprint,
        "model": model.model_dump(mode="json", include=MODEL_IDENTITY) | model.reduced_formats,
        "prompts": reward.version,
        **_replaced_prompts(rewards, reward),
        "endings": ENDINGS_VERSION,
        "seed": scorer.seed,
        **rewards.model_dump(mode="json", include=JUDGING),
        **_own_judge_settings(rewards, name),
    }


def _replaced_prompts(rewards: RewardsConfig, reward: Reward) -> Settings:
    digest = replaced_digest(judge_prompts(rewards), reward.prompts)
    return {"replaced_prompts": digest} if digest else {}


def _own_judge_settings(rewards: RewardsConfig, name: str) -> Settings:
    """What only the judged score of this name depends on."""
    if name == "correctness":
        own = rewards.correctness.model_dump(mode="json", exclude_defaults=True)
        return {name: own, **({"left_out": LEFT_OUT_INCORRECT_VERSION} if "left_out" in own else {})}
    if name == "faithfulness":
        return {name: rewards.faithfulness.model_dump(mode="json", exclude_defaults=True)}
    shared = {"precision": {"claims", "claim_temperature", "without_claims"}, "ragas_faithfulness": {"without_claims"}}
    own = rewards.faithfulness.model_dump(mode="json", include=shared.get(name, set()), exclude_defaults=True)
    return {"claims": own} if own else {}


@dataclass
class _Files:
    """The files of one judged score."""

    settings: Settings
    stored: dict[str, Score]
    scores: Segment
    log: CallLog


@dataclass
class _ScoreCounts:
    counts: Counter[str] = field(default_factory=Counter)

    def add(self, score: Score) -> None:
        self.counts["unfinished"] += score.state == "unfinished"
        self.counts["null"] += score.state == "null"
        self.counts["unparsed verdicts"] += score.unparsed
        self.counts["cut off"] += cut_off(score.verdicts)[0]

    def __str__(self) -> str:
        return "  ".join(f"{name} {count}" for name, count in self.counts.items() if count)


async def _judge_all(
    scorer: Scorer,
    engine: Engine,
    names: list[str],
    by_id: Mapping[str, Question],
    work: Mapping[str, Trajectory],
    folder: Path,
    writer: str,
) -> Scores:
    concurrency = max_requests(scorer.rewards.judge, scorer.models[scorer.rewards.judge])
    judge = Judge(engine, scorer.rewards, scorer.seed, concurrency)
    embed = open_embedder(scorer.embedder)
    tally = _ScoreCounts()
    rewards = {name: load_reward(name) for name in names}
    if any(reward.needs_embedder for reward in rewards.values()):
        # A model that is not available is found out before the judge has worked.
        await asyncio.to_thread(embed, ())
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(NuggetStore(scorer.nuggets, judge, writer))
        files: dict[str, _Files] = {}
        for name in names:
            settings = judge_settings(scorer, name, engine.fingerprint)
            scores = stack.enter_context(Segment(score_file(folder, name, settings)))
            stored = read_scores(folder, name, settings, work)
            log = stack.enter_context(CallLog(call_log_file(folder, name, settings), set(stored)))
            files[name] = _Files(settings, stored, scores, log)
            record_settings(folder, name, settings)
        found = {(key, name): score for name in names for key, score in files[name].stored.items()}
        for score in found.values():
            tally.add(score)
        total = len(work) * len(names)
        progress = stack.enter_context(Progress("judge", total, len(found)))

        async def worker(todo: Iterator[tuple[str, Trajectory]]) -> None:
            for name, trajectory in todo:
                question = by_id[trajectory.question_id]
                with session(question.id):  # what is asked of one answer begins alike: one server, of several
                    score = await _judge_one(
                        judge, store, embed, rewards[name], question, trajectory, files[name], found
                    )
                found[trajectory.key, name] = score
                tally.add(score)
                progress.advance(note=str(tally))

        # Precision comes after the rest: it reuses the claims that faithfulness extracted.
        for late in (False, True):
            turn = [name for name in names if bool(rewards[name].after) is late]
            todo = [(name, t) for t in work.values() for name in turn if (t.key, name) not in found]
            queue = iter(todo)
            await gather_or_cancel([worker(queue) for _ in range(min(concurrency, len(todo)))])
    left = unfinished(found)
    for name in names:
        if not any(score.name == name for score in left):
            call_log_file(folder, name, files[name].settings).unlink(missing_ok=True)
    if left:
        print(
            f"{len(left)} of {total} judged scores are unfinished, such as: "
            f"{plain_text(left[0].reason)}\n"
            "Run the same command again to compute only these.",
            file=sys.stderr,
        )
    return found


async def _judge_one(
    judge: Judge,
    store: NuggetStore,
    embed: Embed,
    reward: Reward,
    question: Question,
    trajectory: Trajectory,
    files: _Files,
    found: Scores,
) -> Score:
    """One judged score, stored unless it is unfinished. `found` are the scores that there are already."""
    null = Score(trajectory=trajectory.key, name=reward.name, value=None)
    asker = ScoreJudge(judge, files.log, trajectory.key, short_name(reward.name))
    inputs = {
        "judge": asker,
        "embed": embed,
        "nuggets": store,
        "scores": {name: found[trajectory.key, name] for name in reward.after if (trajectory.key, name) in found},
    }
    try:
        if (known := fixed_score(reward.name, question, trajectory)) is not None:
            score = known
        else:
            score = await _await_score(reward, question, trajectory, inputs)
            if asker.verdicts:
                told = {"verdicts": tuple(asker.verdicts), "unparsed": asker.unparsed}
                score = score.model_copy(update=told)
            cut, _ = cut_off(score.verdicts)
            if score.value is None and cut:
                why = f"{cut} of {len(score.verdicts)} replies were cut off (raise max_context of the judge)"
                score = score.model_copy(update={"reason": f"{score.reason}; {why}"})
    except PromptTooLong as error:
        score = null.model_copy(update={"reason": str(error)})
    except (JudgeError, SourceError) as error:
        return null.model_copy(update={"state": "unfinished", "reason": str(error)})
    files.scores.append(score)
    files.log.forget(trajectory.key)
    return score
