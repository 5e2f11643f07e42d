"""A reward: one file that scores trajectories, found by its name.

A reward is a module that declares `REWARD`, a `Rule` or a `Judged`: its title, what it needs of a question, and its
function `score`. So do the files of `rewards/builtin/`. Code outside of it (core/plugins.py) may as well be a module
with nothing but

    def score(question, trajectory) -> float | dict[str, float] | None | tuple[float | dict[str, float] | None, str]

The value is from 0 to 1, or None where it cannot be told, and then the text says why. A dictionary has a value for each
role, which then learns by its own (`rewards.selection`). The function may be async, and may have the parameters
`embed` (texts -> their unit vectors, by the config's `embedder`), `judge` (the judge's model,
`rewards.inputs.ScoreJudge`; it is then async, and the score a judged one) and `settings` (those that the config gives
it, an object of the module's class `Settings`). The module may define TITLE, the score's name in tables; NEEDS, fields
of a question such as ("answers", "reference"), of which the score needs one; and COST = True, by which values are from
0 up, such as a count.

A trajectory that failed or has no answer, and a question that lacks what the score compares with, never reach them
(`Reward.fixed_score`). A trajectory without an answer, or that did not finish, never scores above a wrong answer to its
question:
- Without an answer, however it ended: every score is 0, and no judge is called (but for correctness there is a setting,
  `rewards.empty_response`). Costs are counted, and the reward is the least there is (`rewards.selection.reward`). An
  answer in words that the judge calls an abstention is an answer, and keeps
  the scale of its score.
- Ended unparsed or out of budget, with an answer: a score is that of the answer, as lenient measures count it. For
  others `strict_value` decides: rewards, the choice of an adapter and an evaluation's primary measure by
  `rewards.select.keep_status`, strict measures as the worst, and those "as returned" as the answer's where it ended out
  of budget.
- Failed (a fault of a server or machine, not of the agent): scores and reward are null, since it is sampled again.
  Strict measures count the worst.

A question that lacks what a score compares with gives null to all of its trajectories, however they ended.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from numbers import Real
from statistics import fmean
from types import ModuleType
from typing import Any, Protocol

from ratchet.agents.core.prompts import Prompts
from ratchet.core.config import Config, RewardsConfig, ScoreName, Section
from ratchet.core.errors import UserError, did_you_mean
from ratchet.core.parsing import parse
from ratchet.core.plugins import Plugin, is_path, load_plugin, resolve_path, short_name
from ratchet.core.records import Question, Score, ScoreState, Status, Trajectory
from ratchet.core.text import short_line
from ratchet.sampling.store import Outline

ENDINGS_VERSION = 2
"""Raise it when the score of a trajectory without an answer changes: stored judged scores of another version are not
reused."""

RETURNED: tuple[Status, ...] = ("finished", "out_of_budget")
"""Ways of ending in which a system returns its answer: mRAG's algorithm 1 does at the end of the budget too."""

PARAMETERS = ("judge", "embed", "settings")
"""Parameters that the function of outside code may ask for by name."""

Value = float | Mapping[str, float] | None
Result = Value | tuple[Value, str]
"""A value from 0 to 1, one for each role, or None where there is none; a text beside it says why."""

Settings = dict[str, Any]
"""Everything that a score's value depends on besides the trajectory and its question."""


class PromptTooLong(Exception):
    """A prompt that, with room for a short reply, does not fit the judge's context. Documents are never trimmed."""


class JudgeError(Exception):
    """The engine did not serve every call of a score: the score is unfinished, and the next run resumes it."""


class Ended(Protocol):
    """A trajectory's outline, or the whole record: either tells how it ended."""

    @property
    def key(self) -> str: ...
    @property
    def question_id(self) -> str: ...
    @property
    def status(self) -> Status: ...
    @property
    def answer(self) -> str: ...


