"""A reward: one file that scores trajectories, found by its name and called with what it asks for.

A reward is a module in `rewards/builtin/`, or code outside of it (`ratchet.plugins`), with

    def score(question, trajectory) -> float | None | tuple[float | None, str]

The value is from 0 to 1, or None where it cannot be told, and then the text says why. A trajectory that failed or has
no answer, and a question that lacks what the score compares with, never reach `score` (`fixed_score`). `score` may be
async, and may have these parameters by name:

    judge      the judge's model (`rewards.judge.ScoreJudge`); `score` is then async, and the score a judged one
    embed      texts -> their unit vectors, by the config's `embedder`

The module may define

    TITLE      what tables call the score; default: the module's name
    NEEDS      fields of a question, such as ("answers", "reference"), of which the score needs one

and a built-in one, which the source's digest does not identify, also

    VERSION                     what changes when its values change: stored scores of another version are not reused
    PROMPTS                     the slots of the judge's prompts (`rewards.prompts.PROMPTS`) that it asks with
    AFTER                       scores of the same trajectory that are computed before, where they are asked for
    why_unscorable(question)    why no answer to the question can be scored, where NEEDS does not tell; empty: it can
    nuggets, scores, normalise  further parameters of `score`: the run's `NuggetStore`, the scores of AFTER by name, and
                                what `rewards.normalisation` names

A trajectory without an answer, or that did not finish, never scores above a wrong answer to its question:
- Without an answer, however it ended: every score is 0, and no judge is called. An answer in words that the judge calls
  an abstention is an answer, and keeps the scale of its score.
- Ended unparsed or out of budget, with an answer: a score is that of the answer, for whoever looks at answers alone
  (lenient measures). What else counts it is decided by `strict_value` alone: rewards, the choice of an adapter and an
  evaluation's primary measure by `rewards.select.keep_status`, strict measures as the worst, and those "as returned" as
  the answer's where it ended out of budget.
- Failed (a fault of a server or machine, not of the agent): scores and reward are null, since it is sampled again.
  Strict measures count the worst.

A question that lacks what a score compares with gives null to all of its trajectories, however they ended.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from numbers import Real
from types import ModuleType
from typing import Any

from ratchet.config import RewardsConfig
from ratchet.errors import UserError, did_you_mean
from ratchet.plugins import Plugin, is_path, known_plugins, load_plugin, resolve_path, short_name
from ratchet.records import Question, Score, Status, Trajectory
from ratchet.text import short_line
from rewards.prompts import PROMPTS

ENDINGS_VERSION = 2
"""Raise it when the score of a trajectory without an answer changes: stored judged scores of another version are not
reused."""

RETURNED: tuple[Status, ...] = ("finished", "out_of_budget")
"""Ways of ending in which a system returns its answer: mRAG's algorithm 1 does at the end of the budget too."""

FOR_EVERYONE = ("judge", "embed")
FOR_BUILT_IN = (*FOR_EVERYONE, "nuggets", "scores", "normalise")


