"""The section `training`: how the LoRA adapter is trained."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from ratchet.config.section import Section


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
    """Modules that get an adapter, as PEFT's `target_modules`."""


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
    backend: Literal["peft", "unsloth"] = "peft"
    """Library that trains the adapter."""
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
    choose_by: Literal["held_out_loss", "reward"] = Field(
        "held_out_loss", exclude_if=lambda chosen: chosen == "held_out_loss"
    )
    """What chooses among the evaluated adapters. `reward`: the mean reward on dev (`python -m rounds choose`, a stage
    of `selftrain.py`), which runs the system with every one of them; mRAG (Salemi et al. 2025, arXiv 2506.10844, D.2)
    evaluates every 500 steps and keeps the best, though on its test set. `held_out_loss`: the loss on held-out kept
    actions, a cheap stand-in that need not agree with the reward."""
    gradient_checkpointing: bool = True
    """Recompute activations in the backward pass, which needs less memory and more time."""
    dev_fraction: float = Field(0.1, ge=0, lt=1)
    """Fraction of the kept questions that is held out. The loss on their kept actions is measured every
    `eval_steps`."""
    wandb: Literal["off", "offline", "online"] = "off"
    """Log the training to Weights & Biases."""

    def settings(self) -> dict[str, Any]:
        """All that an adapter depends on, as JSON: without the settings of objectives other than its own, so that an
        adapter of `sft` has the settings that it had before there were others."""
        unused = {"wandb"} | {"weighted": {"preference"}, "sft": {"objective", "weighted", "preference"}}.get(
            self.objective, {"weighted"}
        )
        return self.model_dump(mode="json", exclude=unused)