@dataclass(frozen=True, kw_only=True)
class Reward:
    """The fields that a rule and a judged reward have in common."""

    score: Callable[[Question, Trajectory, Any], Result | Awaitable[Result]]
    """The third argument is what it may use: `rewards.inputs.Inputs`, or the `ScoreJudge` of a judged reward, which may
    raise PromptTooLong and JudgeError."""
    title: str
    version: int | str
    """Raise it when values change: stored scores of another version are not reused. Outside code has its digest."""
    needs: tuple[str, ...] = ()
    """Fields of a question, of which the score needs one; empty where it needs none."""
    unscorable: Callable[[Question], str] | None = None
    """Why no answer to a question can be scored, empty where one can, where `needs` cannot tell that."""
    needs_embedder: bool = False
    against_documents: bool = False
    """True: it compares the answer with the documents that came with it. A system that looks nothing up is not measured
    by it."""
    is_cost: bool = False
    """True: values are from 0 up, such as a count, and an answer without words has one as well."""
    own_settings: type[Section] | None = None
    """The class of the settings that a config may give it; None where there are none."""
    scale: tuple[int, int] | None = None
    """The least and the greatest value on the judge's own scale, where a measure shows it beside the normalised one."""
    name: str = ""
    """As the config has it. `load_reward` sets it."""
    outside: Plugin | None = None
    """The code that it is, where that is not ours. `load_reward` sets it."""

    @property
    def is_outside(self) -> bool:
        return self.outside is not None

    @property
    def needs_judge(self) -> bool:
        return isinstance(self, Judged)

    def why_unscorable(self, question: Question) -> str:
        """Why no answer to the question can be given this score; empty where one can."""
        if self.unscorable is not None:
            return self.unscorable(question)
        if not self.needs or any(getattr(question, field) for field in self.needs):
            return ""
        return "the question has " + " and ".join(f"no {field}" for field in self.needs)

    async def apply(self, question: Question, outline: Outline, whole: Mapping[str, Trajectory], given: Any) -> Score:
        """The score of a trajectory that has no fixed one. `whole`: trajectories by key; `given`: what `score` may use.
        Raises UserError for what is no score, and whatever a judged reward raises."""
        trajectory, where = whole[outline.key], f"the trajectory {outline.key} of the question {question.id!r}"
        with self._errors(f"score() failed on {where}"):
            result = self.score(question, trajectory, given)
            if inspect.isawaitable(result):
                result = await result
        with self._errors(f"score() returned no score for {where}"):
            value, reason = result if isinstance(result, tuple) and len(result) == 2 else (result, "")
            if value is None:
                return self.make_score(outline, None, str(reason or "the reward gives it no value"))
            by_role = dict(value) if isinstance(value, Mapping) else {}
            values = list(by_role.values()) if isinstance(value, Mapping) else [value]
            if not values or not all(map(self._is_value, values)):
                raise UserError(
                    f"{self.name}: score() returned {short_line(repr(result))} for {where}; a value is a number from 0 "
                    f"{'up' if self.is_cost else 'to 1'}, or None, or (None, why), or a dictionary of roles with a "
                    "number for each"
                )
            trained = {one.role for one in trajectory.conversations if one.trainable}
            if by_role and (missing := sorted(trained - by_role.keys())):
                raise UserError(
                    f"{self.name}: score() returned {short_line(repr(result))} for {where}; give every role that is "
                    f"trained a value ({', '.join(missing)}{did_you_mean(missing[0], by_role)})"
                )
            score = self.make_score(outline, fmean(map(float, values)), str(reason))
            own = {role: float(given) for role, given in by_role.items() if role in trained}
            return score.model_copy(update={"roles": own})

    def _is_value(self, value: Any) -> bool:
        most = math.inf if self.is_cost else 1
        return isinstance(value, Real) and 0 <= float(value) <= most and math.isfinite(value)

    def read_settings(self, given: Mapping[str, Any]) -> Section | None:
        """The settings that a config gives it, checked; None where it has none. Raises UserError."""
        key = f"rewards.weights: {self.name}: settings"
        if self.own_settings is not None:
            return parse(self.own_settings, dict(given), "", key)
        if given:
            hint = "; let score() have the parameter settings, and define a class Settings" if self.is_outside else ""
            raise UserError(f"{key}: {', '.join(given)}: this score has no settings{hint}")
        return None

    def make_score(self, trajectory: Outline, value: float | None, reason: str, state: ScoreState = "scored") -> Score:
        """The record of a value. `state`: `unfinished` where it is to be tried again; without a value it is null."""
        return Score(
            trajectory=trajectory.key,
            name=self.name,
            value=value,
            state="null" if value is None and state == "scored" else state,
            reason=reason,
            content=trajectory.content,
        )

    def fixed_score(self, question: Question, trajectory: Outline, empty: float = 0.0) -> Score | None:
        """The score that the question or the ending alone determines; None where the answer has to be scored. `empty`:
        that of an answer without words."""
        if trajectory.status == "failed":
            return self.make_score(trajectory, None, "the trajectory failed")
        if problem := self.why_unscorable(question):
            return self.make_score(trajectory, None, problem)
        if not has_answer(trajectory) and not self.is_cost:
            return self.make_score(trajectory, empty, "the answer is empty")
        return None

    def _errors(self, problem: str) -> AbstractContextManager[None]:
        """Turn errors of outside code in the block into a UserError, except those of its judge."""
        return nullcontext() if self.outside is None else self.outside.errors(problem, PromptTooLong, JudgeError)


