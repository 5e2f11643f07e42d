"""A reward: one file that scores trajectories, found by its name.

A reward is a module that declares `REWARD`, a `Rule` or a `Judged`: its title, what it needs of a question, and its
function `score`. So do the files of `rewards/builtin/`. Code outside of it (core/plugins.py) may as well be a module
with nothing but

    def score(question, trajectory) -> float | None | tuple[float | None, str]

or, where the value of one trajectory depends on the question's others, such as its place among them,

    def score_group(question, trajectories) -> one such value for each, in their order

The value is from 0 to 1, or None where it cannot be told, and then the text says why. Either may be async, and may have
these parameters by name:

    judge      the judge's model (`rewards.inputs.ScoreJudge`); it is then async, and the score a judged one
    embed      texts -> their unit vectors, by the config's `embedder`

and the module may define

    TITLE      what tables call the score; default: the module's name
    NEEDS      fields of a question, such as ("answers", "reference"), of which the score needs one

A trajectory that failed or has no answer, and a question that lacks what the score compares with, never reach them
(`Reward.fixed_score`). A trajectory without an answer, or that did not finish, never scores above a wrong answer to its
question:
- Without an answer, however it ended: every score is 0, and no judge is called (but for correctness there is a setting,
  `rewards.correctness.empty_response`). An answer in words that the judge calls an abstention is an answer, and keeps
  the scale of its score.
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
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ratchet.agents.core.prompts import Prompts
from ratchet.core.config import Config, RewardsConfig, ScoreName
from ratchet.core.errors import UserError, did_you_mean
from ratchet.core.plugins import Plugin, is_path, known_plugins, load_plugin, resolve_path, short_name
from ratchet.core.records import Question, Status, Trajectory, content_key
from ratchet.core.selection import Score, ScoreState
from ratchet.core.text import short_line
from ratchet.rewards.store import Settings, current_settings, stored_scores
from ratchet.sampling.trajectories import Outline

if TYPE_CHECKING:
    from ratchet.rewards.inputs import Inputs, ScoreJudge  # late: a name is looked up without what opens models

ENDINGS_VERSION = 2
"""Raise it when the score of a trajectory without an answer changes: stored judged scores of another version are not
reused."""

RETURNED: tuple[Status, ...] = ("finished", "out_of_budget")
"""Ways of ending in which a system returns its answer: mRAG's algorithm 1 does at the end of the budget too."""

PARAMETERS = ("judge", "embed")
"""What the function of outside code may ask for by name."""

FUNCTIONS = ("score", "score_group")
"""What outside code defines one of."""

Result = float | None | tuple[float | None, str]
"""A value from 0 to 1, or None where there is none; a text beside it says why."""
Results = Result | Sequence[Result]
"""One, or one for each trajectory of a group."""


class Ended(Protocol):
    """What tells how a trajectory ended: its outline, or the whole record."""

    @property
    def key(self) -> str: ...
    @property
    def question_id(self) -> str: ...
    @property
    def status(self) -> Status: ...
    @property
    def answer(self) -> str: ...


@dataclass(frozen=True)
class Unit:
    """What a reward scores in one call: a trajectory, or a group."""

    question: Question
    trajectories: tuple[Outline, ...]
    is_group: bool = False

    def given(self, whole: Mapping[str, Trajectory]) -> Trajectory | list[Trajectory]:
        """What `score` is given beside the question. `whole`: trajectories by key."""
        found = [whole[one.key] for one in self.trajectories]
        return found if self.is_group else found[0]

    @property
    def group(self) -> str:
        """What a score in a group depends on: its members. Empty where the unit is a trajectory alone."""
        members = sorted((one.key, one.content) for one in self.trajectories)
        return content_key("group", members) if self.is_group else ""

    def __str__(self) -> str:
        first, *others = self.trajectories
        which = f"the {len(others) + 1} trajectories" if self.is_group else f"the trajectory {first.key}"
        return f"{which} of the question {self.question.id!r}"


