"""Training on several processes: FSDP's settings, the whole adapter out of its shards, and a process that is gone."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import DistributedType
from torch.distributed import DistError
from torch.distributed.tensor import DTensor

from ratchet.errors import UserError

PATIENCE = timedelta(hours=1)
"""How long processes wait for each other: one makes the rows of a large round while the others wait. A process that
ends is noticed at once; this is for one that hangs."""


def shard_on_cpu(state: PartialState) -> None:
    """Let accelerate use FSDP on CPU processes, where it would run DDP without a word.

    torch shards on CPUs as it does on GPUs; accelerate 1.15 asks only whether the processes have an accelerator each.
    So the tests run what the GPUs will.
    """
    if state.distributed_type == DistributedType.MULTI_CPU and os.environ.get("ACCELERATE_USE_FSDP") == "true":
        state.distributed_type = DistributedType.MULTI_GPU


def sum_in_float32(accelerator: Any) -> None:
    """Under FSDP in 16 bits, accelerate adds up gradients in 16 bits too; the adapter and its gradients are float32."""
    plugin = getattr(accelerator.state, "fsdp_plugin", None)
    if plugin is not None and plugin.mixed_precision_policy is not None:
        plugin.mixed_precision_policy = replace(plugin.mixed_precision_policy, reduce_dtype=torch.float32)


def adapter_weights(model: Any) -> dict[str, Any]:
    """The trained weights of a PeftModel, whole. Under FSDP each process holds a part: all of them have to call it."""
    return {
        name: weight.full_tensor() if isinstance(weight, DTensor) else weight.detach()
        for name, weight in model.named_parameters()
        if weight.requires_grad
    }


def take_leave() -> None:
    """Of the other processes, when all is done: one that exits within their group may be aborted by torch's threads."""
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


@contextlib.contextmanager
def lost_processes() -> Iterator[None]:
    """Says in words that another process of this training ended, or does not answer."""
    try:
        yield
    except RuntimeError as error:
        if not (isinstance(error, DistError) or "gloo" in str(error)):
            raise
        raise UserError(
            f"another process of this training ended or does not answer ({str(error).splitlines()[0][:160]}). Why is "
            "in its own output, here or in the log of its machine: an error, or a kill, as for too much memory. Run "
            "the same command again: it goes on from the last checkpoint"
        ) from error