@dataclass(frozen=True, kw_only=True)
class Rule(Reward):
    """A reward without a judge."""

    normalises: bool = False
    """True: values depend on `rewards.normalisation`."""


@dataclass(frozen=True, kw_only=True)
class Judged(Reward):
    """A reward by the judge's model."""

    prompts: Prompts = field(default_factory=dict)
    """The judge's prompts that it asks with, by slot, in our own words."""
    after: tuple[str, ...] = ()
    """Scores of the same trajectory that are computed before, where they are asked for."""
    judged: Callable[[Trajectory], Hashable] | None = None
    """The part of a trajectory that the judge is shown, by which equal answers to a question are judged once; None: all
    of it, so that none are equal."""
    settings: tuple[str, ...] = ()
    """Keys under `rewards` that this score depends on and not every judged one."""
    empty: Callable[[RewardsConfig], float] = lambda rewards: 0.0
    """The score of an answer without words."""


_loaded: dict[tuple[str, object], Rule | Judged] = {}


def load_reward(name: str, key: str = "rewards.weights") -> Rule | Judged:
    """The reward of a name; a file is read again when it was changed. The name in a record, which is plain text, is
    that of the file that a config last named so. `key`: the config's key that names it, for errors. Raises
    UserError."""
    path = _path_of(name)
    at = (str(name), _stamp(path))
    if at not in _loaded:
        plugin = load_plugin("rewards", path, (), key)
        with plugin.errors("is not a reward as rewards/reward.py describes it"):
            given = plugin.declared("REWARD")
            declared = given if isinstance(given, (Rule, Judged)) else _declare(plugin, key)
        if plugin.is_outside:
            declared = replace(declared, version=plugin.digest, outside=plugin)
        _loaded[at] = replace(declared, name=str(name))
    return _loaded[at]


_found: dict[str, str] = {}
"""By the names of scores in configs, where their files were found."""


def _path_of(name: str) -> str:
    if isinstance(name, ScoreName):
        _found[str(name)] = name.path
        return name.path
    return name if not is_path(name) or resolve_path(name).exists() else _found.get(name, name)


def judged(names: Iterable[str]) -> list[str]:
    """Those of the scores that a judge gives."""
    return [name for name in names if load_reward(name).needs_judge]


def check_weights(weights: Mapping[str, float]) -> None:
    """Raises UserError for weights that are not finite, of which none is above 0, or one of a cost is."""
    bad = {name: weight for name, weight in weights.items() if not math.isfinite(weight)}
    if bad or not any(weight > 0 for weight in weights.values()):
        shown = ", ".join(f"{name}={weight}" for name, weight in (bad or dict(weights)).items()) or "none given"
        raise UserError(f"rewards.weights: {shown}; weights are numbers, one of them above 0")
    for name, weight in weights.items():
        if weight > 0 and load_reward(name).is_cost:
            raise UserError(
                f"rewards.weights: {name}={weight:g}: it is a cost; give it a weight below 0, such as -0.05"
            )


