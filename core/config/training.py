"""The sections `training` (how the LoRA adapter is trained) and `rounds`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, field_validator, model_validator

from ratchet.core.config.section import PluginName, Section

SET_BY_KEYS = {
    **dict.fromkeys(("per_device_train_batch_size", "per_device_eval_batch_size"), "training.micro_batch"),
    **dict.fromkeys(("gradient_accumulation_steps", "auto_find_batch_size"), "training.batch_size"),
    "learning_rate": "training.learning_rate",
    "warmup_steps": "training.warmup_steps",
    "max_steps": "training.max_steps",
    "num_train_epochs": "training.epochs",
    **dict.fromkeys(("eval_steps", "eval_strategy", "eval_on_start", "eval_delay"), "training.eval_steps"),
    **dict.fromkeys(("save_strategy", "save_steps", "save_total_limit", "save_only_model"), "training.eval_steps"),
    "load_best_model_at_end": "training.choose_by",
    **dict.fromkeys(("seed", "data_seed"), "seed"),
    "use_cpu": "models.*.device",
    **dict.fromkeys(("bf16", "fp16"), "models.*.dtype"),
    **{
        f"{name}_checkpointing{suffix}": "training.gradient_checkpointing"
        for name in ("gradient", "activation")
        for suffix in ("", "_kwargs")
    },
    "report_to": "training.wandb",
    **dict.fromkeys(("output_dir", "run_name"), "run"),
    **dict.fromkeys(
        ("disable_tqdm", "logging_steps", "logging_strategy", "logging_nan_inf_filter", "remove_unused_columns"),
        "Ratchet itself",
    ),
    **dict.fromkeys(
        ("dataloader_pin_memory", "ddp_find_unused_parameters", "train_sampling_strategy"), "Ratchet itself"
    ),
    **dict.fromkeys(("label_smoothing_factor", "average_tokens_across_devices"), "the objective"),
}
"""Names of transformers' TrainingArguments, with what sets them."""


class LoraConfig(Section):
    """The LoRA adapter. Other settings of PEFT's LoraConfig, such as `use_rslora`, may be given as well; what no engine
    applies (`use_dora`, `bias`, `modules_to_save`) is refused."""

    model_config = ConfigDict(extra="allow")

    r: int = Field(16, gt=0)
    """Rank of the adapter's matrices."""
    lora_alpha: int = Field(16, gt=0)
    """Scale of the adapter, which is multiplied by lora_alpha / r."""
    target_modules: str | list[str] = "all-linear"
    """[Layers that get an adapter](../guides/models.md#which-layers-are-trained): `all-linear`, a list of names, or a
    regular expression."""


class PreferenceConfig(Section):
    """Settings of `dpo` and `kto`."""

    level: Literal["trajectory", "action"] = "trajectory"
    """What is compared: whole trajectories of a question, or single actions after the same tokens of a conversation. An
    action's reward is the mean reward of the trajectories that took it."""
    beta: float = Field(0.1, gt=0)
    """Factor on the log-probability ratio to the model before training."""
    sft_weight: float = Field(1.0, ge=0)
    """`dpo`: factor on the mean negative log-probability of the chosen side; 0 leaves it out, as Rafailov et al. (2023,
    arXiv 2305.18290) do."""


