"""RowTrainer with the losses of rows that have lessons: their weights, sides and examples.

TRL's DPOTrainer and KTOTrainer tokenise text, and hold a pair in one forward pass. Here the labels are the ids that
were sampled, and a trajectory has a row for each conversation. So the loss of a step is computed twice: first without
gradients over all rows of the step, which gives the loss of every example and its derivative by the log-probability of
each side; then with gradients, a micro-batch at a time, as the sum of log-probabilities times these derivatives. That
is the gradient of the loss itself, whatever the micro-batches and devices.

The reference is the model that training starts from, which is the one that sampled, save where `rounds.start: base`
trains from the base model what an adapter sampled. Its log-probabilities are computed once from the stored ids in the
precision of training, and kept on disk; the sampler's own come from another engine, at another temperature.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch.nn.functional import cross_entropy
from trl import SFTConfig

from ratchet.core.config import TrainingConfig
from ratchet.core.errors import UserError
from ratchet.core.files import write_atomic
from ratchet.core.progress import Progress
from ratchet.training.batches import IGNORED, Collator, packing_of
from ratchet.training.callback import TrainingCallback
from ratchet.training.objectives.objective import (
    ExampleLogProbabilities,
    ExampleObjective,
    RowLogProbabilities,
    RowObjective,
    load_objective,
)
from ratchet.training.trainer import RowTrainer

PART_ROWS = 64
"""Rows of one file: what a kill costs at most, on each device."""

LogProbabilities = npt.NDArray[np.float32]
"""The log-probabilities of one row's labels, in their order."""


class ReferenceCache:
    """The values of a table's rows, in files of `PART_ROWS` rows. A file is there completely or not at all."""

    def __init__(self, folder: Path, rows: pa.Table) -> None:
        self.folder = folder
        self.labels = [int(np.sum(mask.values.to_numpy())) for mask in rows["loss_mask"]]

    @property
    def parts(self) -> list[range]:
        count = len(self.labels)
        return [range(at, min(at + PART_ROWS, count)) for at in range(0, count, PART_ROWS)]

    def path(self, part: int) -> Path:
        return self.folder / f"{part:05d}.parquet"

    def missing(self) -> list[int]:
        return [number for number in range(len(self.parts)) if self._read(number) is None]

    def write(self, part: int, values: Sequence[LogProbabilities]) -> None:
        sink = pa.BufferOutputStream()
        column = pa.array([value.astype(np.float32) for value in values], pa.list_(pa.float32()))
        pq.write_table(pa.table({"logps": column}), sink, compression="zstd")
        write_atomic(self.path(part), sink.getvalue().to_pybytes())

    def read(self) -> list[LogProbabilities]:
        """The values of every row. ValueError where a part is missing, which would be a bug."""
        rows: list[LogProbabilities] = []
        for number in range(len(self.parts)):
            values = self._read(number)
            if values is None:
                raise ValueError(f"{self.path(number)}: is missing or damaged")
            rows += values
        return rows

    def _read(self, part: int) -> list[LogProbabilities] | None:
        try:
            column = pq.read_table(self.path(part))["logps"]
        except (OSError, KeyError, pa.ArrowInvalid):
            return None
        values = [row.values.to_numpy(zero_copy_only=False) for row in column]
        if [len(value) for value in values] != [self.labels[row] for row in self.parts[part]]:
            return None
        return values


@dataclass(frozen=True)
class LessonCollator(Collator):
    """Adds what a row's loss needs: its number, its example's and its role's, weight and side, each (rows,)."""

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        kinds = dict.fromkeys(("number", "example_number", "role_number"), torch.long)
        kinds |= {"weight": torch.float32, "chosen": torch.bool}
        own = {name: torch.tensor([row[name] for row in rows], dtype=kind) for name, kind in kinds.items()}
        return super().__call__(rows) | own


