"""What a reward's `score` may use beside the question and the trajectory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ratchet.agents.core.prompts import Prompts
from ratchet.core.config import RewardsConfig
from ratchet.core.records import Question
from ratchet.core.selection import Score
from ratchet.core.text import Normalise
from ratchet.retrieval.encoders.limits import Embed
from ratchet.rewards.judge import CallLog, Judge, JudgeRequest, R, Verdict
from ratchet.rewards.material import fill
from ratchet.rewards.nuggets import NuggetStore


@dataclass(frozen=True)
class Inputs:
    """What a rule may use."""

    normalise: Normalise
    """What `rewards.normalisation` names."""
    embed: Embed
    """Texts to their unit vectors, by the config's `embedder`."""


@dataclass
class ScoreJudge:
    """The judge as one score of a trajectory or a group asks it, and what else a judged reward may use."""

    judge: Judge
    log: CallLog
    prompts: Prompts
    """The judge's prompts, by slot."""
    nuggets: NuggetStore
    embed: Embed
    """Texts to their unit vectors, by the config's `embedder`."""
    scores: Mapping[str, Score]
    """By name, the trajectory's scores that the reward is given after (`rewards.reward.Judged.after`)."""
    question: Question
    owner: str
    """The trajectory's key, or the group's."""
    name: str
    """The reward's short name."""
    verdicts: list[dict[str, Any]] = field(default_factory=list)
    """What the judge answered, for the score's record; `ask` adds to it."""
    unparsed: int = 0

    @property
    def settings(self) -> RewardsConfig:
        """The config's `rewards`."""
        return self.judge.settings

    @property
    def runs(self) -> range:
        """The numbers of the judge's runs."""
        return range(self.settings.runs)

    def prompt(self, slot: str, **material: Any) -> str:
        """The prompt of a slot, every value of `material` as JSON."""
        return fill(self.prompts, slot, self.question, **material)

    def check_fit(self, prompt: str) -> None:
        """Raises PromptTooLong for a prompt that does not fit the judge's context."""
        self.judge.check_fit(prompt)

    async def ask_all(self, requests: Sequence[JudgeRequest[R]]) -> list[Verdict[R]]:
        """The verdicts, in order. Raises PromptTooLong, and JudgeError when all are done and some were not served."""
        return await self.judge.ask_all(requests, self.owner, self.log)

    def finish(self, score: Score) -> Score:
        """The score with what the judge answered."""
        return score.model_copy(update={"verdicts": tuple(self.verdicts), "unparsed": self.unparsed})

    async def ask(self, prompt: str, reply: type[R]) -> list[R | None]:
        """The judge's replies to a prompt, one for each of `rewards.runs`; None where it is not the JSON of `reply`.

        A prompt that does not fit the judge's context, and a judge that cannot be reached, end the score by an
        exception that is not to be caught: it then is null, or unfinished.
        """
        verdicts = await self.ask_all([JudgeRequest(prompt, reply, (self.name, self.owner, run)) for run in self.runs])
        self.verdicts += [verdict.record(part="reply", run=run) for run, verdict in enumerate(verdicts)]
        self.unparsed += sum(verdict.value is None for verdict in verdicts)
        return [verdict.value for verdict in verdicts]
