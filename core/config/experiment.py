"""The whole config of an experiment."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    BeforeValidator,
    Field,
    PrivateAttr,
    ValidationInfo,
    field_serializer,
    field_validator,
    model_validator,
)
from pydantic import SerializerFunctionWrapHandler as Serialize

from ratchet.core.config.evaluation import EvaluationConfig, SweepConfig
from ratchet.core.config.models import ADAPTERS, ENABLE_LORA, LORA_RANK, LORAS, VLLM_RANKS, ModelConfig, ServeConfig
from ratchet.core.config.questions import SPLITS, GenerationConfig, QuestionsConfig, SplitConfig
from ratchet.core.config.retrieval import DEFAULT_EMBEDDER, EmbedderConfig, IndexConfig, MemoryConfig, Sources
from ratchet.core.config.rewards import RewardsConfig
from ratchet.core.config.section import (
    MissingModels,
    PathText,
    Section,
    find_score,
    folders_of,
    is_missing,
    missing_error,
    missing_section,
    or_missing,
)
from ratchet.core.config.system import SamplingConfig, SystemConfig
from ratchet.core.config.training import RoundsConfig, TrainingConfig
from ratchet.core.errors import did_you_mean

_EmptyIsNone = BeforeValidator(lambda value: value or None)
NO_INDEX = missing_section(IndexConfig, "index")
NO_QUESTIONS = missing_section(QuestionsConfig, "questions")


class Config(Section):
    """An experiment."""

    run: PathText = ""
    """The run folder, which gets every record of the experiment. Building an index and searching need none."""
    seed: int = 0
    """Seed of everything that is drawn at random."""
    members: dict[str, PathText] = Field(default={})
    """Config files of other experiments, by a name: one adapter is trained on what all kept. Keys that are missing here
    are the first member's."""
    models: dict[str, ModelConfig] = MissingModels()
    """The language models, by the name that roles use."""
    index: Annotated[IndexConfig, or_missing(NO_INDEX)] = NO_INDEX
    """The chunks, and how they are ranked. Systems without retrieval need none."""
    sources: Sources = Field(default={})
    """Search services and tool servers, by the name that systems know them by."""
    memory: Annotated[MemoryConfig | None, _EmptyIsNone] = None
    """The evidence memory of systems that keep one, in `memory` of the run folder."""
    embedder: EmbedderConfig = DEFAULT_EMBEDDER
    """The encoder that compares texts by meaning."""
    questions: Annotated[QuestionsConfig, or_missing(NO_QUESTIONS)] = NO_QUESTIONS
    """The questions to train on, to choose by and to test on. Building an index, searching and asking need none."""
    system: SystemConfig = SystemConfig()
    """The agent system, and how its roles are played."""
    sampling: SamplingConfig = SamplingConfig()
    """The sampling of trajectories for training."""
    rewards: RewardsConfig = RewardsConfig()
    """The scores of trajectories, and the choice of those that are trained on."""
    training: TrainingConfig = TrainingConfig()
    """The training of the LoRA adapter."""
    evaluation: EvaluationConfig = Field(EvaluationConfig(), validate_default=True)
    """The questions and baselines that the adapter is measured on and against."""
    rounds: RoundsConfig = RoundsConfig()
    """The number of rounds, what each starts from, and when an adapter is promoted."""
    sweep: SweepConfig = SweepConfig()
    """Checkpoints, systems and question sets of `ratchet sweep`."""
    generation: Annotated[GenerationConfig | None, _EmptyIsNone] = None
    """The questions that `ratchet generate` makes from the corpus."""
    _file: str = PrivateAttr("")
    _overrides: tuple[str, ...] = PrivateAttr(())
    _command: str = PrivateAttr("")

    @field_validator("run")
    @classmethod
    def _run_is_named(cls, run: str) -> str:
        if not run.strip():
            raise ValueError("is empty; name the folder that gets the experiment's records, such as runs/first")
        if any(len(part.encode()) > 255 for part in Path(run).parts):
            raise ValueError("the name of a folder has 255 bytes at most")
        return run

    @field_validator("embedder")
    @classmethod
    def _embedder_has_a_path(cls, embedder: EmbedderConfig) -> EmbedderConfig:
        if not embedder.path:
            raise ValueError(f"path is missing: the encoder, such as {DEFAULT_EMBEDDER.path}")
        return embedder

    @field_validator("evaluation")
    @classmethod
    def _scores_of_the_rewards(cls, evaluation: EvaluationConfig, info: ValidationInfo) -> EvaluationConfig:
        rewards = info.data.get("rewards")
        if "scores" in evaluation.model_fields_set or rewards is None:
            return evaluation
        return evaluation.model_copy(update={"scores": tuple(rewards.weights)})

    @field_serializer("index", "questions", mode="wrap")
    def _missing_is_null(self, section: Section, serialize: Serialize) -> Any:
        return None if is_missing(section) else serialize(section)

    @model_validator(mode="after")
    def _check(self) -> Config:
        self._check_models()
        self._check_trainable_roles()
        self._check_question_sets()
        self._check_rounds()
        self._check_controls()
        self._check_curriculum()
        return self

    def _check_models(self) -> None:
        if not self.models:  # a command that needs one says so
            return
        named = [("training.model", self.training.model)]
        for key, system in self.systems.items():
            named += system.role_models(key)
        if self.generation is not None:
            named.append(("generation.model", self.generation.model))
        named += [("sampling.teacher.model", model) for model in self.sampling.teacher.models]
        for key, model in named:
            if problem := self.why_no_model(key, model):
                raise ValueError(problem)

    def _check_trainable_roles(self) -> None:
        trained = self.models.get(self.training.model) if self.models else None
        for key in trained.reduced_formats if trained else ():
            raise ValueError(
                f"models.{self.training.model}.serve.arguments: {key}: this model is trained (training.model), and its "
                "adapter fits the weights that it samples with; remove it, or set it for a frozen model such as a judge"
            )
        for role, settings in self.system.roles.items():
            if settings.trainable and settings.model != self.training.model:
                raise ValueError(
                    f"system.roles.{role}: is trainable but played by {settings.model!r}, while training.model is "
                    f"{self.training.model!r}; the adapter fits one model: set trainable: false, or the same model"
                )

    def _check_question_sets(self) -> None:
        known = [*SPLITS, *self.evaluation.benchmarks]
        asked: dict[str, Iterable[str]] = {"sweep.dev": self.sweep.dev, "sweep.test": self.sweep.test or ()}
        asked |= {f"evaluation.skip.{name}": sets for name, sets in self.evaluation.skip.items()}
        for key, names in asked.items():
            for name in names:
                if name not in known:
                    raise ValueError(
                        f"{key}: {name}: no such split or benchmark in the config{did_you_mean(name, known)}"
                    )
        baselines = self.evaluation.baselines
        for name in self.evaluation.skip:
            if name not in baselines:
                close = did_you_mean(name, baselines)
                raise ValueError(
                    f"evaluation.skip.{name}: no such baseline{close}; base and adapter are run on every question set"
                )
        for name in self.evaluation.adapters:
            if name not in baselines:
                raise ValueError(f"evaluation.adapters.{name}: no such baseline{did_you_mean(name, baselines)}")

    def _check_rounds(self) -> None:
        if self.training.choose_by == "reward" and self.members:
            raise ValueError("training.choose_by: members of a shared adapter have no common dev; set held_out_loss")
        if self.rounds.count > 1 and self.members:
            raise ValueError("rounds.count: members of a shared adapter run one round; leave it at 1")

    def _check_controls(self) -> None:
        if (names := self.evaluation.trained_controls) and (problem := self.why_no_trained_control()):
            raise ValueError(f"evaluation.controls: {names[0]} is not possible here: {problem}; remove it")

    def _check_curriculum(self) -> None:
        if self.sampling.curriculum and self.training.compares_attempts:
            raise ValueError(
                f"sampling.curriculum: training.objective={self.training.objective} compares attempts at a question, "
                "and a curriculum makes one alone: set training.objective to sft, or remove the curriculum"
            )

    def why_no_trained_control(self) -> str:
        """Why no adapter of other data can be compared with the round's; empty where one can."""
        if self.members:
            return "the members of a shared adapter select by themselves"
        if self.training.objective != "sft":
            return f"training.objective={self.training.objective} learns from rewards, which the control ignores"
        if self.training.choose_by == "reward":
            return "training.choose_by=reward chooses an adapter on dev, which the control does not"
        return ""

    def why_no_model(self, key: str, model: str) -> str:
        """The error for a key that names a model which is not under `models`; empty where it is there."""
        if model in self.models:
            return ""
        return f"{key} names the model {model!r}, which is not under models{did_you_mean(model, self.models)}"

    @property
    def folder(self) -> Path:
        """The run folder. Raises UserError where the config names none."""
        if not self.run:
            raise missing_error("run", "", self._file, self._command)
        return Path(self.run)

    @property
    def splits(self) -> dict[str, SplitConfig]:
        """Every split of this config, by its key in it. Raises UserError where it has no questions."""
        named = {f"questions.{name}": getattr(self.questions, name) for name in SPLITS}
        own: dict[str, SplitConfig] = {key: split for key, split in named.items() if not is_missing(split)}
        return own | {f"evaluation.benchmarks.{name}": split for name, split in self.evaluation.benchmarks.items()}

    def score_name(self, text: str) -> str:
        """The name of a score that a command was given: a path is one of the file's."""
        return find_score(text, folders_of(Path(self._file)) if self._file else ())

    @property
    def overrides(self) -> tuple[str, ...]:
        """The values that replaced the file's keys, as `--set` has it, in this order."""
        return self._overrides

    @property
    def words(self) -> tuple[str, ...]:
        """--config and --set that name it in a command; none where it was not read from a file."""
        overrides = (word for override in self._overrides for word in ("--set", override))
        return ("--config", self._file, *overrides) if self._file else ()

    @property
    def systems(self) -> dict[str, SystemConfig]:
        """Every system that this config names, by its full key."""
        return {
            "system": self.system,
            **{f"evaluation.baselines.{name}": system for name, system in self.evaluation.baselines.items()},
            **{f"sweep.systems.{name}": system for name, system in self.sweep.systems.items()},
        }

    def serve_config(self, model: str) -> ServeConfig:
        """Return the settings of a model's servers: that which is trained takes adapters."""
        arguments = self.models[model].serve.arguments
        if model == self.training.model:
            rank = next((rank for rank in VLLM_RANKS if rank >= self.training.lora.r), self.training.lora.r)
            arguments = {ENABLE_LORA: True, LORA_RANK: rank, LORAS: 2} | arguments
        if not arguments.get(ENABLE_LORA):
            arguments = {name: value for name, value in arguments.items() if name not in ADAPTERS}
        return self.models[model].serve.model_copy(update={"arguments": arguments})