def judge_of(config: Config, names: Iterable[str]) -> set[str]:
    """The name of the model that gives these scores; empty where none is judged. UserError where it is missing."""
    needing, judge = sorted(judged(names)), config.rewards.judge
    if needing and judge not in config.models:
        known = f" (known: {', '.join(sorted(config.models))})" if config.models else ""
        raise UserError(
            f"{' and '.join(needing)} need a judge, and rewards.judge names {judge!r}, which is not under models"
            f"{known}; add it, or name scores by rules, such as `rewards: {{weights: {{f1: 1.0}}}}`"
        )
    return {judge} if needing else set()


def _stamp(name: str) -> object:
    """A value that changes when the file that a path names changes."""
    if not is_path(name):
        return None
    file = resolve_path(name).resolve()
    files = file.parent.rglob("*.py") if file.name == "__init__.py" else [file]
    return tuple(sorted((str(path), path.stat().st_mtime_ns, path.stat().st_size) for path in files if path.is_file()))


def _declare(plugin: Plugin, key: str) -> Rule | Judged:
    """The declaration of outside code, which is a module with `score`. Raises UserError where it is no reward."""
    module, where = plugin.module, f"{key}: {plugin.name}"
    if not hasattr(module, "score"):
        raise UserError(f"{where} defines no score, and a reward has one")
    score, needs = module.score, tuple(getattr(module, "NEEDS", ()))
    asks_for = _parameters(score, where)
    for name in needs:
        if name not in Question.model_fields:
            raise UserError(
                f"{where}: NEEDS: a question has no field {name!r}{did_you_mean(name, Question.model_fields)}"
            )
    about: dict[str, Any] = {
        "title": str(getattr(module, "TITLE", short_name(plugin.name))),
        "version": 0,
        "needs": needs,
        "needs_embedder": "embed" in asks_for,
        "is_cost": bool(getattr(module, "COST", False)),
        "own_settings": _settings_class(module, where) if "settings" in asks_for else None,
    }

    def call(question: Question, trajectory: Trajectory, given: Any) -> Any:
        parts = {"judge": given, "embed": given.embed, "settings": given.own_settings}
        return score(question, trajectory, **{name: parts[name] for name in asks_for})

    if "judge" not in asks_for:
        return Rule(score=call, **about)
    if not inspect.iscoroutinefunction(score):
        raise UserError(f"{where}: score asks a judge, which answers later: write `async def score`")
    return Judged(score=call, **about)


def _parameters(score: Callable[..., Any], where: str) -> set[str]:
    """The names of `PARAMETERS` that outside code's function has. Raises UserError for any other."""
    parameters = list(inspect.signature(score).parameters.values())
    if len(parameters) < 2:
        raise UserError(f"{where}: score takes the question and the trajectory as the first two parameters")
    for parameter in parameters[2:]:
        if parameter.name not in PARAMETERS and parameter.default is parameter.empty:
            raise UserError(
                f"{where}: score has the parameter {parameter.name!r}; after the first two it may have "
                f"{', '.join(PARAMETERS)}{did_you_mean(parameter.name, PARAMETERS)}"
            )
    return {parameter.name for parameter in parameters[2:]} & set(PARAMETERS)


def _settings_class(module: ModuleType, where: str) -> type[Section]:
    kind = getattr(module, "Settings", None)
    if not (isinstance(kind, type) and issubclass(kind, Section)):
        raise UserError(
            f"{where}: score has the parameter settings; define a class Settings(Section) with the keys that a config "
            "may set (from ratchet.core.config import Section)"
        )
    return kind


def has_answer(trajectory: Ended) -> bool:
    """Tell whether the trajectory ended with an answer in words, finished or not."""
    return bool(trajectory.answer.strip())


def strict_value(
    value: float | None,
    names: Collection[str],
    question: Question,
    trajectory: Ended,
    keep_status: Collection[str] = ("finished",),
    worst: float = 0.0,
) -> float | None:
    """`value`, computed from the scores `names`, as rewards and strict measures count it: `worst` where the trajectory
    has no answer that its scores give more, or ended in none of the ways `keep_status`; None for a question that cannot
    be scored."""
    has_worth = has_answer(trajectory) or bool(value is not None and value > worst and judged(names))
    if has_worth and trajectory.status in keep_status:
        return value
    return None if any(load_reward(name).why_unscorable(question) for name in names) else worst
