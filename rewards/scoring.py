"""Scoring trajectories: rules at once, judged scores in a pool, each stored as it is finished. rewards/reward.py says
what a reward is."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any

from ratchet.core.config import Config, RewardsConfig, Section
from ratchet.core.config.system import TOP_P
from ratchet.core.errors import UserError
from ratchet.core.files import Segment, write_jsonl
from ratchet.core.locks import Lock
from ratchet.core.plugins import short_name
from ratchet.core.progress import Progress
from ratchet.core.records import Question, Score, Trajectory, content_key
from ratchet.core.runfolder import RunFolder
from ratchet.core.tasks import for_each, gather_or_cancel, run_or_cancel
from ratchet.core.text import NORMALISATIONS, plain_text
from ratchet.inference.engine import Engine, asking_about
from ratchet.inference.engines import close_engines, max_requests, open_engines
from ratchet.retrieval.encoders.dense import open_embedder
from ratchet.retrieval.retriever import SourceError
from ratchet.rewards.inputs import Inputs, ScoreJudge
from ratchet.rewards.judge import CallLog, Judge, cut_off
from ratchet.rewards.nuggets import NuggetStore
from ratchet.rewards.prompts import judge_prompts, replaced_digest
from ratchet.rewards.reward import (
    ENDINGS_VERSION,
    Judged,
    JudgeError,
    PromptTooLong,
    Reward,
    Rule,
    Settings,
    judge_of,
    judged,
    load_reward,
)
from ratchet.rewards.selection import strict_reward
from ratchet.rewards.store import call_log_file, current_settings, read_scores, record_settings, score_file
from ratchet.sampling.store import Outline, Trajectories

MODEL_IDENTITY = {"path", "revision", "served_name", "dtype", "max_context", "script"}
JUDGING = {"runs", "temperature", "max_tokens", "constrained", "verdicts"}
"""Settings under `rewards` that every judged score depends on."""

MAX_IN_FLIGHT = 8
"""Trajectories that an async reward without a judge scores at once."""

Scores = dict[tuple[str, str], Score]
"""By (trajectory key, score name)."""


@dataclass(frozen=True)
class Work:
    """The trajectories to score, their questions, and the folder of the scores."""

    questions: Mapping[str, Question]
    trajectories: Trajectories
    folder: Path

    def stored(self, reward: Reward, settings: Settings) -> tuple[dict[str, Score], list[Outline]]:
        """(the stored scores that count, by trajectory key; the trajectories to score, or to score again where they
        were sampled again)."""
        found = read_scores(self.folder, reward.name, settings, self.trajectories)
        outlines = self.trajectories.outlines.values()
        known = {one.key for one in outlines if one.key in found and found[one.key].content == one.content}
        return {key: found[key] for key in known}, [one for one in outlines if one.key not in known]

    def in_order(self, pairs: Iterable[tuple[Rule, Outline]]) -> list[tuple[Rule, Outline]]:
        """Order pairs by trajectory: each is read once."""
        place = {key: at for at, key in enumerate(self.trajectories)}
        return sorted(pairs, key=lambda pair: place[pair[1].key])

    def equal(self, rewards: Sequence[Judged], outlines: Sequence[Outline]) -> list[tuple[Judged, list[Outline]]]:
        """By reward, the groups of a question's trajectories of which the judge is shown the same. Those of one
        trajectory follow each other: it is read once, and the prompts about its answer share their prefix."""
        groups: dict[Any, tuple[Judged, list[Outline]]] = {}
        for one in outlines:
            for reward in rewards:
                fixed = reward.fixed_score(self.questions[one.question_id], one)
                shown = reward.judged if fixed is None and len(outlines) > 1 else None
                part = one.key if shown is None else ("equal", shown(self.trajectories[one.key]))
                groups.setdefault((reward.name, part), (reward, []))[1].append(one)
        return list(groups.values())

    async def score(self, reward: Rule | Judged, outline: Outline, given: Inputs, empty: float = 0.0) -> Score:
        """The score of a trajectory: that of its ending, or what the reward gives it."""
        question = self.questions[outline.question_id]
        fixed = reward.fixed_score(question, outline, empty)
        return fixed or await reward.apply(question, outline, self.trajectories, given)


class Scorer:
    """Scores trajectories under one config's settings, and opens the judge's model for the first score that is
    missing."""

    def __init__(self, config: Config) -> None:
        self._config, self._rewards = config, config.rewards
        self._runner = asyncio.Runner()
        self._engine: Engine | None = None

    def score(
        self,
        questions: Sequence[Question],
        trajectories: Trajectories,
        names: Iterable[str],
        folder: Path,
    ) -> Scores:
        """Scores by (trajectory key, score name), for every pair; what `folder` already holds is not computed again.

        Stored scores count only under the same settings (for a judge: its fingerprint, runs, sampling, prompts). A
        score whose judge calls were not all served comes back null in the state 'unfinished', is not stored, and is
        tried again by the next call; how many there are is printed on stderr. Raises UserError.
        """
        rewards = [load_reward(name) for name in dict.fromkeys(names)]
        by_rule = [reward for reward in rewards if isinstance(reward, Rule)]
        by_judge = [reward for reward in rewards if isinstance(reward, Judged)]
        work = Work({q.id: q for q in questions}, trajectories, folder)
        check_question_ids(work.questions, trajectories.outlines.values())
        with Lock(folder / ".lock", f"the scores in {folder}"):
            scores = self._by_rule(by_rule, work)
            return scores | self._by_judge(by_judge, work) if by_judge else scores

    def _by_rule(self, rewards: Sequence[Rule], work: Work) -> Scores:
        inputs = {reward.name: replace(self._inputs, own_settings=self._own_settings(reward)) for reward in rewards}
        settings = {reward.name: self.rule_settings(reward) for reward in rewards}
        stored: dict[str, dict[str, Score]] = {}
        fresh: dict[str, list[Score]] = {reward.name: [] for reward in rewards}
        missing: list[tuple[Rule, Outline]] = []
        for reward in rewards:
            stored[reward.name], left = work.stored(reward, settings[reward.name])
            missing += [(reward, outline) for outline in left]

        async def score(pair: tuple[Rule, Outline]) -> None:
            reward, outline = pair
            fresh[reward.name].append(await work.score(reward, outline, inputs[reward.name]))
            await asyncio.sleep(0)  # an interrupt is noticed here: few rules wait for anything

        try:
            run_or_cancel(self._runner, for_each(work.in_order(missing), score, MAX_IN_FLIGHT))
        finally:
            for name, made in fresh.items():
                if made:
                    # Rules are quick: one atomic write in place of a durable line for each.
                    write_jsonl(score_file(work.folder, name, settings[name]), [*stored[name].values(), *made])
        for name in fresh:
            record_settings(work.folder, name, settings[name])
        return {(score.trajectory, name): score for name in fresh for score in (*stored[name].values(), *fresh[name])}

    def _by_judge(self, rewards: Sequence[Judged], work: Work) -> Scores:
        judge_of(self._config, [reward.name for reward in rewards])
        # A stage that was finished can be run again where the judge's server is down: nothing is asked, nothing is new.
        noted = current_settings(work.folder)
        scores: Scores = {}
        for reward in rewards:
            name = reward.name
            settings = self.judge_settings(reward, noted.get(name, {}).get("fingerprint", ""))
            if noted.get(name) == settings:
                scores |= {(key, name): score for key, score in work.stored(reward, settings)[0].items()}
        if len(scores) == len(work.trajectories) * len(rewards):
            return scores
        judge = self._rewards.judge
        self._engine = self._engine or open_engines(self._config.models, {judge})[judge]
        return run_or_cancel(self._runner, self._judge_all(self._engine, rewards, work))

    async def _judge_all(self, engine: Engine, rewards: Sequence[Judged], work: Work) -> Scores:
        concurrency = max_requests(self._rewards.judge, self._config.models[self._rewards.judge])
        judge, prompts = Judge(engine, self._rewards, self._config.seed, concurrency), judge_prompts(self._rewards)
        inputs = self._inputs
        if any(reward.needs_embedder for reward in rewards):
            # A model that is not available is found out before the judge has worked.
            await asyncio.to_thread(inputs.embed, ())
        settings = {reward.name: self.judge_settings(reward, engine.fingerprint) for reward in rewards}
        with contextlib.ExitStack() as stack:
            writer = content_key(str(work.folder.resolve()))[:8]
            nuggets = stack.enter_context(NuggetStore(RunFolder(self._config.folder).nuggets, judge, prompts, writer))
            segments: dict[str, Segment] = {}
            logs: dict[str, CallLog] = {}
            scores: Scores = {}
            questions: dict[str, list[Outline]] = {}
            for outline in work.trajectories.outlines.values():
                questions.setdefault(outline.question_id, []).append(outline)
            missing = set[str]()
            for reward in rewards:
                name = reward.name
                stored, left = work.stored(reward, settings[name])
                missing |= {outline.question_id for outline in left}
                scores |= {(key, name): score for key, score in stored.items()}
                segments[name] = stack.enter_context(Segment(score_file(work.folder, name, settings[name])))
                log_file = call_log_file(work.folder, name, settings[name])
                logs[name] = stack.enter_context(CallLog(log_file, set(stored)))
                record_settings(work.folder, name, settings[name])
            total = len(work.trajectories) * len(rewards)
            progress = stack.enter_context(Progress("judge", total, len(scores)))
            tally = Counter({"unfinished": 0, "null": 0})
            for known in scores.values():
                _count(tally, known)

            async def ask(reward: Judged, outline: Outline) -> Score:
                name, key, question = reward.name, outline.key, work.questions[outline.question_id]
                asker = ScoreJudge(
                    normalise=inputs.normalise,
                    embed=inputs.embed,
                    own_settings=self._own_settings(reward),
                    judge=judge,
                    log=logs[name],
                    prompts={**reward.prompts, **prompts},
                    nuggets=nuggets,
                    scores={other: scores[at] for other in reward.after if (at := (key, other)) in scores},
                    question=question,
                    owner=key,
                    name=short_name(name),
                )
                with asking_about(question.id):  # what is asked of one answer begins alike: one server, of several
                    return await _judge_one(reward, outline, work, asker)

            def keep(score: Score) -> None:
                name, key = score.name, score.trajectory
                if score.state != "unfinished":
                    segments[name].append(score)
                    logs[name].forget(key)
                scores[key, name] = score
                progress.advance(1, note=_count(tally, score))

            async def score_equal(reward: Judged, outlines: Sequence[Outline]) -> None:
                known = [scores[at] for one in outlines if (at := (one.key, reward.name)) in scores]
                left = [one for one in outlines if (one.key, reward.name) not in scores]
                if not known:
                    known = [await ask(reward, left.pop(0))]
                    keep(known[0])
                for one in left:
                    keep(equal_score(known[0], one))

            async def judge_question(question: str) -> None:
                # Precision comes after the rest: it reuses the claims that faithfulness extracted.
                for late in (False, True):
                    turn = [reward for reward in rewards if bool(reward.after) is late]
                    groups = work.equal(turn, questions[question])
                    await gather_or_cancel([score_equal(reward, outlines) for reward, outlines in groups])

            at_once = 1 + concurrency * len(questions) // total  # questions, so that the judge has enough to do
            await for_each([question for question in questions if question in missing], judge_question, at_once)
        waiting = unfinished(scores)
        for name in settings.keys() - {score.name for score in waiting}:
            call_log_file(work.folder, name, settings[name]).unlink(missing_ok=True)
        if waiting:
            print(
                f"{len(waiting)} of {total} judged scores are unfinished, such as: {plain_text(waiting[0].reason)}\n"
                "Run the same command again to compute only these.",
                file=sys.stderr,
            )
        return scores

    async def is_good(self, question: Question, trajectory: Trajectory) -> bool:
        """Whether a trajectory would be selected, were it the question's only one: by rules alone."""
        rule, weights = self._rewards.select, self._rewards.weights
        work = Work({question.id: question}, Trajectories.of([trajectory]), Path())
        [outline], scores = work.trajectories.outlines.values(), Scores()
        for name in (name for name, weight in weights.items() if weight):
            reward = load_reward(name)
            assert isinstance(reward, Rule) and rule.min_reward is not None, "check_enough has looked"
            inputs = replace(self._inputs, own_settings=self._own_settings(reward))
            scores[outline.key, name] = await work.score(reward, outline, inputs)
        value = strict_reward(question, outline, scores, weights, rule.keep_status)
        return value is not None and value > (rule.min_reward or 0.0)

    @cached_property
    def _inputs(self) -> Inputs:
        normalise = NORMALISATIONS[self._rewards.normalisation]
        return Inputs(normalise=normalise, embed=open_embedder(self._config.embedder))

    def rule_settings(self, reward: Rule) -> Settings:
        settings: Settings = {"rule": short_name(reward.name), "version": reward.version}
        if reward.is_outside:
            settings["endings"] = ENDINGS_VERSION
        if reward.normalises and self._rewards.normalisation != "unicode":
            settings["normalisation"] = self._rewards.normalisation
        return settings | self._shared_settings(reward)

    def judge_settings(self, reward: Judged, fingerprint: str) -> Settings:
        """The facts that a judged score depends on: neither the judge's url and machine settings nor the embedder's."""
        model, replaced = self._config.models[self._rewards.judge], replaced_digest(self._rewards, reward)
        return {
            **self._shared_settings(reward),
            "fingerprint": fingerprint,
            "model": model.model_dump(mode="json", include=MODEL_IDENTITY) | model.reduced_formats,
            "prompts": reward.version,
            **({"replaced_prompts": replaced} if replaced else {}),
            "endings": ENDINGS_VERSION,
            "seed": self._config.seed,
            "top_p": TOP_P,
            **self._rewards.model_dump(mode="json", include={*JUDGING, *reward.settings}),
        }

    def _shared_settings(self, reward: Reward) -> Settings:
        embedder = {"embedder": self._config.embedder.identity} if reward.needs_embedder else {}
        own = self._own_settings(reward)
        return embedder | ({} if own is None else {"settings": own.model_dump(mode="json")})

    def _own_settings(self, reward: Reward) -> Section | None:
        return reward.read_settings(self._rewards.settings_of(reward.name))

    def __enter__(self) -> Scorer:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        with contextlib.closing(self._runner):
            if self._engine is not None:
                self._runner.run(close_engines({self._rewards.judge: self._engine}))


