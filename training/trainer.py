"""TRL's SFTTrainer on token rows, with the paper's optimisation (seed paper 002, appendix D.2).

Rows come as token ids and a mask and are trained on as they are: no template, tokenizer, truncation or packing of
TRL's touches them. The loss of a step is the mean over all loss tokens of its batch, whichever micro-batch or device
they are on, so micro_batch changes speed and memory and nothing else.
"""

from __future__ import annotations

import importlib.util
import math
import os
import warnings
from collections.abc import Sequence
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
from transformers import PrinterCallback
from trl import SFTConfig, SFTTrainer

from ratchet.config import ModelConfig, TrainingConfig
from ratchet.errors import UserError
from training.data import IGNORED, Collator, EpochSampler, row_lengths, with_blank
from training.lora import compute_type, on_cpu
from training.processes import adapter_weights, keep_float32, shard_on_cpu, unshard_head
from training.schedule import schedule
from training.watch import Watch


def quiet() -> None:
    """One line of progress is enough: no bars or notices of the libraries underneath."""
    datasets.disable_progress_bars()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    warnings.filterwarnings("ignore", category=FutureWarning)


def trainer_config(
    training: TrainingConfig, model: ModelConfig, folder: Path, rows: int, seed: int, processes: int
) -> SFTConfig:
    dtype, made = compute_type(model), schedule(rows, training, processes)
    try:
        return SFTConfig(
            output_dir=str(folder),
            per_device_train_batch_size=training.micro_batch,
            gradient_accumulation_steps=made.accumulation,
            max_steps=made.steps,
            learning_rate=training.learning_rate,
            lr_scheduler_type="linear",
            warmup_steps=made.warmup,
            optim=training.optimizer,
            weight_decay=training.weight_decay,
            max_grad_norm=training.max_grad_norm,
            seed=seed,
            use_cpu=on_cpu(model),
            bf16=dtype == torch.bfloat16,
            fp16=dtype == torch.float16,
            gradient_checkpointing=training.gradient_checkpointing,
            ddp_find_unused_parameters=False,
            # Rows are ready, and the collator wants their mask.
            dataset_kwargs={"skip_prepare_dataset": True},
            max_length=None,
            remove_unused_columns=False,
            dataloader_pin_memory=not on_cpu(model),
            # `Watch` decides when to evaluate and save, and shows progress.
            eval_strategy="no",
            save_strategy="no",
            save_total_limit=2,
            logging_steps=1,
            logging_nan_inf_filter=False,
            disable_tqdm=True,
            report_to=report_to(training.wandb, folder),
            run_name=str(folder.parent),
        )
    except ValueError as error:
        raise UserError(f"training: {error}") from error


def report_to(wandb: str, folder: Path) -> list[str]:
    """transformers' own wandb callback, or nothing at all."""
    if wandb == "off":
        return []
    if importlib.util.find_spec("wandb") is None:
        raise UserError(f"training.wandb={wandb}: `pip install '.[wandb]'` first, or set training.wandb=off")
    os.environ["WANDB_MODE"] = wandb
    os.environ.setdefault("WANDB_DIR", str(folder))
    return ["wandb"]


class RowTrainer(SFTTrainer):
    """Trains a PeftModel on a table of rows (`training.rows`)."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        arguments: SFTConfig,
        train: pa.Table,
        dev: pa.Table,
        watch: Watch,
        resumed: bool,
    ) -> None:
        pad = tokenizer.pad_token_id
        arguments.eval_on_start = len(dev) > 0 and not resumed
        super().__init__(
            model=model,
            args=arguments,
            data_collator=Collator(pad if pad is not None else tokenizer.eos_token_id or 0),
            train_dataset=Dataset(InMemoryTable(with_blank(train))),
            processing_class=tokenizer,
            callbacks=[watch],
        )
        self.remove_callback(PrinterCallback)
        # Makes transformers count the loss tokens of the whole batch and hand the number to `compute_loss`.
        self.model_accepts_loss_kwargs = True
        self.lengths = row_lengths(train)
        self.dev = sorted(dev.to_pylist(), key=lambda row: len(row["ids"]))
        self.tokens = 0

    def create_accelerator_and_postprocess(self) -> None:
        if self.args.use_cpu:
            shard_on_cpu(self.args.distributed_state)
        super().create_accelerator_and_postprocess()
        keep_float32(self.accelerator)

    def _get_train_sampler(self, train_dataset: Any = None) -> EpochSampler:
        together = self.args.per_device_train_batch_size * self.args.world_size if self.args.world_size > 1 else 1
        batch = self.args.per_device_train_batch_size * self.args.gradient_accumulation_steps * self.args.world_size
        micro_batches = math.ceil(len(self.lengths) / self.args.per_device_train_batch_size)
        per_device = math.ceil(micro_batches / self.args.world_size)
        per_epoch = math.ceil(per_device / self.args.gradient_accumulation_steps)
        epoch = lambda: self.state.global_step // per_epoch  # noqa: E731
        return EpochSampler(self.lengths, batch, self.args.seed, epoch, together)

    def uses_trl_head(self) -> bool:
        """See `compute_loss`; tests of what GPUs run answer otherwise."""
        return not self.args.use_cpu

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
        labels = inputs["labels"][:, 1:]
        learnt = labels != IGNORED
        if self.model.training:
            self.tokens += int(inputs["attention_mask"][learnt.any(1)].sum())  # blank rows do not count
        if self.uses_trl_head() or return_outputs:
            unshard_head(self.model)
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        positions = learnt.any(0).nonzero().squeeze(1)
        logits = model(
            input_ids=inputs["input_ids"],
            attention_mask=inputs["attention_mask"],
            use_cache=False,
            logits_to_keep=positions,
        ).logits
        summed = cross_entropy(
            logits.flatten(0, 1).float(), labels[:, positions].flatten(), ignore_index=IGNORED, reduction="sum"
        )
        if num_items_in_batch is None:
            return summed / learnt.sum()
        # The count is over all processes, and DDP averages the gradients over them.
        return summed / num_items_in_batch * self.accelerator.num_processes

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """The mean loss over all loss tokens of the dev rows. (transformers' own is a mean of micro-batch means.)"""
        self.model.eval()
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
        metrics = {f"{metric_key_prefix}_loss": total / tokens}
        self.log(metrics)
        self.control: Any = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        self.model.train()
        return metrics

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs:
            tokens = torch.tensor(float(self.tokens), device=self.args.device)
            logs["tokens"] = float(self.accelerator.reduce(tokens, "sum"))
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
        except (
            OSError,
            RuntimeError,
            SafetensorError,
        ) as error:  # torch and safetensors have their own for a full disk
            raise UserError(
                f"{self.args.output_dir}: cannot save a checkpoint ({error}). Make room or mend the folder's "
                "permissions, then run the same command again: it goes on from the checkpoint before"
            ) from error

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Checkpoints need none; the published adapter gets ours (`training.adapter`)."""
