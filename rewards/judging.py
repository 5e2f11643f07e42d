"""The judged scores of one question's trajectories.

Trajectories of which the judge would be shown the same are judged once, and each has its own record. Where the number
of judge runs may differ (`rewards.runs`), all have the least, and those that `rewards.runs.undecided` names have one
more, until it names none. The scores of a question are then stored together: whoever is interrupted before has its
replies in the call log, and resumes without a call that was made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from ratchet.core.records import Question, Score
from ratchet.core.tasks import gather_or_cancel
from ratchet.inference.engine import asking_about
from ratchet.retrieval.retriever import SourceError
from ratchet.rewards.inputs import Inputs, ScoreJudge
from ratchet.rewards.reward import Judged, JudgeError, PromptTooLong, Reward, Rule, Settings
from ratchet.rewards.store import read_scores
from ratchet.sampling.store import Outline, Trajectories

Scores = dict[tuple[str, str], Score]
"""By (trajectory key, score name)."""


@dataclass(frozen=True)
class Work:
    """The trajectories to score, their questions, and the folder of the scores."""

    questions: Mapping[str, Question]
    trajectories: Trajectories
    folder: Path

    @cached_property
    def by_question(self) -> dict[str, list[Outline]]:
        """The trajectories of each question that has any."""
        groups: dict[str, list[Outline]] = {}
        for outline in self.trajectories.outlines.values():
            groups.setdefault(outline.question_id, []).append(outline)
        return groups

    def stored(self, reward: Reward, settings: Settings) -> tuple[dict[str, Score], list[Outline]]:
        """(the stored scores that count, by trajectory key; the trajectories to score, or to score again where they
        were sampled again)."""
        found = read_scores(self.folder, reward.name, settings, self.trajectories)
        outlines = self.trajectories.outlines.values()
        known = {one.key for one in outlines if one.key in found and found[one.key].content == one.content}
        return {key: found[key] for key in known}, [one for one in outlines if one.key not in known]

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


@dataclass(kw_only=True)
class QuestionJudge:
    """Judges one question after the other."""

    work: Work
    rewards: Sequence[Judged]
    scores: Scores
    """All that are known, those by rules too; `judge` adds to them."""
    asker: Callable[[Judged, Outline, range], ScoreJudge]
    """What a reward asks for the score of a trajectory with, in these judge runs."""
    undecided: Callable[[Sequence[Outline]], dict[str, int]]
    """By trajectory of a question that needs more judge runs, how many."""
    least: int
    adapts: bool
    """Whether the number of runs may differ."""
    store: Callable[[Score], None]
    told: Callable[[Score], None]
    """Is told of the first score of each pair."""
    new: Scores = field(default_factory=dict)
    """Those that are not stored yet."""

    async def judge(self, sampled: Sequence[Outline]) -> None:
        """Score a question's trajectories."""
        runs = dict.fromkeys((one.key for one in sampled), self.least)
        pairs = {(one.key, reward.name) for one in sampled for reward in self.rewards}
        while runs:
            # Precision comes after the rest: it reuses the claims that faithfulness extracted.
            for late in (False, True):
                turn = [reward for reward in self.rewards if bool(reward.after) is late]
                groups = self.work.equal(turn, sampled)
                await gather_or_cancel([self._score_equal(reward, outlines, runs) for reward, outlines in groups])
            if any(self.scores[at].state == "unfinished" for at in pairs):
                break
            runs = self.undecided(sampled)
        else:
            for at in [at for at in self.new if at in pairs]:
                self.store(self.new.pop(at))

    async def _score_equal(self, reward: Judged, outlines: Sequence[Outline], runs: Mapping[str, int]) -> None:
        """Score trajectories of which the judge is shown the same."""
        wanted = max(runs.get(one.key, 0) for one in outlines)
        given = [self.scores[at] for one in outlines if (at := (one.key, reward.name)) in self.scores]
        known = max(given, key=lambda score: len(score.runs), default=None)
        if known is None or 0 < len(known.runs) < wanted:
            judged = known and (known.equal_to or known.trajectory)
            known = await self._ask(reward, next((one for one in outlines if one.key == judged), outlines[0]), wanted)
            self._keep(known)
        for one in outlines:
            own = self.scores.get((one.key, reward.name))
            if own is None or len(own.runs) < len(known.runs):
                self._keep(equal_score(known, one))

    async def _ask(self, reward: Judged, outline: Outline, runs: int) -> Score:
        with asking_about(outline.question_id):  # what is asked of one answer begins alike: one server, of several
            score = await self._judge(reward, outline, range(runs))
            if not self.adapts or score.state == "unfinished" or not score.verdicts:
                return score
            # The replies are in the log: nothing is asked again.
            alone = [await self._judge(reward, outline, range(run, run + 1)) for run in range(runs)]
            return score.model_copy(update={"runs": tuple(one.value for one in alone)})

    async def _judge(self, reward: Judged, outline: Outline, runs: range) -> Score:
        judge = self.asker(reward, outline, runs)
        try:
            return judge.finish(await self.work.score(reward, outline, judge, reward.empty(judge.settings)))
        except PromptTooLong as error:
            return reward.make_score(outline, None, str(error))
        except (JudgeError, SourceError) as error:
            return reward.make_score(outline, None, str(error), "unfinished")

    def _keep(self, score: Score) -> None:
        at = score.trajectory, score.name
        is_first = at not in self.scores
        self.scores[at] = score
        if self.adapts:
            self.new[at] = score
        elif score.state != "unfinished":
            self.store(score)
        if is_first:
            self.told(score)


def equal_score(score: Score, outline: Outline) -> Score:
    """The score of a trajectory of which the judge would be shown the same."""
    verdicts = tuple({name: value for name, value in one.items() if name != "tokens"} for one in score.verdicts)
    own = {"trajectory": outline.key, "content": outline.content, "equal_to": score.equal_to or score.trajectory}
    return score.model_copy(update={**own, "verdicts": verdicts})