class TrainingConfig(Section):
    """The training of the LoRA adapter."""

    model: str = "agent"
    """Name of the model under `models` that is trained."""
    objective: PluginName = "sft"
    """What is learnt: [`sft`, `weighted`, `dpo`, `kto`](../guides/extend.md#the-built-in-objectives), or a file of your
    own, by its path."""
    preference: PreferenceConfig = PreferenceConfig()
    """Settings of `dpo` and `kto`."""
    role_weights: dict[str, Annotated[float, Field(ge=0)]] = Field(default={}, exclude_if=lambda weights: not weights)
    """Factors on the loss of roles' rows, such as `{searcher: 2}`; with `dpo` and `kto`, on the log-probabilities of
    their tokens. Default: 1 for each. A role with 0 acts and is not trained."""
    conversations: Literal["main", "tools", "answer", "all"] = Field("main", exclude_if=lambda which: which == "main")
    """A program's conversations that are trained on: those with a tool call (`tools`), the one with the final answer
    (`answer`), or both, and all where no tools are offered (`main`)."""
    backend: Literal["peft", "unsloth"] = "peft"
    """Library that trains the adapter; `unsloth` with `sft` alone, and on rows without weights."""
    four_bit: bool = False
    """`unsloth`: hold the frozen weights in 4 bits (Dettmers et al. 2023, arXiv 2305.14314)."""
    cpu_precision: Literal["float32", "auto"] = "float32"
    """Number format of the matrix products of one training process on a CPU. `auto`: bfloat16 where the CPU has AMX or
    AVX512-BF16, else float32. Weights, adapter and optimizer stay in float32."""
    lora: LoraConfig = LoraConfig()
    """The LoRA adapter."""
    arguments: dict[str, Any] = Field(default={})
    """Further TrainingArguments of transformers, such as `{optim: adafactor, weight_decay: 0.01, max_grad_norm: 0.5}`.
    Those that other keys set are refused. Default: AdamW without weight decay, a linear schedule, and gradients clipped
    at 1."""
    learning_rate: float = Field(1e-4, gt=0)
    """Peak learning rate."""
    warmup_steps: int = Field(50, ge=0)
    """Number of warmup steps, at most a fifth of all steps."""
    max_steps: int = Field(5000, gt=0)
    """Maximum number of training steps."""
    epochs: float | None = Field(None, gt=0)
    """Maximum number of passes over the rows, if that comes before `max_steps`. Default: no limit."""
    batch_size: int = Field(128, gt=0)
    """Number of rows of one step over all devices; all rows, if there are fewer."""
    micro_batch: int = Field(1, gt=0)
    """Number of rows in one forward pass on one device."""
    max_length: int = Field(16_000, gt=0)
    """Maximum number of tokens of a row. A longer row is skipped and counted; actions are never truncated."""
    thoughts: Literal["trained", "masked"] = "trained"
    """Learn what a model thought with its actions, or only what followed. Inserted tokens are never learnt."""
    loss_on: Literal["actions", "values", "sequence"] = "actions"
    """Tokens that are learnt: those of trained roles' own actions (mRAG, section 3.2); of actions in JSON the values
    alone, since the grammar writes the rest (`values`); or, with `sft`, whole conversations with prompts and documents,
    as in its published code."""
    eval_steps: int = Field(500, gt=0)
    """Number of steps between two evaluations of the held-out loss. Every evaluated adapter is kept."""
    choose_by: Literal["held_out_loss", "reward"] = "held_out_loss"
    """What chooses among the evaluated adapters: the loss on held-out kept actions, or the mean reward on dev, which
    runs the system with every one (`ratchet choose`, as mRAG's D.2 does on its test set)."""
    padding_free: bool = False
    """Compute the rows of a micro-batch as one sequence without padding. It pays with a `micro_batch` of more than one
    row. On a CPU with `sft`, tokens with which several prompts begin are computed once."""
    gradient_checkpointing: bool = True
    """Recompute activations in the backward pass, which needs less memory and more time (`ratchet plan`)."""
    dev_fraction: float = Field(0.1, ge=0, lt=1)
    """Fraction of the kept questions that is held out for the loss every `eval_steps`; none if that is fewer than five.
    Default: 0 where `choose_by` is `reward`."""
    wandb: Literal["off", "offline", "online"] = "off"
    """Log the training to Weights & Biases."""

    @field_validator("arguments")
    @classmethod
    def _not_set_by_keys(cls, arguments: dict[str, Any]) -> dict[str, Any]:
        for name in arguments:
            if name in SET_BY_KEYS:
                raise ValueError(f"{name} is set by {SET_BY_KEYS[name]}")
        return arguments

    @model_validator(mode="before")
    @classmethod
    def _hold_out_only_what_is_needed(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("choose_by") == "reward":
            return {"dev_fraction": 0.0, **data}
        return data

    @property
    def weighs_roles(self) -> bool:
        """Whether rows that are learnt have different weights by role."""
        return any(weight not in (0, 1) for weight in self.role_weights.values())

    @property
    def compares_attempts(self) -> bool:
        """Whether the built-in objective learns from differences between attempts at a question."""
        return self.objective in ("weighted", "dpo", "kto")

    @model_validator(mode="after")
    def _four_bit_needs_unsloth(self) -> TrainingConfig:
        if self.four_bit and self.backend != "unsloth":
            raise ValueError("four_bit: only backend unsloth has it; set training.backend to unsloth, or leave it out")
        return self

    @model_validator(mode="after")
    def _unsloth_has_its_own(self) -> TrainingConfig:
        if self.padding_free and self.backend == "unsloth":
            raise ValueError("padding_free: backend unsloth has an attention of its own; set padding_free to false")
        if self.objective != "sft" and self.backend == "unsloth":
            raise ValueError(f"objective: {self.objective} needs logits, which backend unsloth does not give; set peft")
        if self.weighs_roles and self.backend == "unsloth":
            raise ValueError(
                "role_weights: other factors than 0 and 1 need logits, which backend unsloth does not give"
            )
        if self.loss_on == "sequence" and self.objective != "sft":
            raise ValueError(f"loss_on: {self.objective} learns from actions; set objective to sft, or leave it out")
        return self


class RoundsConfig(Section):
    """The number of rounds, what each starts from, and when an adapter is promoted."""

    count: int = Field(1, gt=0)
    """Number of rounds. It may be raised on a finished run, which then resumes."""
    until_flat: bool = False
    """End the run after the first round whose adapter is not promoted."""
    start: Literal["promoted", "base"] = "promoted"
    """What training starts from: the last promoted adapter, or a new one on the base model, as in ReST-EM (Singh et al.
    2023, arXiv 2312.06585)."""
    level: float = Field(0.05, gt=0, lt=1)
    """Significance level of [promotion](../guides/rounds-and-sweeps.md#what-a-number-means). With one round there is no
    test."""
