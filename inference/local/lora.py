"""LoRA adapters applied at run time, per token: base and adapters share one batch and no restart is needed.

y = W x + (alpha / r) B A x (Hu et al. 2021, section 4.1), where each packed token has its own adapter or none: a frozen
role runs on the base model in the same step in which a trained role runs on its adapter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from safetensors.torch import load

from ratchet.core.errors import UserError
from ratchet.inference.adapters import MERGE, read_uniform_adapter
from ratchet.inference.weights import layer_alone


@dataclass
class Group:
    """The packed tokens of one step that use one adapter; None when all do."""

    adapter: int
    rows: torch.Tensor | None = None
    last: torch.Tensor | None = None
    """The rows of the output layer, which sees only the tokens whose logits are needed."""


Pair = tuple[torch.Tensor, torch.Tensor]
"""A [inputs, rank] and B [rank, outputs], the second scaled."""


class LoraBank:
    """Adapters loaded into a model, in the format of its activations; `head` is its output layer.

    `groups` is set before each forward pass.
    """

    def __init__(self, model: torch.nn.Module, head: torch.nn.Module | None, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._head = head
        self._names = {name for name, _ in model.named_modules()}
        self._linears = {name: m for name, m in model.named_modules() if isinstance(m, torch.nn.Linear)}
        self._weights: dict[str, dict[int, Pair]] = {}
        self._joined: dict[tuple[tuple[str, ...], int], Pair | None] = {}
        self._count = 0
        self.groups: list[Group] = []

    def load(self, folder: str) -> int:
        """Load a PEFT LoRA folder; returns its number. UserError for anything but plain LoRA on linear layers."""
        adapter = read_uniform_adapter(folder)
        tensors, rank = load(adapter.weights), adapter.config["r"]
        scale = adapter.config["lora_alpha"] / (rank**0.5 if adapter.config.get("use_rslora") else rank)
        self._count += 1
        for name, layer in adapter.layers.items():
            module_name = layer_alone(name)
            linear = self._linears.get(module_name)
            if linear is None and module_name in self._names:
                raise UserError(f"{folder}: {module_name} is no linear layer, and only these can be applied; {MERGE}")
            if linear is None:
                raise UserError(f"{folder}: was trained for another model: this one has no layer {module_name}")
            if (layer.inputs, layer.outputs) != (linear.in_features, linear.out_features):
                raise UserError(f"{folder}: layer {module_name} has another shape in this model")
            down = tensors[layer.down].to(linear.weight.device, self._dtype)
            up = (tensors[layer.up].float() * scale).to(linear.weight.device, self._dtype)
            if module_name not in self._weights:
                self._weights[module_name] = {}
                linear.register_forward_hook(self._hook(self._weights[module_name]))
            self._weights[module_name][self._count] = (down.t().contiguous(), up.t().contiguous())
        return self._count

    def groups_within(self, first: int, end: int) -> list[Group]:
        """The adapters of a step's tokens first <= t < end, with rows counted from `first`."""
        found = []
        for group in self.groups:
            rows = group.rows
            if rows is not None:
                rows = rows[(rows >= first) & (rows < end)] - first
            if rows is None or len(rows):
                found.append(Group(group.adapter, rows))
        return found

    def add(
        self,
        names: tuple[str, ...],
        outputs: Sequence[int],
        x: torch.Tensor,
        output: torch.Tensor,
        groups: Sequence[Group],
    ) -> torch.Tensor:
        """What several layers with the input x [tokens, inputs] give, side by side, and what the adapters add to it.

        `outputs` are their numbers of outputs, `groups` the adapters of these tokens. The result is in the format of
        activations where an adapter adds to it.
        """
        for group in groups:
            if (names, group.adapter) not in self._joined:
                self._joined[names, group.adapter] = self._join(names, outputs, group.adapter)
            pair = self._joined[names, group.adapter]
            if pair is not None:
                output = output.to(self._dtype)
                _add(output, x, pair, group.rows)
        return output

    def _join(self, names: tuple[str, ...], outputs: Sequence[int], adapter: int) -> Pair | None:
        pairs = [self._weights.get(name, {}).get(adapter) for name in names]
        known = [pair[0] for pair in pairs if pair is not None]
        if not known:
            return None
        ups = [
            torch.zeros((0, size), dtype=self._dtype) if pair is None else pair[1]
            for pair, size in zip(pairs, outputs, strict=True)
        ]
        return torch.cat(known, dim=1), torch.block_diag(*ups)

    def _hook(self, weights: dict[int, Pair]) -> Any:
        def add_delta(module: torch.nn.Module, inputs: tuple[torch.Tensor], output: torch.Tensor) -> torch.Tensor:
            for group in self.groups:
                pair = weights.get(group.adapter)
                if pair is not None:
                    x = inputs[0].view(-1, inputs[0].shape[-1])
                    _add(output.view(-1, output.shape[-1]), x, pair, group.last if module is self._head else group.rows)
            return output

        return add_delta


def _add(output: torch.Tensor, x: torch.Tensor, pair: Pair, rows: torch.Tensor | None) -> None:
    """Add an adapter's part to some rows of a layer's output; None: to all."""
    if rows is None:
        output.addmm_(x @ pair[0], pair[1])
    else:
        output.index_add_(0, rows, x.index_select(0, rows) @ pair[0] @ pair[1])
