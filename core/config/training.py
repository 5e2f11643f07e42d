"""The sections `training` (how the LoRA adapter is trained) and `rounds`."""

from __future__ import annotations

from typing import Any, Literal

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
    """The LoRA adapter, by the names of PEFT's LoraConfig: its other settings, such as `lora_dropout` or `use_rslora`,
    may be given as well. What no engine applies (`use_dora`, `bias`, `modules_to_save`) is refused."""

    model_config = ConfigDict(extra="allow")

    r: int = Field(16, gt=0)
    """Rank of the adapter's matrices."""
    lora_alpha: int = Field(16, gt=0)
    """Scale of the adapter, which is multiplied by lora_alpha / r. mRAG (Salemi et al. 2025, arXiv 2506.10844) gives
    only the rank; lora_alpha = r is Unsloth's default."""
    target_modules: str | list[str] = "all-linear"
    """Layers that get an adapter: `all-linear`, a list of names, or a regular expression. The output head gets none. Of
    a mixture of experts, all-linear leaves out the feed-forward blocks: experts, routers and what is beside them. Of a
    multimodal model the language model alone is trained."""


class PreferenceConfig(Section):
    """Settings of the objectives that compare: `dpo` and `kto`."""

    level: Literal["trajectory", "action"] = "trajectory"
    """What is compared: whole trajectories of a question, or single actions that follow the same tokens of a
    conversation. An action's reward is the mean reward of the trajectories that took it."""
    beta: float = Field(0.1, gt=0)
    """Factor on the log-probability ratio to the model before training: the higher, the closer training stays to it."""
    sft_weight: float = Field(1.0, ge=0)
    """With `dpo`, factor on the mean negative log-probability of the chosen side's tokens (Pang et al. 2024, arXiv
    2404.19733). 0 leaves it out, as Rafailov et al. (2023, arXiv 2305.18290) do."""


class TrainingConfig(Section):
    """How the LoRA adapter is trained."""

    model: str = "agent"
    """Name of the model under `models` that is trained."""
    objective: PluginName = "sft"
    """What is learnt from a question's trajectories. `sft`: likelihood of the kept ones (Salemi et al. 2025, arXiv
    2506.10844). `weighted`: likelihood of all that finished, weighted by reward. `dpo` and `kto`: preferences (Rafailov
    et al. 2023, arXiv 2305.18290; Ethayarajh et al. 2024, arXiv 2402.01306). Or a file of your own, by its path."""
    preference: PreferenceConfig = PreferenceConfig()
    """Settings of the objectives that compare: `dpo` and `kto`."""
    backend: Literal["peft", "unsloth"] = "peft"
    """Library that trains the adapter; `unsloth` with the objective `sft` alone, and on rows without weights."""
    four_bit: bool = False
    """`unsloth`: hold the frozen weights in 4 bits (Dettmers et al. 2023, arXiv 2305.14314), in a quarter of the
    memory."""
    cpu_precision: Literal["float32", "auto"] = "float32"
    """Number format of the matrix products of one training process on a CPU. `auto`: bfloat16 where the CPU has
    instructions for it (AMX or AVX512-BF16), else float32. Weights, adapter and optimizer stay in float32."""
    lora: LoraConfig = LoraConfig()
    """The LoRA adapter."""
    arguments: dict[str, Any] = Field(default={})
    """Further settings by the names of transformers' TrainingArguments, such as `{optim: adafactor, weight_decay: 0.01,
    lr_scheduler_type: cosine, max_grad_norm: 0.5}`. Those that other keys set are refused. Default: AdamW without
    weight decay, a linear schedule, and gradients clipped at 1."""
    learning_rate: float = Field(1e-4, gt=0)
    """Peak learning rate."""
    warmup_steps: int = Field(50, ge=0)
    """Number of warmup steps, at most a fifth of all steps, so that a short training learns too."""
    max_steps: int = Field(5000, gt=0)
    """Maximum number of training steps."""
    epochs: float | None = Field(None, gt=0)
    """Maximum number of passes over the rows. Training stops at the earlier of this and `max_steps`. Default: no
    limit."""
    batch_size: int = Field(128, gt=0)
    """Number of rows of one step over all devices. With fewer rows than this, all rows."""
    micro_batch: int = Field(1, gt=0)
    """Number of rows in one forward pass on one device."""
    max_length: int = Field(16_000, gt=0)
    """Maximum number of tokens of a row. A longer row is skipped and counted; actions are never truncated."""
    thoughts: Literal["trained", "masked"] = "trained"
    """Whether what a model thought before it acted is learnt with its actions, or only what followed. Tokens that
    `models.*.thoughts.budget` had inserted are never learnt."""
    loss_on: Literal["actions", "sequence"] = "actions"
    """Tokens that are learnt: those of the trained roles' own actions (Salemi et al. 2025, arXiv 2506.10844, section
    3.2), or, with the objective `sft`, whole conversations with prompts and documents, as in its published code."""
    eval_steps: int = Field(500, gt=0)
    """Number of steps between two evaluations of the held-out loss. Every evaluated adapter is kept."""
    choose_by: Literal["held_out_loss", "reward"] = "held_out_loss"
    """What chooses among the evaluated adapters. `reward`: the mean reward on dev (`ratchet choose`, a stage
    of `ratchet selftrain`), which runs the system with every one; mRAG (Salemi et al. 2025, arXiv 2506.10844, D.2)
    evaluates every 500 steps and keeps the best, though on its test set. `held_out_loss`: the loss on held-out kept
    actions, a cheap stand-in that need not agree with the reward."""
    padding_free: bool = False
    """The rows of a micro-batch are computed one after the other as one sequence, without padding, and long rows share
    micro-batches with short ones. On a CPU, tokens with which the prompts of several rows begin are computed once,
    with the objective `sft` where rows have no weights. The loss is the same. It pays with a `micro_batch` of more than
    one row."""
    gradient_checkpointing: bool = True
    """Recompute activations in the backward pass, which needs less memory and more time. `ratchet plan` computes what a
    step needs with it and without."""
    dev_fraction: float = Field(0.1, ge=0, lt=1)
    """Fraction of the kept questions that is held out; if that is fewer than five, none, since their
    loss would be noise. The loss on their kept actions is measured every `eval_steps`. Default: 0 where
    `choose_by` is `reward`, since nothing needs that loss then."""
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
        if self.loss_on == "sequence" and self.objective != "sft":
            raise ValueError(f"loss_on: {self.objective} learns from actions; set objective to sft, or leave it out")
        return self


class RoundsConfig(Section):
    """How many rounds of self-training there are, what each starts from, and when an adapter is promoted."""

    count: int = Field(1, gt=0)
    """Number of rounds of sampling, selecting and training. It may be raised on a run that is finished, which then
    resumes."""
    until_flat: bool = False
    """Whether the run ends before `count` rounds, after the first one whose adapter is not promoted: a gain on dev that
    chance may explain (`level`) is none. The best adapter is then tested as after the last round."""
    start: Literal["promoted", "base"] = "promoted"
    """What a round's training starts from. `promoted`: the last promoted adapter. `base`: a new adapter on the base
    model, as in ReST-EM (Singh et al. 2023, arXiv 2312.06585). In both cases the round samples with the last promoted
    adapter."""
    level: float = Field(0.05, gt=0, lt=1)
    """Significance level of promotion. An adapter is promoted if its mean on dev is higher than its parent's, the
    paired test has a p-value below this and, where at least ten questions changed, the 95% interval of the difference
    excludes zero. With one round there is no test."""
