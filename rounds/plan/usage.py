"""How often a config's models are called and with how many tokens: measured on its run, or else assumed.

Assumptions are constants here, and `ratchet plan` prints each one that it uses.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from statistics import fmean

from ratchet.agents.core.spec import Calls
from ratchet.agents.core.system import System, load_system
from ratchet.core.config import Config, RewardsConfig
from ratchet.core.errors import UserError
from ratchet.core.plugins import short_name
from ratchet.core.records import Conversation, ModelCall, Trajectory
from ratchet.core.runfolder import RunFolder
from ratchet.core.selection import Score
from ratchet.inference.serving.specs import ModelUse
from ratchet.rewards.reward import judged, load_reward
from ratchet.rewards.store import stored_scores
from ratchet.sampling.store import TrajectoryStore

MAX_TRAJECTORIES = 500
"""The limit of trajectories of a run that are read."""
PASSAGE_TOKENS = 512.0
"""Tokens of a passage, where an index says no other number (index.chunk_tokens)."""
INSTRUCTION_TOKENS, SHOWN_TOKENS, NEW_TOKENS = 500.0, 200.0, 150.0
"""Tokens of a role's instructions, which are in the prefix cache; of what it is shown at a call beside passages; and of
its reply: an action as JSON, or a short answer."""
ITEMS = 10.0
"""Nuggets of a reference answer."""
JUDGE_PROMPT_TOKENS, JUDGE_CACHED_TOKENS, JUDGE_NEW_TOKENS = 1500.0, 750.0, 150.0
"""A call of the judge: instructions, question, reference and answer, of which half are in the prefix cache; a verdict
with its reason as JSON."""


@dataclass(frozen=True)
class RoleUse:
    """The calls of one role in one trajectory."""

    role: str
    model: str
    calls: float
    prompt_tokens: float
    """Of one call, those out of the prefix cache included."""
    cached_tokens: float
    new_tokens: float
    conversation_tokens: float
    """Of a conversation at its end."""
    conversations: float = 1.0
    """In one trajectory; each is one training row."""
    thought_tokens: float = 0.0
    """Of the new tokens of one call, those of a thought."""


@dataclass(frozen=True)
class SystemUse:
    """The calls of one trajectory of a system."""

    roles: tuple[RoleUse, ...]
    source: str
    """Where the numbers are from, for people: measured on ..., or assumed: ..."""

    @property
    def calls(self) -> float:
        return sum(role.calls for role in self.roles)

    @property
    def new_tokens(self) -> float:
        return sum(role.calls * role.new_tokens for role in self.roles)

    @property
    def prefilled_tokens(self) -> float:
        """Prompt tokens that are computed, since they are in no cache."""
        return sum(role.calls * (role.prompt_tokens - role.cached_tokens) for role in self.roles)

    def work(self, scale: Mapping[str, float]) -> float:
        """Tokens that are computed, each as often as `scale` says of its model."""
        return sum(
            role.calls * (role.prompt_tokens - role.cached_tokens + role.new_tokens) * scale[role.model]
            for role in self.roles
        )

    def of_model(self, model: str) -> SystemUse:
        """The calls of one of its models alone."""
        return SystemUse(tuple(role for role in self.roles if role.model == model), self.source)


def assumed_use(system: System, passage_tokens: float = PASSAGE_TOKENS) -> SystemUse:
    """The calls of a system that has not been sampled, a passage having so many tokens."""
    calls = system.spec.calls(system.settings) if system.spec.calls else dict.fromkeys(system.roles, Calls())
    roles = tuple(
        _assumed_role(role, system.config.role(role).model, calls[role], passage_tokens)
        for role in system.roles
        if role in calls and calls[role].number
    )
    source = f"assumed: {passage_tokens:,.0f} tokens a passage, {NEW_TOKENS:,.0f} new ones a call"
    return SystemUse(roles, source)


def _assumed_role(role: str, model: str, calls: Calls, passage_tokens: float) -> RoleUse:
    """A turn's prompt begins with the last turn's, which is in the prefix cache."""
    conversations = calls.number if calls.conversations is None else calls.conversations
    each = calls.number / conversations
    shown = SHOWN_TOKENS + calls.passages * passage_tokens
    cached = INSTRUCTION_TOKENS + (shown + NEW_TOKENS) * (each - 1) / 2
    length = INSTRUCTION_TOKENS + each * (shown + NEW_TOKENS)
    return RoleUse(role, model, calls.number, cached + shown, cached, NEW_TOKENS, length, conversations)


def use_of(trajectories: Iterable[Trajectory], source: str) -> SystemUse | None:
    """The mean calls of these trajectories; None without a call."""
    count, calls, talks = 0, dict[str, list[ModelCall]](), dict[str, list[Conversation]]()
    for trajectory in trajectories:
        count += 1
        for call in trajectory.model_calls:
            calls.setdefault(call.role, []).append(call)
        for talk in trajectory.conversations:
            talks.setdefault(talk.role, []).append(talk)
    roles = tuple(
        RoleUse(
            role,
            talks[role][-1].model,
            len(own) / count,
            fmean(call.prompt_tokens for call in own),
            fmean(call.cached_tokens for call in own),
            fmean(call.new_tokens for call in own),
            fmean(len(talk.ids) for talk in talks[role]),
            len(talks[role]) / count,
            fmean(call.thought_tokens for call in own),
        )
        for role, own in calls.items()
        if role in talks
    )
    return SystemUse(roles, source) if roles else None


def system_use(config: Config) -> SystemUse:
    """The calls of the config's system: of the run's latest round that was sampled, else assumed."""
    for folder in reversed(RunFolder(config.folder).rounds()):
        sampled = islice(TrajectoryStore(folder.trajectories).read(), MAX_TRAJECTORIES)
        finished = [trajectory for trajectory in sampled if trajectory.status != "failed"]
        source = f"measured on {len(finished):,} trajectories of round {folder.number}"
        if (use := use_of(finished, source)) is not None:
            return use
    return assumed_use(load_system(config.system), config.index.chunk_tokens)


@dataclass(frozen=True)
class JudgeUse:
    """The judge's calls for one trajectory."""

    calls: dict[str, float]
    """By score."""
    source: str

    @property
    def total(self) -> float:
        return sum(self.calls.values())