@dataclass(frozen=True)
class Reward:
    """A reward that was found."""

    name: str
    """As the config has it."""
    title: str
    needs: tuple[str, ...]
    """Fields of a question, of which the score needs one; empty where it needs none."""
    after: tuple[str, ...]
    version: int | str
    """What changes when its values change: of outside code, the digest of its source."""
    plugin: Plugin
    is_async: bool
    prompts: tuple[str, ...]
    """The slots of the judge's prompts that its values depend on."""
    asks_for: frozenset[str]
    """The parameters of `score` beside the question and the trajectory."""

    @property
    def is_outside(self) -> bool:
        """Whether its code is not ours."""
        return self.plugin.is_outside

    @property
    def module(self) -> ModuleType:
        return self.plugin.module

    @property
    def needs_judge(self) -> bool:
        return "judge" in self.asks_for

    @property
    def needs_embedder(self) -> bool:
        return "embed" in self.asks_for

    def why_unscorable(self, question: Question) -> str:
        """Why no answer to the question can be given this score; empty where one can."""
        if (told := getattr(self.module, "why_unscorable", None)) is not None:
            with self.plugin.errors(f"why_unscorable() failed on the question {question.id!r}"):
                return str(told(question))
        if not self.needs or any(getattr(question, field) for field in self.needs):
            return ""
        *others, last = self.needs
        if len(others) > 1:
            return f"the question has no {', '.join(others)} or {last}"
        return "the question has " + " and ".join(f"no {field}" for field in self.needs)

    def run(self, question: Question, trajectory: Trajectory, inputs: Mapping[str, Any]) -> Any:
        """What `score` returns: a value, or an awaitable of one where the reward is async."""
        return self.module.score(
            question, trajectory, **{name: inputs[name] for name in self.asks_for if name in inputs}
        )

    def make_score(self, trajectory: Trajectory, result: Any) -> Score:
        """The record of what `score` returned. Raises UserError for what is no score."""
        with self.plugin.errors(f"score() returned no score for the trajectory {trajectory.key}"):
            return self._record(trajectory, result)

    def _record(self, trajectory: Trajectory, result: Any) -> Score:
        if isinstance(result, Score):
            return result
        value, reason = result if isinstance(result, tuple) and len(result) == 2 else (result, "")
        if value is not None and not (isinstance(value, Real) and 0 <= float(value) <= 1):
            raise UserError(
                f"{self.name}: score() returned {short_line(repr(result))} for the trajectory {trajectory.key}; it "
                "returns a number from 0 to 1, or None, or (None, why)"
            )
        if value is None and not reason:
            reason = "the reward gives it no value"
        found = None if value is None else float(value)
        return Score(trajectory=trajectory.key, name=self.name, value=found, reason=str(reason))

    def errors(
        self, question: Question, trajectory: Trajectory, *passing: type[Exception]
    ) -> AbstractContextManager[None]:
        """What outside code raises in the block becomes a UserError; `passing` is raised as it is."""
        failed = f"score() failed on the trajectory {trajectory.key} of the question {question.id!r}"
        return self.plugin.errors(failed, *passing)


def known_rewards() -> list[str]:
    """The names of the rewards in rewards/builtin/, and of those that installed packages declare."""
    return known_plugins("rewards")


_loaded: dict[tuple[str, object], Reward] = {}


def load_reward(name: str, key: str = "rewards.weights") -> Reward:
    """The reward of a name. `key`: the config's key that names it, for errors. Raises UserError.

    A file is read again when it was changed.
    """
    at = (name, _stamp(name))
    if at not in _loaded:
        plugin = load_plugin("rewards", name, ("score",), key)
        with plugin.errors("is not a reward as rewards/reward.py describes it"):
            _loaded[at] = _make(plugin, key)
    return _loaded[at]


def judged(names: Iterable[str]) -> list[str]:
    """Those of the scores that a judge gives."""
    return [name for name in names if load_reward(name).needs_judge]


def judge_of(rewards: RewardsConfig, models: Collection[str], names: Iterable[str]) -> set[str]:
    """The name of the model that gives these scores; empty where none is judged. UserError where it is missing.

    `models`: the names under the config's `models`.
    """
    needing, judge = sorted(judged(names)), rewards.judge
    if needing and judge not in models:
        known = f" (known: {', '.join(sorted(models))})" if models else ""
        raise UserError(
            f"{' and '.join(needing)} need a judge, and rewards.judge names {judge!r}, which is not under models"
            f"{known}; add it, or name scores by rules, such as `rewards: {{weights: {{f1: 1.0}}}}`"
        )
    return {judge} if needing else set()


