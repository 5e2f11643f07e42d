"""The section `training`: how the LoRA adapter is trained."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from ratchet.config.section import Section

GROUP_NAME = re.compile(r"[A-Za-z0-9][\w-]*")
"""Of a group of roles, whose adapter lies in a folder of that name."""


class LoraConfig(Section):
    """The shape of the LoRA adapter."""

    r: int = Field(16, gt=0)
    """Rank of the adapter's matrices."""
    alpha: int = Field(16, gt=0)
    """Scale of the adapter, which is multiplied by alpha / r. mRAG (Salemi et al. 2025, arXiv 2506.10844) gives only
    the rank; alpha = r is Unsloth's default."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Dropout probability on the adapter's input."""
    targets: str = "all-linear"
    """Layers that get an adapter: all-linear, or names of linear layers as in PEFT's `target_modules`, with commas.
    The output head gets none."""


class WeightedConfig(Section):
    """Settings of the objective `weighted`."""

    baseline: Literal["question_mean", "none"] = "question_mean"
    """What is subtracted from a trajectory's reward to give its weight: the mean reward of all attempts at the
    question, or nothing. Without a baseline no weight is negative."""
    negative_weight: float = Field(0.1, ge=0)
    """Factor on negative weights. 0 leaves the trajectories below the baseline out."""
    clip: float = Field(0.2, gt=0, lt=1)
    """A token of a trajectory with a negative weight is no longer made less likely once its probability is below
    1 - clip times what it was before training."""


class PreferenceConfig(Section):
    """Settings of the objectives `dpo` and `kto`."""

    level: Literal["trajectory", "action"] = "trajectory"
    """What is compared: whole trajectories of a question, or single actions that follow the same tokens of a
    conversation. An action's reward is the mean reward of the trajectories that took it."""
    beta: float = Field(0.1, gt=0)
    """Factor on the log-probability ratio to the model before training: the higher, the closer training stays to it."""
    min_margin: float = Field(0.0, ge=0)
    """What is compared differs in reward by more than this: with `dpo`, the two sides of a pair; with `kto`, an example
    and the mean of its question or of the actions after the same tokens."""
    sft_weight: float = Field(1.0, ge=0)
    """With `dpo`, factor on the mean negative log-probability of the chosen side's tokens (Pang et al. 2024, arXiv
    2404.19733). 0 leaves it out."""
    desirable_weight: float = Field(1.0, gt=0)
    """With `kto`, factor on the loss of desirable examples."""
    undesirable_weight: float = Field(1.0, gt=0)
    """With `kto`, factor on the loss of undesirable examples."""


