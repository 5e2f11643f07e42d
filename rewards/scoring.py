"""Scoring trajectories: rules at once, judged scores in a pool, each stored as it is finished. rewards/reward.py says
what a reward is."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import TracebackType

from ratchet.core.config import Config, RewardsConfig, RunsConfig, Section
from ratchet.core.config.system import TOP_P
from ratchet.core.errors import UserError
from ratchet.core.files import Segment, segment_files, write_jsonl
from ratchet.core.locks import Lock
from ratchet.core.plugins import short_name
from ratchet.core.progress import Progress
from ratchet.core.records import Question, Score, Trajectory, content_key
from ratchet.core.runfolder import RunFolder
from ratchet.core.tasks import for_each, run_or_cancel
from ratchet.core.text import NORMALISATIONS, plain_text
from ratchet.inference.engine import Engine
from ratchet.inference.engines import close_engines, max_requests, open_engines
from ratchet.retrieval.encoders.dense import open_embedder
from ratchet.rewards.inputs import Inputs, ScoreJudge
from ratchet.rewards.judge import CallLog, Judge, cut_off
from ratchet.rewards.judging import QuestionJudge, Scores, Work
from ratchet.rewards.nuggets import NuggetStore
from ratchet.rewards.prompts import judge_prompts, replaced_digest
from ratchet.rewards.reward import (
    ENDINGS_VERSION,
    Judged,
    Reward,
    Rule,
    Settings,
    judge_of,
    judged,
    load_reward,
)
from ratchet.rewards.runs import undecided
from ratchet.rewards.selection import ALONE, TIE, strict_reward
from ratchet.rewards.store import call_log_file, current_settings, kept_log_file, record_settings, score_file
from ratchet.sampling.store import Outline, Trajectories

MODEL_IDENTITY = {"path", "revision", "served_name", "dtype", "max_context", "script"}
JUDGING = {"runs", "temperature", "max_tokens", "constrained", "verdicts"}
"""Settings under `rewards` that every judged score depends on."""

MAX_IN_FLIGHT = 8
"""Trajectories that an async reward without a judge scores at once."""


class Scorer:
    """Scores trajectories under one config's settings, and opens the judge's model for the first score that is
    missing."""

    def __init__(self, config: Config, selects: bool = False) -> None:
        """`selects`: trajectories are selected by their rewards, so that the number of judge runs may differ as
        `rewards.runs` says. Without, all have the most."""
        rewards, most = config.rewards, config.rewards.runs.most
        self._config, self._adapts = config, selects and rewards.runs.least < most
        every = RunsConfig(least=most, most=most)
        self._rewards = rewards if self._adapts else rewards.model_copy(update={"runs": every})
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
            return scores | self._by_judge(by_judge, work, scores) if by_judge else scores

    def _by_rule(self, rewards: Sequence[Rule], work: Work) -> Scores:
        inputs = {reward.name: replace(self._inputs, own_settings=self._own_settings(reward)) for reward in rewards}
        settings = {reward.name: self.rule_settings(reward) for reward in rewards}
        stored: dict[str, dict[str, Score]] = {}
        fresh: dict[str, list[Score]] = {reward.name: [] for reward in rewards}
        missing: list[tuple[Rule, Outline]] = []
        for reward in rewards:
            stored[reward.name], left = work.stored(reward, settings[reward.name])
            missing += [(reward, outline) for outline in left]
        place = {key: at for at, key in enumerate(work.trajectories)}
        missing.sort(key=lambda pair: place[pair[1].key])  # each trajectory is read once

        async def score(pair: tuple[Rule, Outline]) -> None:
            reward, outline = pair
            fresh[reward.name].append(await work.score(reward, outline, inputs[reward.name]))
            await asyncio.sleep(0)  # an interrupt is noticed here: few rules wait for anything

        try:
            run_or_cancel(self._runner, for_each(missing, score, MAX_IN_FLIGHT))
        finally:
            for name, made in fresh.items():
                if made:
                    # Rules are quick: one atomic write in place of a durable line for each.
                    write_jsonl(score_file(work.folder, name, settings[name]), [*stored[name].values(), *made])
        for name in fresh:
            record_settings(work.folder, name, settings[name])
        return {(score.trajectory, name): score for name in fresh for score in (*stored[name].values(), *fresh[name])}

    def _by_judge(self, rewards: Sequence[Judged], work: Work, by_rule: Scores) -> Scores:
        judge_of(self._config, [reward.name for reward in rewards])
        # A stage that was finished can be run again where the judge's server is down: nothing is asked, nothing is new.
        noted = current_settings(work.folder)
        scores = self._stored(
            [reward for reward in rewards if noted.get(reward.name) == self._noted(reward, noted)], work
        )
        if not self._to_judge(rewards, work, by_rule | scores):
            return scores
        judge = self._rewards.judge
        self._engine = self._engine or open_engines(self._config.models, {judge})[judge]
        return run_or_cancel(self._runner, self._judge_all(self._engine, rewards, work, by_rule))

    def stored(
        self, questions: Sequence[Question], trajectories: Trajectories, names: Iterable[str], folder: Path
    ) -> Scores:
        """The judged scores that are stored under the config's settings, of the judge that was asked last."""
        work = Work({question.id: question for question in questions}, trajectories, folder)
        asked = [reward for reward in map(load_reward, names) if isinstance(reward, Judged)]
        return self._stored(asked if self._rewards.judge in self._config.models else (), work)

    def _stored(self, rewards: Iterable[Judged], work: Work) -> Scores:
        noted = current_settings(work.folder)
        known = {reward.name: work.stored(reward, self._noted(reward, noted))[0] for reward in rewards}
        return {(key, name): score for name, found in known.items() for key, score in found.items()}

    def _noted(self, reward: Judged, noted: Mapping[str, Settings]) -> Settings:
        """The config's settings of a score, with the judge that was asked last."""
        return self.judge_settings(reward, noted.get(reward.name, {}).get("fingerprint", ""))

    def _to_judge(self, rewards: Sequence[Judged], work: Work, scores: Scores) -> list[str]:
        """The questions with a score that is missing, or that needs more judge runs."""
        return [
            question
            for question, sampled in work.by_question.items()
            if any((one.key, reward.name) not in scores for one in sampled for reward in rewards)
            or self._undecided(sampled, scores)
        ]

    def _undecided(self, sampled: Sequence[Outline], scores: Scores) -> dict[str, int]:
        """By trajectory of a question that needs more judge runs, how many."""
        if not self._adapts:
            return {}
        rewards = self._rewards
        return undecided(sampled, scores, rewards.weights, rewards.select, rewards.runs.most)

    async def _judge_all(self, engine: Engine, rewards: Sequence[Judged], work: Work, by_rule: Scores) -> Scores:
        concurrency = max_requests(self._rewards.judge, self._config.models[self._rewards.judge])
        judge, prompts = Judge(engine, self._rewards, self._config.seed, concurrency), judge_prompts(self._rewards)
        inputs = self._inputs
        if any(reward.needs_embedder for reward in rewards):
            # A model that is not available is found out before the judge has worked.
            await asyncio.to_thread(inputs.embed, ())
        settings = {reward.name: self.judge_settings(reward, engine.fingerprint) for reward in rewards}
        stored = {reward.name: work.stored(reward, settings[reward.name])[0] for reward in rewards}
        scores = {(key, name): score for name, known in stored.items() for key, score in known.items()}
        left = self._to_judge(rewards, work, by_rule | scores)
        waiting = {one.key for question in left for one in work.by_question[question]}
        with contextlib.ExitStack() as stack:
            writer = content_key(str(work.folder.resolve()))[:8]
            nuggets = stack.enter_context(NuggetStore(RunFolder(self._config.folder).nuggets, judge, prompts, writer))
            segments: dict[str, Segment] = {}
            logs: dict[str, CallLog] = {}
            for name, own in settings.items():
                segments[name] = stack.enter_context(Segment(score_file(work.folder, name, own)))
                finished = work.trajectories.keys() - waiting if self._adapts else stored[name].keys()
                # Replies to scores with few runs are kept, for whoever wants more of them later.
                kept, log_file = kept_log_file(work.folder, name, own), call_log_file(work.folder, name, own)
                others = [file for file in segment_files(kept.parent) if file.path.name == kept.name]
                logs[name] = stack.enter_context(CallLog(kept if self._adapts else log_file, finished, others))
                record_settings(work.folder, name, own)
            total = len(work.trajectories) * len(rewards)
            progress = stack.enter_context(Progress("judge", total, len(scores)))
            tally = Counter({"unfinished": 0, "null": 0})
            for score in scores.values():
                _count(tally, score)

            def asker(reward: Judged, outline: Outline, runs: range) -> ScoreJudge:
                name, key = reward.name, outline.key
                return ScoreJudge(
                    normalise=inputs.normalise,
                    embed=inputs.embed,
                    own_settings=self._own_settings(reward),
                    judge=judge,
                    log=logs[name],
                    prompts={**reward.prompts, **prompts},
                    nuggets=nuggets,
                    scores={other: known[at] for other in reward.after if (at := (key, other)) in known},
                    question=work.questions[outline.question_id],
                    owner=key,
                    name=short_name(name),
                    runs=runs,
                )

            def store(score: Score) -> None:
                segments[score.name].append(score)
                logs[score.name].forget(score.trajectory)

            known = by_rule | scores
            judging = QuestionJudge(
                work=work,
                rewards=rewards,
                scores=known,
                asker=asker,
                undecided=lambda sampled: self._undecided(sampled, known),
                least=self._rewards.runs.least,
                adapts=self._adapts,
                store=store,
                told=lambda score: progress.advance(1, note=_count(tally, score)),
            )
            at_once = 1 + concurrency * len(work.by_question) // total  # questions, so that the judge is never idle
            await for_each([work.by_question[question] for question in left], judging.judge, at_once)
        scores = {at: score for at, score in known.items() if at[1] in settings}
        without = unfinished(scores)
        for name in settings.keys() - {score.name for score in without}:
            call_log_file(work.folder, name, settings[name]).unlink(missing_ok=True)
        if without:
            print(
                f"{len(without)} of {total} judged scores are unfinished, such as: {plain_text(without[0].reason)}\n"
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
        return value is not None and value > (rule.min_reward or 0.0) + TIE

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
    if compared := [key for key, value in ALONE.items() if getattr(rewards.select, key) != value]:
        raise UserError(
            f"sampling.enough: rewards.select.{compared[0]} compares good samples of a question with bad "
            "ones, which are then not sampled; leave one of them out"
        )


def unfinished(scores: Mapping[tuple[str, str], Score]) -> list[Score]:
    """The scores that are unfinished because the judge was not available."""
    return [score for score in scores.values() if score.state == "unfinished"]


def _count(tally: Counter[str], score: Score) -> str:
    """Add a score to the tally of a progress line, and return its note."""
    tally[score.state] += score.state != "scored"
    if score.equal_to:
        tally["equal"] += 1
    else:
        tally["unparsed verdicts"] += score.unparsed
        tally["cut off"] += cut_off(score.verdicts)[0]
    return "  ".join(f"{name} {count}" for name, count in tally.items() if count)