def check_question_ids(question_ids: Container[str], trajectories: Iterable[Outline]) -> None:
    """Raises UserError for a trajectory whose question is not among these."""
    for trajectory in trajectories:
        if trajectory.question_id not in question_ids:
            raise UserError(
                f"trajectory {trajectory.key} answers the question {trajectory.question_id!r}, which is not among the "
                "questions of this config; was the question file changed after sampling?"
            )


def check_enough(rewards: RewardsConfig) -> None:
    """Raises UserError for rewards by which sampling cannot tell that a question has enough (`sampling.enough`)."""
    if asked := judged(name for name, weight in rewards.weights.items() if weight):
        raise UserError(
            f"sampling.enough: rewards.weights.{asked[0]} asks a judge, and rewards must be known while trajectories "
            "are sampled; use rules, or leave it out"
        )
    if rewards.select.min_reward is None:
        raise UserError("sampling.enough: set rewards.select.min_reward, above which a trajectory is good")


def unfinished(scores: Mapping[tuple[str, str], Score]) -> list[Score]:
    """The scores that are unfinished because the judge was not available."""
    return [score for score in scores.values() if score.state == "unfinished"]


def equal_score(score: Score, outline: Outline) -> Score:
    """The score of a trajectory of which the judge would be shown the same."""
    verdicts = tuple({name: value for name, value in one.items() if name != "tokens"} for one in score.verdicts)
    own = {"trajectory": outline.key, "content": outline.content, "equal_to": score.equal_to or score.trajectory}
    return score.model_copy(update={**own, "verdicts": verdicts})


async def _judge_one(reward: Judged, outline: Outline, work: Work, judge: ScoreJudge) -> Score:
    try:
        return judge.finish(await work.score(reward, outline, judge, reward.empty(judge.settings)))
    except PromptTooLong as error:
        return reward.make_score(outline, None, str(error))
    except (JudgeError, SourceError) as error:
        return reward.make_score(outline, None, str(error), "unfinished")


def _count(tally: Counter[str], score: Score) -> str:
    """Add a score to the tally of a progress line, and return its note."""
    tally[score.state] += score.state != "scored"
    if score.equal_to:
        tally["equal"] += 1
    else:
        tally["unparsed verdicts"] += score.unparsed
        tally["cut off"] += cut_off(score.verdicts)[0]
    return "  ".join(f"{name} {count}" for name, count in tally.items() if count)
