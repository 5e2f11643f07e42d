"""The inputs that a reward's `score` may use beside the question and the trajectory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ratchet.agents.core.prompts import Prompts
from ratchet.core.config import RewardsConfig, Section
from ratchet.core.records import Question, Score
from ratchet.core.text import Normalise
from ratchet.retrieval.encoders.limits import Embed
from ratchet.rewards.judge import CallLog, Judge, JudgeRequest, R, Verdict, cut_off
from ratchet.rewards.nuggets import NuggetStore
from ratchet.rewards.prompts import fill


@dataclass(kw_only=True)
class Inputs:
    """The inputs of a rule."""

    normalise: Normalise
    """The normalisation of answers that `rewards.normalisation` names."""
    embed: Embed
    """Texts to their unit vectors, by the config's `embedder`."""
    own_settings: Section | None = None
    """The settings that the config gives the reward."""


@dataclass(kw_only=True)
class ScoreJudge(Inputs):
    """The judge as one score of a trajectory asks it, and what else a judged reward may use."""

    judge: Judge
    log: CallLog
    prompts: Prompts
    """The judge's prompts, by slot."""
    nuggets: NuggetStore
    scores: Mapping[str, Score]
    """By name, the trajectory's scores that the reward is given after (`rewards.reward.Judged.after`)."""
    question: Question
    owner: str
    """The trajectory's key."""
    name: str
    runs: range
    """The numbers of the judge runs."""
    verdicts: list[dict[str, Any]] = field(default_factory=list)
    """The judge's answers, for the score's record; `ask` adds to them."""
    unparsed: int = 0

    @property
    def settings(self) -> RewardsConfig:
        return self.judge.settings

    def prompt(self, slot: str, **material: Any) -> str:
        """The prompt of a slot, every value of `material` as JSON."""
        return fill(self.prompts, slot, self.question, **material)

    async def ask_all(self, requests: Sequence[JudgeRequest]) -> list[Verdict]:
        """The verdicts, in order. Raises PromptTooLong, and JudgeError when all are done and some were not served."""
        return await self.judge.ask_all(requests, self.owner, self.log)

    def finish(self, score: Score) -> Score:
        """Add the judge's answers to the score."""
        reason, (cut, _) = score.reason, cut_off(self.verdicts)
        if cut and score.value is None:
            reason += f"; {cut} of {len(self.verdicts)} replies were cut off (raise max_context of the judge)"
        given = {"reason": reason, "verdicts": tuple(self.verdicts), "unparsed": self.unparsed}
        return score.model_copy(update=given)

    async def ask(self, prompt: str, reply: type[R]) -> list[R | None]:
        """The judge's replies to a prompt, one for each of `runs`; None where it is not the JSON of `reply`.
        Let PromptTooLong and JudgeError pass: the score is then null, or unfinished."""
        verdicts = await self.ask_all([JudgeRequest(prompt, reply, (self.name, self.owner, run)) for run in self.runs])
        told = zip(self.runs, verdicts, strict=True)
        self.verdicts += [verdict.stored(part="reply", run=run) for run, verdict in told]
        replies = [verdict.read(reply) for verdict in verdicts]
        self.unparsed += replies.count(None)
        return replies