class TrainingConfig(Section):
    """How the LoRA adapter is trained."""

    model: str = "agent"
    """Name of the model under `models` that is trained."""
    objective: Literal["sft", "weighted", "dpo", "kto"] = "sft"
    """What is learnt from a question's trajectories. `sft`: likelihood of the kept ones (Salemi et al. 2025, arXiv
    2506.10844). `weighted`: likelihood of all that finished, weighted by reward. `dpo` and `kto`: preferences (Rafailov
    et al. 2023, arXiv 2305.18290; Ethayarajh et al. 2024, arXiv 2402.01306)."""
    weighted: WeightedConfig = WeightedConfig()
    """Settings of the objective `weighted`."""
    preference: PreferenceConfig = PreferenceConfig()
    """Settings of the objectives `dpo` and `kto`."""
    role_credit: float = Field(0.0, ge=0, le=1, exclude_if=lambda credit: credit == 0)
    """How far a role's rows weigh by what its actions decide of the reward, which is estimated from attempts that part
    after the same tokens: the weight is 1 - c + c * effect / mean effect over the roles. 0: all roles weigh the same.
    It needs `sft`, `weighted`, or a preference of actions."""
    adapters: Literal["shared", "role"] | dict[str, tuple[str, ...]] = Field(
        "shared", exclude_if=lambda adapters: adapters == "shared"
    )
    """Which adapters a round trains. `shared`: one for all trainable roles, as mRAG (Salemi et al. 2025, arXiv
    2506.10844) does. `role`: one for each role. Or groups of roles, by a name: one adapter for each group."""
    backend: Literal["peft", "unsloth"] = "peft"
    """Library that trains the adapter; `unsloth` with the objective `sft` alone, and on rows without weights."""
    four_bit: bool = Field(False, exclude_if=lambda four_bit: not four_bit)
    """`unsloth`: hold the frozen weights in 4 bits (Dettmers et al. 2023, arXiv 2305.14314), in a quarter of the
    memory."""
    cpu_precision: Literal["float32", "auto"] = Field("float32", exclude_if=lambda chosen: chosen == "float32")
    """Number format of the matrix products of one training process on a CPU. `auto`: bfloat16 where the CPU has
    instructions for it (AMX or AVX512-BF16), else float32. Weights, adapter and optimizer stay in float32."""
    lora: LoraConfig = LoraConfig()
    """The shape of the adapter."""
    learning_rate: float = Field(1e-4, gt=0)
    """Peak learning rate."""
    optimizer: str = "adamw_torch"
    """Optimizer, by its name in transformers (`TrainingArguments.optim`)."""
    weight_decay: float = Field(0.0, ge=0)
    """Weight decay. 0 makes AdamW plain Adam, as in mRAG (Salemi et al. 2025, arXiv 2506.10844)."""
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
    max_grad_norm: float = Field(1.0, gt=0)
    """Gradients are clipped to this norm."""
    eval_steps: int = Field(500, gt=0)
    """Number of steps between two evaluations of the held-out loss. Every evaluated adapter is kept."""
    patience: int | None = Field(None, gt=0, exclude_if=lambda patience: patience is None)
    """Training stops after this number of evaluations in a row without a lower held-out loss. Default: it does not."""
    choose_by: Literal["held_out_loss", "reward"] = Field(
        "held_out_loss", exclude_if=lambda chosen: chosen == "held_out_loss"
    )
    """What chooses among the evaluated adapters. `reward`: the mean reward on dev (`python -m rounds choose`, a stage
    of `selftrain.py`), which runs the system with every one of them; mRAG (Salemi et al. 2025, arXiv 2506.10844, D.2)
    evaluates every 500 steps and keeps the best, though on its test set. `held_out_loss`: the loss on held-out kept
    actions, a cheap stand-in that need not agree with the reward."""
    padding_free: bool = Field(False, exclude_if=lambda padding_free: not padding_free)
    """The rows of a micro-batch are computed one after the other as one sequence, without padding, and long rows share
    micro-batches with short ones. The loss is the same. It pays with a `micro_batch` of more than one row."""
    share_prompts: bool = Field(False, exclude_if=lambda share_prompts: not share_prompts)
    """With `padding_free`, on a CPU: tokens with which the prompts of several rows of a micro-batch begin are computed
    once. The loss is the same. The larger `micro_batch` is, the more is shared. It has no effect on a GPU, with an
    objective other than `sft`, and where rows have weights."""
    liger: bool = Field(False, exclude_if=lambda liger: not liger)
    """On a GPU: compute norms, rotary positions and gated MLPs by Liger's fused kernels (Hsu et al. 2024, arXiv
    2410.10989), which need less memory. They are the extra `liger`."""
    gradient_checkpointing: bool | Literal["auto"] = True
    """Recompute activations in the backward pass, which needs less memory and more time. `auto`: only for micro-batches
    whose activations, as computed from the model's shape, do not fit the free memory; under FSDP for all."""
    dev_fraction: float = Field(0.1, ge=0, lt=1)
    """Fraction of the kept questions that is held out; of fewer than ten, none. The loss on their kept actions is
    measured every `eval_steps`. Default: 0 where `choose_by` is `reward` and `patience` is not set, since nothing needs
    that loss then."""
    wandb: Literal["off", "offline", "online"] = "off"
    """Log the training to Weights & Biases."""

    @model_validator(mode="before")
    @classmethod
    def _hold_out_only_what_is_needed(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("choose_by") == "reward" and data.get("patience") is None:
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
        if self.liger and self.backend == "unsloth":
            raise ValueError("liger: backend unsloth has kernels of its own; set liger to false")
        if self.objective != "sft" and self.backend == "unsloth":
            raise ValueError(f"objective: {self.objective} needs logits, which backend unsloth does not give; set peft")
        return self

    @field_validator("adapters")
    @classmethod
    def _groups_are_distinct(cls, adapters: str | dict[str, tuple[str, ...]]) -> str | dict[str, tuple[str, ...]]:
        if isinstance(adapters, str):
            return adapters
        for name, roles in adapters.items():
            if not GROUP_NAME.fullmatch(name) or not roles:
                raise ValueError(f"{name!r}: a group has a name of letters, digits, - and _, and at least one role")
        twice = [
            role for role, count in Counter(role for roles in adapters.values() for role in roles).items() if count > 1
        ]
        if twice or not adapters:
            raise ValueError(f"{twice[0]}: is named twice" if twice else "names no group; set shared")
        return adapters

    @model_validator(mode="after")
    def _sharing_is_without_padding(self) -> TrainingConfig:
        if self.share_prompts and not self.padding_free:
            raise ValueError("share_prompts: needs padding_free: true as well")
        return self

    @model_validator(mode="after")
    def _credit_has_weights(self) -> TrainingConfig:
        if self.role_credit and self.objective in ("dpo", "kto") and self.preference.level == "trajectory":
            raise ValueError(
                f"role_credit: objective={self.objective} compares whole trajectories, in which all roles act; set "
                "preference.level=action, or role_credit=0"
            )
        return self

    def settings(self) -> dict[str, Any]:
        """All that an adapter depends on, as JSON: without the settings of objectives other than its own, so that an
        adapter of `sft` has the settings that it had before there were others."""
        unused = {"wandb"} | {"weighted": {"preference"}, "sft": {"objective", "weighted", "preference"}}.get(
            self.objective, {"weighted"}
        )
        return self.model_dump(mode="json", exclude=unused)