def _stamp(name: str) -> object:
    """What changes when the file that a path names does."""
    if not is_path(name):
        return None
    file = resolve_path(name).resolve()
    files = file.parent.rglob("*.py") if file.name == "__init__.py" else [file]
    return tuple(sorted((str(one), one.stat().st_mtime_ns, one.stat().st_size) for one in files if one.is_file()))


def _make(plugin: Plugin, key: str) -> Reward:
    module, is_outside = plugin.module, plugin.is_outside
    where = f"{key}: {plugin.name}"
    parameters = list(inspect.signature(module.score).parameters.values())
    if len(parameters) < 2:
        raise UserError(f"{where}: score takes the question and the trajectory, as its first two parameters")
    allowed = FOR_EVERYONE if is_outside else FOR_BUILT_IN
    asks_for = frozenset(one.name for one in parameters[2:] if one.name in allowed)
    for one in parameters[2:]:
        if one.name not in allowed and one.default is one.empty:
            raise UserError(
                f"{where}: score has the parameter {one.name!r}; beside the question and the trajectory it may have "
                f"{' and '.join(allowed)}{did_you_mean(one.name, allowed)}"
            )
    is_async = inspect.iscoroutinefunction(module.score)
    if "judge" in asks_for and not is_async:
        raise UserError(f"{where}: score asks a judge, which answers later: write `async def score`")
    needs = tuple(getattr(module, "NEEDS", ()))
    for field in needs:
        if field not in Question.model_fields:
            raise UserError(
                f"{where}: NEEDS: a question has no field {field!r}{did_you_mean(field, Question.model_fields)}"
            )
    return Reward(
        name=plugin.name,
        title=str(getattr(module, "TITLE", short_name(plugin.name))),
        needs=needs,
        after=tuple(getattr(module, "AFTER", ())),
        version=plugin.digest or module.VERSION,
        plugin=plugin,
        is_async=is_async,
        # What outside code asks a judge is its own; it may ask with any of ours as well.
        prompts=(tuple(PROMPTS) if "judge" in asks_for else ())
        if is_outside
        else tuple(getattr(module, "PROMPTS", ())),
        asks_for=asks_for,
    )


def has_answer(trajectory: Trajectory) -> bool:
    """Whether the trajectory ended with an answer in words, finished or not."""
    return bool(trajectory.answer.strip())


def fixed_score(name: str, question: Question, trajectory: Trajectory) -> Score | None:
    """The score that the question or the ending alone determines; None where the answer has to be scored."""
    value, reason = None, ""
    if trajectory.status == "failed":
        reason = "the trajectory failed"
    elif problem := load_reward(name).why_unscorable(question):
        reason = problem
    elif not has_answer(trajectory):
        value, reason = 0.0, "the answer is empty"
    else:
        return None
    return Score(trajectory=trajectory.key, name=name, value=value, reason=reason)


def strict_value(
    value: float | None,
    names: Iterable[str],
    question: Question,
    trajectory: Trajectory,
    keep_status: Collection[str] = ("finished",),
    worst: float = 0.0,
) -> float | None:
    """`value`, computed from the scores `names`, as rewards and strict measures count it.

    It is `worst` where the trajectory has no answer or ended in none of the ways `keep_status`; but None where the
    question cannot be scored.
    """
    if has_answer(trajectory) and trajectory.status in keep_status:
        return value
    return None if any(load_reward(name).why_unscorable(question) for name in names) else worst


def rule_score(name: str, question: Question, trajectory: Trajectory, inputs: Mapping[str, Any] | None = None) -> Score:
    """One score of a trajectory by a reward that is neither judged nor async, null with a reason where it has no value.

    A trajectory that failed or has no answer gets its `fixed_score`. One that ended unparsed or out of budget is scored
    on its answer.
    """
    if (score := fixed_score(name, question, trajectory)) is not None:
        return score
    reward = load_reward(name)
    with reward.errors(question, trajectory):
        result = reward.run(question, trajectory, inputs or {})
    return reward.make_score(trajectory, result)