class ObjectiveTrainer(RowTrainer):
    """Trains a PeftModel on rows with lessons (`training.lessons`), which `with_numbers` numbered before the split."""

    collator = LessonCollator
    shares_prompts = False

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
        self.objective, self.resumed, self.watch = load_objective(training), resumed, watch
        self.packing = packing_of(train, self.objective)
        self.rows = pa.concat_tables([train, dev]).sort_by("number").combine_chunks()
        self.cache = ReferenceCache(Path(str(arguments.output_dir)) / "reference", self.rows)
        self._reference: list[LogProbabilities] | None = None
        self.example_weights = torch.zeros(max(self.rows["example_number"].to_pylist()) + 1, dtype=torch.float64)
        self.example_weights[self.rows["example_number"].to_pylist()] = torch.tensor(
            self.rows["weight"].to_pylist(), dtype=torch.float64
        )
        self.roles = sorted(set(self.rows["role"].to_pylist()))
        self.role_weights = torch.tensor([training.role_weights.get(role, 1.0) for role in self.roles])
        roles: list[set[str]] = [set() for _ in self.example_weights]
        for example, role in zip(self.rows["example_number"].to_pylist(), self.rows["role"].to_pylist(), strict=True):
            roles[example].add(role)
        self.example_roles = [tuple(sorted(own)) for own in roles]
        super().__init__(model, tokenizer, arguments, train, dev, watch, resumed, training)

    def rows_per_epoch(self) -> int:
        return self.packing.slots if self.packing else super().rows_per_epoch()

    def row_order(self, epoch: int) -> list[int]:
        return self.packing.order(self.lengths, self.args.seed, epoch) if self.packing else super().row_order(epoch)

    def log_probabilities(self, model: Any, inputs: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """(log-probabilities, which of them are of labels), both (rows, positions where any row has a label); of rows
        without padding (rows, the most labels of any row)."""
        logits, labels = self.logits_of_labels(model, inputs)
        losses = cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), ignore_index=IGNORED, reduction="none")
        if "cu_seq_lens_q" not in inputs:
            return -losses.view(labels.shape), labels != IGNORED
        counts = inputs["row_labels"]
        learnt = torch.arange(int(counts.max()), device=counts.device) < counts[:, None]
        return losses.new_zeros(learnt.shape).masked_scatter(learnt, -losses), learnt

    def reference(self) -> list[LogProbabilities]:
        """Log-probabilities before training, by row. All processes make the first call, which computes them."""
        if self._reference is None:
            missing = self.cache.missing()
            if missing and self.resumed:
                raise UserError(
                    f"{self.cache.folder}: the log-probabilities from before training are missing or damaged, and "
                    f"training has begun: delete {self.args.output_dir} to start again"
                )
            with ExitStack() as stack:
                progress = None
                if missing and self.is_world_process_zero():
                    left = sum(len(self.cache.parts[part]) for part in missing)
                    whole = len(self.rows)
                    progress = stack.enter_context(Progress("log-probabilities before training", whole, whole - left))
                self._compute_reference(missing, progress)
            self._reference = self.cache.read()
        return self._reference

    def _compute_reference(self, missing: Sequence[int], progress: Progress | None) -> None:
        here, processes, size = self.args.process_index, self.args.world_size, self.args.per_device_train_batch_size
        self.accelerator.wait_for_everyone()
        was_training = self.model.training
        self.model.eval()
        for at in range(0, len(missing), processes):
            is_mine = at + here < len(missing)
            part = missing[at + here] if is_mine else missing[at]
            numbers = self.cache.parts[part]
            rows = sorted(self.rows.slice(numbers.start, len(numbers)).to_pylist(), key=lambda row: -len(row["ids"]))
            computed: dict[int, LogProbabilities] = {}
            # Every process makes as many forward passes, since under FSDP they make them together.
            for first in range(0, PART_ROWS, size):
                batch = rows[first : first + size] or rows[:1]
                inputs = self._prepare_inputs(self.data_collator(batch))
                with torch.no_grad(), self.compute_loss_context_manager():
                    logps, learnt = self.log_probabilities(self.model, inputs)
                for row, values, own in zip(batch, logps.float(), learnt, strict=True):
                    computed[row["number"]] = values[own].cpu().numpy()
            if is_mine:
                self.cache.write(part, [computed[number] for number in numbers])
            if progress:
                progress.advance(sum(len(self.cache.parts[one]) for one in missing[at : at + processes]))
            self.watch.end_if_told()
        self.model.train(was_training)
        self.accelerator.wait_for_everyone()

    def _reference_of(self, inputs: Mapping[str, torch.Tensor], learnt: torch.Tensor) -> torch.Tensor:
        """The reference as `log_probabilities` lays it out; 0 for a blank row."""
        values = self.reference()
        reference = torch.zeros(learnt.shape, dtype=torch.float32, device=learnt.device)
        known = [values[number] if number >= 0 else np.zeros(0, np.float32) for number in inputs["number"].tolist()]
        reference[learnt] = torch.from_numpy(np.concatenate(known)).to(reference.device)
        return reference

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        logps, learnt = self.log_probabilities(model, inputs)
        if self.model.training:
            self.count(inputs)
        if self.packing is not None:
            summed = (inputs["derivative"] * logps.sum(1)).sum()
            # The value is the loss; the gradient is that of the sum.
            return (summed - summed.detach() + inputs["share"].sum()) * self.accelerator.num_processes
        assert isinstance(self.objective, RowObjective)
        has_reference = self.objective.needs_reference
        reference = self._reference_of(inputs, learnt) if has_reference else torch.zeros_like(logps)
        weights = inputs["weight"] * self._weights_of_roles(inputs)
        roles = [self.roles[number] for number in inputs["role_number"].tolist()]
        total = self.objective.loss(RowLogProbabilities(logps, reference, learnt, weights, roles))
        if num_items_in_batch is None:
            return total / learnt.sum()
        return total / num_items_in_batch * self.accelerator.num_processes

    def _weights_of_roles(self, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """The weight of each row's role, (rows,)."""
        numbers = inputs["role_number"]
        return self.role_weights.to(numbers.device)[numbers]

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: Any) -> tuple[list[Any], Any]:
        batches, items = super().get_batch_samples(epoch_iterator, num_batches, device)
        if self.packing is not None:
            batches = [self._prepare_inputs(batch) for batch in batches]
            self._derive(batches)
        elif self.objective.needs_reference:
            self.reference()
        return batches, items

    def _derive(self, batches: Sequence[dict[str, torch.Tensor]]) -> float:
        """Give the batches of a step the derivatives of its loss by each row's log-probability, and each row's share of
        the loss. Returns the loss: the mean over the examples that are there on any process."""
        self.reference()
        # By example: the ratio of the chosen and of the rejected side, log-probability and tokens of the chosen, rows.
        sums = torch.zeros((len(self.example_weights), 5), dtype=torch.float64, device=self.args.device)
        self.model.eval()
        for batch in batches:
            with torch.no_grad(), self.compute_loss_context_manager():
                logps, learnt = self.log_probabilities(self.model, batch)
            weight, total = self._weights_of_roles(batch).double(), logps.double().sum(1)
            ratio = weight * (total - self._reference_of(batch, learnt).double().sum(1))
            chosen = batch["chosen"].double()
            now, tokens = weight * total * chosen, weight * learnt.sum(1) * chosen
            columns = (ratio * chosen, ratio * (1 - chosen), now, tokens, learnt.any(1))
            sums.index_add_(0, batch["example_number"], torch.stack([column.double() for column in columns], 1))
        self.model.train()
        sums = self.accelerator.reduce(sums, "sum")
        present = sums[:, 4] > 0
        values = sums[present, :3].requires_grad_()
        tokens, weights = sums[present, 3], self.example_weights.to(sums.device)[present]
        assert isinstance(self.objective, ExampleObjective)
        roles = [self.example_roles[example] for example in present.nonzero().flatten().tolist()]
        examples = ExampleLogProbabilities(values[:, 0], values[:, 1], values[:, 2], tokens, roles)
        losses = self.objective.losses(examples)
        losses = losses * weights / len(losses)
        derivatives = torch.zeros_like(sums[:, :3])
        [derivatives[present]] = torch.autograd.grad(losses.sum(), [values])
        shares = torch.zeros_like(sums[:, 0])
        shares[present] = losses.detach() / sums[present, 4]
        for batch in batches:
            own = derivatives[batch["example_number"]]
            derivative = torch.where(batch["chosen"], own[:, 0] + own[:, 2], own[:, 1]) * self._weights_of_roles(batch)
            is_row = batch["number"] >= 0
            batch["derivative"] = torch.where(is_row, derivative, 0).float()
            batch["share"] = torch.where(is_row, shares[batch["example_number"]], 0).float()
        return float(losses.detach().sum())

    def dev_loss(self) -> float:
        if self.packing is None:
            if self.objective.needs_reference:
                self.reference()
            return super().dev_loss()
        size, here, processes = self.args.per_device_train_batch_size, self.args.process_index, self.args.world_size
        blank = {**self.dev[0], "ids": [0], "loss_mask": [0], "number": -1}
        batches = []
        for at in range(0, len(self.dev), size * processes):
            mine: Sequence[dict[str, Any]] = self.dev[at + here * size : at + (here + 1) * size]
            batches.append(self._prepare_inputs(self.data_collator(mine or [blank])))
        return self._derive(batches)