@dataclass(frozen=True, kw_only=True)
class Reward:
    """What a rule and a judged reward have in common."""

    title: str
    """The score's name in tables."""
    version: int | str
    """Raise it when values change: stored scores of another version are not reused. Of outside code, the digest of its
    source."""
    needs: tuple[str, ...] = ()
    """Fields of a question, of which the score needs one; empty where it needs none."""
    unscorable: Callable[[Question], str] | None = None
    """Why no answer to a question can be scored, empty where one can; for questions that `needs` cannot tell apart."""
    needs_embedder: bool = False
    against_documents: bool = False
    """Whether it compares the answer with the documents that were returned with it: a system that looks nothing up, and
    has no such score, is not measured by it."""
    of_group: bool = False
    """Whether `score` is given all trajectories of a question at once, in the order of their samples, and returns a
    list of results."""
    scale: tuple[int, int] | None = None
    """The least and the greatest value on the judge's own scale, where a measure shows it beside the normalised one."""
    name: str = ""
    """As the config has it. `load_reward` sets it."""
    outside: Plugin | None = None
    """The code that it is, where that is not ours. `load_reward` sets it."""

    @property
    def is_outside(self) -> bool:
        """Whether its code is not ours."""
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
        *others, last = self.needs
        if len(others) > 1:
            return f"the question has no {', '.join(others)} or {last}"
        return "the question has " + " and ".join(f"no {field}" for field in self.needs)

    @property
    def function(self) -> str:
        """What outside code calls its function."""
        return FUNCTIONS[self.of_group]

    def make_scores(self, unit: Unit, result: Any) -> list[Score]:
        """The records of what `score` returned of a unit. Raises UserError for what is no score."""
        with self._errors(f"{self.function}() returned no score for {unit}"):
            results = list(result) if self.of_group else [result]
            if len(results) != len(unit.trajectories):
                raise UserError(
                    f"{self.name}: score_group() returned {len(results)} values for {unit}; it returns one for each, "
                    "in their order"
                )
            pairs = zip(unit.trajectories, results, strict=True)
            return [self._record(trajectory, given, unit.group) for trajectory, given in pairs]

    def _record(self, trajectory: Outline, result: Any, group: str) -> Score:
        value, reason = result if isinstance(result, tuple) and len(result) == 2 else (result, "")
        if value is not None and not (isinstance(value, Real) and 0 <= float(value) <= 1):
            raise UserError(
                f"{self.name}: {self.function}() returned {short_line(repr(result))} for the trajectory "
                f"{trajectory.key} of the question {trajectory.question_id!r}; a value is a number from 0 to 1, or "
                "None, or (None, why)"
            )
        if value is None:
            return self._score(trajectory, None, str(reason or "the reward gives it no value"), group)
        return self._score(trajectory, float(value), str(reason), group)

    def _score(self, trajectory: Outline, value: float | None, reason: str, group: str = "") -> Score:
        return Score(
            trajectory=trajectory.key,
            name=self.name,
            value=value,
            reason=reason,
            content=trajectory.content,
            group=group,
        )

    def null_scores(self, unit: Unit, reason: str, state: ScoreState = "null") -> list[Score]:
        """Scores of a unit without a value, and why."""
        scores = [self._score(one, None, reason, unit.group) for one in unit.trajectories]
        return [score.model_copy(update={"state": state}) for score in scores]

    def units(self, pairs: Iterable[tuple[Question, Outline]]) -> list[Unit]:
        """What is scored together: each trajectory, or all of a question's that have no fixed score."""
        together: dict[tuple[str, str], Unit] = {}
        if self.of_group:
            pairs = sorted(pairs, key=lambda pair: (pair[1].sample, pair[1].key))
        for question, trajectory in pairs:
            is_member = self.of_group and self.fixed_score(question, trajectory) is None
            key = (question.id, "" if is_member else trajectory.key)
            known = together[key].trajectories if key in together else ()
            together[key] = Unit(question, (*known, trajectory), is_group=is_member)
        return list(together.values())

    def fixed_score(self, question: Question, trajectory: Outline, empty: float = 0.0) -> Score | None:
        """The score that the question or the ending alone determines; None where the answer has to be scored. `empty`:
        that of an answer without words."""
        if trajectory.status == "failed":
            return self._score(trajectory, None, "the trajectory failed")
        if problem := self.why_unscorable(question):
            return self._score(trajectory, None, problem)
        if not has_answer(trajectory):
            return self._score(trajectory, empty, "the answer is empty")
        return None

    def errors(self, unit: Unit, *passing: type[Exception]) -> AbstractContextManager[None]:
        """What outside code raises in the block becomes a UserError; `passing` is raised as it is."""
        return self._errors(f"{self.function}() failed on {unit}", *passing)

    def _errors(self, problem: str, *passing: type[Exception]) -> AbstractContextManager[None]:
        return nullcontext() if self.outside is None else self.outside.errors(problem, *passing)


