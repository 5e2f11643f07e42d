"""TRL's SFTTrainer on token rows, with the paper's optimisation (Salemi et al. 2025, arXiv 2506.10844, appendix D.2).

Rows come as token ids and a mask and are trained on as they are: no template, tokenizer, truncation or packing of
TRL's touches them. The loss of a step is the mean over all loss tokens of its batch, whichever micro-batch or device
they are on, so micro_batch changes speed and memory and nothing else.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import fields
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import torch
import transformers
from datasets import Dataset
from datasets.table import InMemoryTable
from safetensors import SafetensorError
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts
from torch.utils.data import Sampler
from transformers import PrinterCallback, SchedulerType, TrainingArguments
from transformers.training_args import OptimizerNames
from trl import SFTConfig, SFTTrainer

from ratchet.core.config import ModelConfig, TrainingConfig
from ratchet.core.errors import UserError, did_you_mean, first_line
from ratchet.training.batches import IGNORED, MODEL_INPUTS, Collator, EpochSampler, epoch_order, mixed_batches
from ratchet.training.callback import TrainingCallback
from ratchet.training.lora import (
    compute_type,
    fuse_layers,
    mixes_precision,
    on_cpu,
    round_frozen_products,
    take_inputs_as_they_are,
)
from ratchet.training.packed_attention import pack_attention
from ratchet.training.processes import adapter_weights, keep_float32, shard_on_cpu, unshard_head
from ratchet.training.rows import row_lengths
from ratchet.training.schedule import schedule

ATTENTION = ("dot_product", "flash_attn", "varlen_attn")
"""Parts of the names of attention's operators: torch's own, flash-attn's, and torch's for rows of different lengths."""


def _policy(context: Any, operator: Any, *inputs: Any, **options: Any) -> CheckpointPolicy:
    is_attention = any(name in str(operator) for name in ATTENTION)
    return CheckpointPolicy.MUST_SAVE if is_attention else CheckpointPolicy.PREFER_RECOMPUTE


CHECKPOINTING = {"use_reentrant": False, "context_fn": partial(create_selective_checkpoint_contexts, _policy)}
"""Settings of `torch.utils.checkpoint.checkpoint` that keep what attention computes and compute the rest of a layer
again. With rows of 16,000 tokens attention is a fifth of a forward pass, and its output as small as the layer's input,
which is kept anyway."""


def silence_libraries() -> None:
    """One line of progress is enough: no bars or notices of the libraries underneath."""
    datasets.disable_progress_bars()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    warnings.filterwarnings("ignore", category=FutureWarning)


def trainer_config(
    training: TrainingConfig, model: ModelConfig, folder: Path, rows: int, seed: int, processes: int
) -> SFTConfig:
    """The settings of transformers' and TRL's trainer for a run of ours, `training.arguments` among them."""
    check_arguments(training)
    if training.wandb != "off":
        os.environ["WANDB_MODE"] = training.wandb
        os.environ.setdefault("WANDB_DIR", str(folder))
    default = {"lr_scheduler_type": "linear", "optim": "adamw_torch", "weight_decay": 0.0, "max_grad_norm": 1.0}
    dtype, plan = compute_type(model), schedule(rows, training, processes)
    try:
        settings = SFTConfig(
            output_dir=str(folder),
            per_device_train_batch_size=training.micro_batch,
            gradient_accumulation_steps=plan.accumulation,
            max_steps=plan.steps,
            learning_rate=training.learning_rate,
            warmup_steps=plan.warmup,
            seed=seed,
            use_cpu=on_cpu(model),
            bf16=mixes_precision(model, training, processes),
            fp16=dtype == torch.float16,
            gradient_checkpointing=training.gradient_checkpointing,
            ddp_find_unused_parameters=False,
            # Rows are ready, and the collator wants their mask.
            dataset_kwargs={"skip_prepare_dataset": True},
            max_length=None,
            remove_unused_columns=False,
            dataloader_pin_memory=not on_cpu(model),
            # `TrainingCallback` decides when to evaluate and save, and shows progress.
            eval_strategy="no",
            save_strategy="no",
            save_total_limit=2,
            logging_steps=1,
            logging_nan_inf_filter=False,
            disable_tqdm=True,
            report_to=[] if training.wandb == "off" else ["wandb"],
            run_name=str(folder.parent),
            **{**default, **training.arguments},
        )
    except (ValueError, TypeError, ImportError) as error:
        raise UserError(
            f"training.arguments: {first_line(error)}" if training.arguments else f"training: {error}"
        ) from error
    if training.backend == "peft":  # Unsloth's own checkpointing takes no settings
        # transformers renamed it; as an argument one of the names is refused or warned of, whatever the version.
        settings.gradient_checkpointing_kwargs = settings.activation_checkpointing_kwargs = CHECKPOINTING
    return settings


def check_arguments(training: TrainingConfig) -> None:
    """Raises UserError where `training.arguments` has a key, optimiser or schedule unknown to transformers."""
    names = [field.name for field in fields(TrainingArguments)]
    for name in training.arguments:
        if name not in names:
            raise UserError(f"training.arguments.{name}: TrainingArguments have no such key{did_you_mean(name, names)}")
    kinds: dict[str, type[Enum]] = {"optim": OptimizerNames, "lr_scheduler_type": SchedulerType}
    for name, kind in kinds.items():
        known = [member.value for member in kind]
        if (given := training.arguments.get(name, known[0])) not in known:
            raise UserError(f"training.arguments.{name}: {given!r} is none of {', '.join(known)}")


def with_blank_row(table: pa.Table) -> pa.Table:
    """The rows and, after the last, one of a single token without loss."""
    blank = {"trajectory": "", "conversation": 0, "role": "", "ids": [0], "loss_mask": [0]}
    if "number" in table.column_names:
        blank |= {"weight": 0.0, "chosen": True, "number": -1, "example_number": 0, "role_number": 0}
    return pa.concat_tables([table, pa.Table.from_pylist([blank], schema=table.schema)]).combine_chunks()


class RowTrainer(SFTTrainer):
    """Trains a PeftModel on a table of rows (`training.rows`)."""

    collator = Collator
    shares_prompts = True
    """True where it can learn from rows that share their prompts (`training.batches.as_tree`)."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        arguments: SFTConfig,
        train: pa.Table,
        dev: pa.Table,
        watch: TrainingCallback,
        resumed: bool,
        training: TrainingConfig,
    ) -> None:
        pad = tokenizer.pad_token_id
        arguments.eval_on_start = len(dev) > 0 and not resumed
        if training.padding_free:
            pack_attention(model, on_gpu=not arguments.use_cpu)
        if arguments.bf16 or arguments.fp16:
            take_inputs_as_they_are(model)
        if arguments.bf16 and arguments.use_cpu:
            round_frozen_products(model)
        if not arguments.use_cpu and training.backend == "peft":
            fuse_layers(model)
        super().__init__(
            model=model,
            args=arguments,
            data_collator=self.collator(
                pad if pad is not None else tokenizer.eos_token_id or 0,
                training.padding_free,
                training.padding_free and self.shares_prompts and arguments.use_cpu,  # no kernel of GPUs does it
            ),
            train_dataset=Dataset(InMemoryTable(with_blank_row(train))),
            processing_class=tokenizer,
            callbacks=[watch],
        )
        # PEFT's would compile and fill in a template whenever an adapter is saved.
        model.create_or_update_model_card = lambda folder: None
        self.remove_callback(PrinterCallback)
        # Makes transformers count the loss tokens of the whole batch and hand the number to `compute_loss`.
        self.model_accepts_loss_kwargs = True
        self.lengths = row_lengths(train)
        self.dev = sorted(dev.to_pylist(), key=lambda row: len(row["ids"]))
        self.tokens = 0
        self.padding_free = training.padding_free

    def create_accelerator_and_postprocess(self) -> None:
        if self.args.use_cpu:
            shard_on_cpu(self.args.distributed_state)
        super().create_accelerator_and_postprocess()
        keep_float32(self.accelerator)

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler[int]:
        rows_at_once = self.args.per_device_train_batch_size * self.args.world_size if self.args.world_size > 1 else 1
        micro_batches = math.ceil(self.rows_per_epoch() / self.args.per_device_train_batch_size)
        per_device = math.ceil(micro_batches / self.args.world_size)
        per_epoch = math.ceil(per_device / self.args.gradient_accumulation_steps)
        epoch = lambda: self.state.global_step // per_epoch  # noqa: E731
        return EpochSampler(self.row_order, self.rows_per_epoch(), len(self.lengths), epoch, rows_at_once)

    def rows_per_epoch(self) -> int:
        """Rows that the sampler yields in an epoch, before it fills up the last micro-batches."""
        return len(self.lengths)

    def row_order(self, epoch: int) -> list[int]:
        size, seed = self.args.per_device_train_batch_size, self.args.seed
        batch = size * self.args.gradient_accumulation_steps * self.args.world_size
        order = epoch_order(self.lengths, batch, seed, epoch)
        return mixed_batches(order, self.lengths, batch, size) if self.padding_free else order

    def uses_trl_head(self) -> bool:
        """See `compute_loss`; tests of what GPUs run answer otherwise."""
        return not self.args.use_cpu

    def count(self, inputs: Mapping[str, torch.Tensor]) -> None:
        """Add a micro-batch to the tokens of the step; blank rows do not count."""
        self.tokens += int(inputs["row_lengths"][inputs["row_labels"] > 0].sum())

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        """Summed loss over `num_items_in_batch` (without it, over the micro-batch's own loss tokens).

        On a GPU this is TRL's, whose fused head skips tokens without a label. On a CPU TRL computes the head for all
        positions, which for a small model with a wide vocabulary is a fifth of the time: here only those whose next
        token is learnt are computed.
        """
        if self.model.training:
            self.count(inputs)
        if self.uses_trl_head() or return_outputs:
            unshard_head(self.model)
            taken = {name: value for name, value in inputs.items() if name in (*MODEL_INPUTS, "labels")}
            return super().compute_loss(model, taken, return_outputs, num_items_in_batch)
        logits, kept = self.logits_of_labels(model, inputs)
        summed = cross_entropy(logits.flatten(0, 1).float(), kept.flatten(), ignore_index=IGNORED, reduction="sum")
        if num_items_in_batch is None:
            return summed / (kept != IGNORED).sum()
        # The count is over all processes, and DDP averages the gradients over them.
        return summed / num_items_in_batch * self.accelerator.num_processes

    @staticmethod
    def logits_of_labels(model: Any, inputs: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits (rows, positions, vocabulary) where the next token of any row is a label, and the labels there."""
        labels = inputs["labels"][:, 1:]
        positions = (labels != IGNORED).any(0).nonzero().squeeze(1)
        taken = {name: inputs[name] for name in MODEL_INPUTS if name in inputs}
        logits = model(**taken, use_cache=False, logits_to_keep=positions).logits
        return logits, labels[:, positions]

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """`dev_loss`, as transformers' own evaluation reports it. (That one is a mean of micro-batch means.)"""
        self.model.eval()
        metrics = {f"{metric_key_prefix}_loss": self.dev_loss()}
        self.log(metrics)
        self.control: Any = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        self.model.train()
        return metrics

    def dev_loss(self) -> float:
        """The mean loss over all loss tokens of the dev rows."""
        size, here, processes = self.args.per_device_train_batch_size, self.args.process_index, self.args.world_size
        summed = torch.zeros(2, dtype=torch.float64, device=self.args.device)
        with torch.no_grad():
            # Every process takes part in every round, one that has no rows left with a weight of zero.
            for at in range(0, len(self.dev), size * processes):
                mine: Sequence[dict[str, Any]] = self.dev[at + here * size : at + (here + 1) * size]
                inputs = self._prepare_inputs(self.data_collator(mine or self.dev[:1]))
                count = (inputs["labels"][:, 1:] != IGNORED).sum() if mine else 0
                with self.compute_loss_context_manager():
                    loss = self.compute_loss(self.model, inputs)
                summed += torch.stack([loss.detach().double() * count, torch.as_tensor(count, device=loss.device)])
        total, tokens = self.accelerator.reduce(summed, "sum").tolist()
        return float(total / tokens)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs:
            logs["tokens"] = int(self.accelerator.reduce(torch.tensor(self.tokens, device=self.args.device), "sum"))
            self.tokens = 0
        super().log(logs, start_time)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """The adapter alone: under FSDP, transformers would gather the frozen weights too."""
        weights = adapter_weights(self.model)
        if self.args.should_save:
            self._save(output_dir, state_dict=weights)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        try:
            super()._save_checkpoint(model, trial)
        # torch and safetensors have errors of their own for a full disk.
        except (OSError, RuntimeError, SafetensorError) as error:
            raise UserError(
                f"{self.args.output_dir}: cannot save a checkpoint ({error}). Make room or fix the folder's "
                "permissions, then run the same command again: it resumes from the checkpoint before"
            ) from error

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Checkpoints need none; the published adapter gets ours (`training.adapter`)."""
