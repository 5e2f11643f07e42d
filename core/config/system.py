"""The sections `system` (the agents and how their roles are played) and `sampling`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from pydantic import Field, model_validator

from ratchet.core.config.models import ThoughtsConfig
from ratchet.core.config.section import PathText, PluginName, Section


class RoleConfig(Section):
    """The player of one role of a system."""

    model: str = "agent"
    """Name of the model under `models` that plays the role."""
    trainable: bool = True
    """Train the role. A role that is not trained always uses the base model."""
    max_tokens: int = Field(4096, gt=0)
    """Maximum number of new tokens of one action."""
    thoughts: ThoughtsConfig = Field(ThoughtsConfig(), exclude_if=lambda thoughts: thoughts == ThoughtsConfig())
    """How the role thinks, where that differs from its model."""
    examples: tuple[tuple[str, str], ...] = ()
    """Worked (user, assistant) exchanges before the first turn, in place of the system's own; small models need them.
    `<true>` and `<false>` stand for a task's labels of these stances (or its first two)."""


class SystemConfig(Section):
    """An agent system."""

    name: PluginName = "mrag"
    """A [system](../guides/choosing.md#the-systems), or the path of a file of your own."""
    settings: dict[str, Any] = Field(default={})
    """The system's own settings, by its name [below](#settings-of-systems)."""
    # A mapping here, because agents/ is above this package and a system is a plug-in. load_config checks it against the
    # system's Settings class, and agents.core.system.load_system gives the typed object.
    roles: dict[str, RoleConfig] = Field(default={})
    """How roles are played, by name. `default` holds for every role without an entry."""
    malformed: Literal["constrain", "reask", "redraw", "give_up"] = "constrain"
    """What happens with a reply that does not parse as an action. `constrain`: decoding is constrained to its JSON
    schema, and a reply that is cut off at `max_tokens` ends the trajectory as unparsed. `reask`: the model is shown the
    error. `redraw`: another reply is drawn, each time 0.1 warmer up to 0.5, as in mRAG's published code. `give_up`: the
    trajectory ends as unparsed."""
    labels: Literal["free", "constrain"] = Field("free", exclude_if=lambda labels: labels == "free")
    """What happens where a question has labels and the answer is none of them. `free`: the trajectory is unparsed.
    `constrain`: the last dialogue is asked for a label with constrained decoding."""
    reasks: int = Field(2, ge=0)
    """`reask`, `redraw`: maximum number of further replies for one action."""

    prompts: PathText | None = Field(None, exclude_if=lambda value: value is None)
    """Folder of texts that replace the system's [prompts](prompts.md). Default: the system's own."""

    def role(self, name: str) -> RoleConfig:
        return self.roles.get(name) or self.roles.get("default") or RoleConfig()

    def role_models(self, key: str) -> Iterator[tuple[str, str]]:
        """(full key, name of the model) of every role that has an entry; `key` is the system's own."""
        for role, played in self.roles.items():
            yield f"{key}.roles.{role}.model", played.model


TOP_P = 0.95
"""Probability mass of nucleus sampling, which mRAG (Salemi et al. 2025, arXiv 2506.10844) uses without giving a value.
It holds for evaluation and for the judge, and sampling has it by default."""


class ExploreConfig(Section):
    """Samples in which rules narrow what agents may write."""

    samples: int = Field(0, ge=0)
    """How many of a question's `samples`, the last ones, explore."""
    rules: tuple[PluginName, ...] = ("search_again", "quote_names")
    """[Rules](../guides/rounds-and-sweeps.md#exploration-and-a-curriculum) that hold at once: `search_again`,
    `quote_names`, `quote_question`, or a file of your own."""


class TeacherConfig(Section):
    """Samples in which [a larger model](../guides/rounds-and-sweeps.md#a-teacher) plays the trainable roles."""

    model: str = "teacher"
    """Name of the model under `models` that plays them, without an adapter."""
    samples: int = Field(0, ge=0)
    """How many of a question's `samples`, the first ones, the teacher plays."""

    @property
    def models(self) -> set[str]:
        """The name of the model, where it plays any sample."""
        return {self.model} if self.samples else set()


class SamplingConfig(Section):
    """The sampling of trajectories for training."""

    samples: int = Field(8, gt=0, le=100_000)
    """Number of trajectories per question."""
    temperature: float = Field(0.7, ge=0)
    """Temperature of trainable roles."""
    frozen_temperature: float = Field(0.1, ge=0)
    """Temperature of roles that are not trained."""
    top_p: float = Field(TOP_P, gt=0, le=1)
    """Probability mass of nucleus sampling; 0.95 in evaluation and for the judge."""
    explore: ExploreConfig = ExploreConfig()
    """Samples that explore by constrained decoding. An evaluation never does."""
    teacher: TeacherConfig = Field(TeacherConfig(), exclude_if=lambda teacher: teacher == TeacherConfig())
    """Samples that a larger model plays. An evaluation has none."""
    curriculum: dict[str, Literal["gold_documents", "gold_searches"]] = Field(default={})
    """Roles that learn from a further sample of each question with `gold_ids`, in which the search is [led to the gold
    documents](../guides/rounds-and-sweeps.md#exploration-and-a-curriculum)."""
    enough: int | None = Field(None, gt=0, exclude_if=lambda enough: enough is None)
    """Sample a question no further that has so many trajectories whose reward, by rules alone, is above
    `rewards.select.min_reward`. Its samples follow each other, the exploring ones last; those of the curriculum are all
    sampled. Default: sample all."""
    concurrency: int | None = Field(None, gt=0)
    """Maximum number of trajectories in flight. Default: the number of requests that the model with the most takes at
    once."""

    @model_validator(mode="after")
    def _check_parts_of_samples(self) -> SamplingConfig:
        for key, number in (("explore", self.explore.samples), ("teacher", self.teacher.samples)):
            if number > self.samples:
                raise ValueError(f"{key}.samples: {number} of {self.samples} samples; raise samples")
        return self