@dataclass(frozen=True, kw_only=True)
class Rule(Reward):
    """A reward without a judge."""

    score: Callable[[Question, Any, Inputs], Results | Awaitable[Results]]
    normalises: bool = False
    """Whether values depend on `rewards.normalisation`."""
    is_async: bool = False


@dataclass(frozen=True, kw_only=True)
class Judged(Reward):
    """A reward by the judge's model."""

    score: Callable[[Question, Any, ScoreJudge], Awaitable[Results]]
    """Raises PromptTooLong and JudgeError."""
    prompts: Prompts = field(default_factory=dict)
    """The judge's prompts that it asks with, by slot, in our own words."""
    after: tuple[str, ...] = ()
    """Scores of the same trajectory that are computed before, where they are asked for."""
    settings: Callable[[RewardsConfig], Settings] = lambda rewards: {}
    """The settings that this score depends on and not every judged one."""
    empty: Callable[[RewardsConfig], float] = lambda rewards: 0.0
    """The score of an answer without words."""


def known_rewards() -> list[str]:
    """The names of the rewards in rewards/builtin/."""
    return known_plugins("rewards")


_loaded: dict[tuple[str, object], Rule | Judged] = {}


def load_reward(name: str, key: str = "rewards.weights") -> Rule | Judged:
    """The reward of a name. `key`: the config's key that names it, for errors. Raises UserError.

    A file is read again when it was changed. The name in a record, which is plain text, is that of the file that a
    config last named so.
    """
    path = _path_of(name)
    at = (str(name), _stamp(path))
    if at not in _loaded:
        plugin = load_plugin("rewards", path, (), key)
        with plugin.errors("is not a reward as rewards/reward.py describes it"):
            given = getattr(plugin.module, "REWARD", None)
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


def current_scores(folder: Path, wanted: Collection[str]) -> dict[tuple[str, str], Score]:
    """The stored scores (`rewards.store.stored_scores`), without those by an earlier version of a file of one's own."""
    earlier = {name for name, settings in current_settings(folder).items() if _is_earlier(name, settings)}
    return {at: score for at, score in stored_scores(folder, wanted).items() if at[1] not in earlier}


def _is_earlier(name: str, settings: Settings) -> bool:
    try:
        reward = load_reward(name)
    except UserError:  # no score of this config: its file is gone
        return False
    # A rule's settings have its version so, a judged score's under "prompts".
    return reward.is_outside and reward.version != settings.get("version", settings.get("prompts"))


def judged(names: Iterable[str]) -> list[str]:
    """Those of the scores that a judge gives."""
    return [name for name in names if load_reward(name).needs_judge]


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