def assumed_judge_use(rewards: RewardsConfig, names: Iterable[str], samples: int) -> JudgeUse:
    """The judge's calls for the scores of these names, with `samples` trajectories of a question.

    Correctness judges every nugget in a call of its own, and draws the nuggets once for all samples of a question.
    Faithfulness and precision draw the claims of an answer in one call and judge all of them in another; precision has
    its claims from faithfulness where both are scored.
    """
    runs, scores = rewards.runs, judged(names)
    draws = _nugget_draws(rewards)
    claims = runs if rewards.faithfulness.claims == "per_run" else 1
    known = {
        "correctness": draws / samples + ITEMS * runs,
        "faithfulness": claims + runs,
        "precision": runs + (0 if "faithfulness" in scores else claims),
    }
    alone = {name: runs / (samples if load_reward(name).of_group else 1) for name in scores}
    calls = {name: float(known.get(short_name(name), alone[name])) for name in scores}
    return JudgeUse(calls, f"assumed: {ITEMS:g} nuggets, {runs} runs")


def judge_use(config: Config, names: Iterable[str], samples: int) -> JudgeUse:
    """The judge's calls for one trajectory: of the run's latest round that was scored, else assumed.

    What draws nuggets is no part of a stored score, so it is computed.
    """
    assumed = assumed_judge_use(config.rewards, names, samples)
    for folder in reversed(RunFolder(config.folder).rounds()):
        keys = list(islice(TrajectoryStore(folder.trajectories).keys(), MAX_TRAJECTORIES))
        try:
            scores = stored_scores(folder.scores, set(keys))
        except UserError:  # of another version; who scores says so
            continue
        by_name = {name: [score for (_, scored), score in scores.items() if scored == name] for name in assumed.calls}
        if not by_name or not all(by_name.values()):
            continue
        draws = _nugget_draws(config.rewards) / samples
        calls = {
            name: fmean(_calls_of(score, "faithfulness" in by_name) for score in own)
            + (draws if short_name(name) == "correctness" else 0.0)
            for name, own in by_name.items()
        }
        count = min(map(len, by_name.values()))
        return JudgeUse(calls, f"measured on the scores of {count:,} trajectories of round {folder.number}")
    return assumed


def _nugget_draws(rewards: RewardsConfig) -> int:
    """How many times the nuggets of a question are drawn."""
    return rewards.runs if rewards.correctness.nuggets == "per_run" else 1


def _calls_of(score: Score, has_faithfulness: bool) -> int:
    """The judge's calls behind a score; precision repeats those that drew the claims of faithfulness."""
    replies = [verdict for verdict in score.verdicts if "text" in verdict]
    if score.name == "precision" and has_faithfulness:
        replies = [verdict for verdict in replies if verdict.get("part") != "claims"]
    return sum(2 if verdict.get("asked_again") else 1 for verdict in replies)


def model_uses(config: Config) -> dict[str, ModelUse]:
    """By model: how much a trajectory and its scoring use it, for memory and for requests in flight of servers.

    Without those that cannot be told: models are also served for configs that lack a system or a reward.
    """
    try:
        use = system_use(config)
        asked = judge_use(config, {*config.rewards.weights, *config.evaluation.scores}, config.sampling.samples)
    except UserError:
        return {}
    uses: dict[str, ModelUse] = {}
    for model in {role.model for role in use.roles}:
        own = use.of_model(model)
        mean = sum(role.calls * role.conversation_tokens for role in own.roles) / own.calls
        uses[model] = ModelUse(own.calls, round(mean), use.source.startswith("measured"))
    judge = config.rewards.judge
    if asked.total and judge in config.models:
        before = uses.get(judge, ModelUse(calls=0.0))
        tokens = max(before.conversation_tokens, round(JUDGE_PROMPT_TOKENS + JUDGE_NEW_TOKENS))
        uses[judge] = ModelUse(before.calls + asked.total, tokens, before.is_measured)
    return uses