def scoring_judges(config: Config) -> set[str]:
    """The names of the models that `ratchet score` asks: selection's judge, and the audit's."""
    asked = (config, config.audited)
    return {name for one in asked if one is not None for name in judge_of(one, one.rewards.weights)}


def _stamp(name: str) -> object:
    """What changes when the file that a path names does."""
    if not is_path(name):
        return None
    file = resolve_path(name).resolve()
    files = file.parent.rglob("*.py") if file.name == "__init__.py" else [file]
    return tuple(sorted((str(path), path.stat().st_mtime_ns, path.stat().st_size) for path in files if path.is_file()))


def _declare(plugin: Plugin, key: str) -> Rule | Judged:
    """The declaration of outside code, which is a module with `score` or `score_group`. Raises UserError where it is no
    reward."""
    module, where = plugin.module, f"{key}: {plugin.name}"
    defined = [name for name in FUNCTIONS if hasattr(module, name)]
    if len(defined) != 1:
        what = "both score and score_group" if defined else "no score and no score_group"
        raise UserError(f"{where} defines {what}; a reward has one of them")
    score, needs = getattr(module, defined[0]), tuple(getattr(module, "NEEDS", ()))
    asks_for, is_async = _parameters(score, where), inspect.iscoroutinefunction(score)
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
        "of_group": defined == ["score_group"],
    }

    def call(question: Question, of: Any, given: Inputs | ScoreJudge) -> Any:
        parts = {"judge": given, "embed": given.embed}
        return score(question, of, **{name: parts[name] for name in asks_for})

    if "judge" not in asks_for:
        return Rule(score=call, is_async=is_async, **about)
    if not is_async:
        raise UserError(f"{where}: {defined[0]} asks a judge, which answers later: write `async def {defined[0]}`")
    return Judged(score=call, **about)


def _parameters(score: Callable[..., Any], where: str) -> set[str]:
    """The names of `PARAMETERS` that outside code's function asks for. Raises UserError for any other."""
    parameters = list(inspect.signature(score).parameters.values())
    if len(parameters) < 2:
        raise UserError(
            f"{where}: score takes the question and the trajectory, and score_group the question and its trajectories, "
            "as the first two parameters"
        )
    for parameter in parameters[2:]:
        if parameter.name not in PARAMETERS and parameter.default is parameter.empty:
            raise UserError(
                f"{where}: {score.__name__} has the parameter {parameter.name!r}; after the first two it may have "
                f"{' and '.join(PARAMETERS)}{did_you_mean(parameter.name, PARAMETERS)}"
            )
    return {parameter.name for parameter in parameters[2:]} & set(PARAMETERS)


def has_answer(trajectory: Ended) -> bool:
    """Whether the trajectory ended with an answer in words, finished or not."""
    return bool(trajectory.answer.strip())


def strict_value(
    value: float | None,
    names: Collection[str],
    question: Question,
    trajectory: Ended,
    keep_status: Collection[str] = ("finished",),
    worst: float = 0.0,
) -> float | None:
    """`value`, computed from the scores `names`, as rewards and strict measures count it.

    It is `worst` where the trajectory has no answer that its scores give more, or ended in none of the ways
    `keep_status`; but None where the question cannot be scored.
    """
    has_worth = has_answer(trajectory) or bool(value is not None and value > worst and judged(names))
    if has_worth and trajectory.status in keep_status:
        return value
    return None if any(load_reward(name).why_unscorable(question) for name in names) else worst


def rule_scores(reward: Rule, unit: Unit, whole: Mapping[str, Trajectory], inputs: Inputs) -> list[Score]:
    """The scores of a unit by a rule that is not async, null with a reason where they have no value.

    A trajectory that ended unparsed or out of budget is scored on its answer.
    """
    if (score := reward.fixed_score(unit.question, unit.trajectories[0])) is not None:
        return [score]
    given = unit.given(whole)
    with reward.errors(unit):
        result = reward.score(unit.question, given, inputs)
    return reward.make_scores(unit, result)
