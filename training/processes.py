"""Training on several processes: FSDP's settings, the complete adapter from its shards, and a process that ended."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import DistributedType
from torch.distributed import DistError
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from ratchet.core.errors import UserError

PROCESS_TIMEOUT = timedelta(hours=1)
"""Processes wait this long for each other, as while one builds the rows of a large round. A process that ends is
noticed at once; this is for one that hangs."""


def shard_on_cpu(state: PartialState) -> None:
    """Let accelerate use FSDP on CPU processes, where it would run DDP without a word.

    torch shards on CPUs as it does on GPUs; accelerate 1.15 asks only whether the processes have an accelerator each.
    So the tests run what the GPUs will.
    """
    if state.distributed_type == DistributedType.MULTI_CPU and os.environ.get("ACCELERATE_USE_FSDP") == "true":
        state.distributed_type = DistributedType.MULTI_GPU


def keep_float32(accelerator: Any) -> None:
    """Under FSDP in 16 bits, accelerate adds up gradients in 16 bits and rounds log-probabilities, which the model
    returns, to 16 bits. Both stay float32, as they are under DDP."""
    plugin = getattr(accelerator.state, "fsdp_plugin", None)
    if plugin is not None and plugin.mixed_precision_policy is not None:
        plugin.mixed_precision_policy = replace(
            plugin.mixed_precision_policy, reduce_dtype=torch.float32, output_dtype=None
        )


def unshard_head(model: Any) -> None:
    """Under FSDP, let every process have the complete output head until the backward pass ends.

    FSDP does so when a module runs. TRL multiplies by the head's weight without running the head, and FSDP's backward
    pass in 16 bits fails on weights that it has never put together.
    """
    head = model.get_output_embeddings()
    if isinstance(head, FSDPModule):
        head.unshard()


def adapter_weights(model: Any) -> dict[str, Any]:
    """All trained weights of a PeftModel. Under FSDP each process holds a part: all of them have to call it."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()  # weights that FSDP left unsharded after an evaluation are rounded to 16 bits
    return {
        name: weight.full_tensor() if isinstance(weight, DTensor) else weight.detach()
        for name, weight in model.named_parameters()
        if weight.requires_grad
    }


def end_process() -> None:
    """End this process when all is done, if it trained together with others.

    Gloo's threads may hold tensors of the last collectives for longer, and abort the process when they release one
    while Python or the group is being torn down (pytorch/pytorch#179291): a process with Gloo ends without either.
    """
    if not torch.distributed.is_initialized():
        return
    if torch.distributed.get_backend() != "gloo":
        torch.distributed.destroy_process_group()
        return
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


@contextlib.contextmanager
def explain_lost_processes() -> Iterator[None]:
    """Turn torch's errors into a UserError where another process of this training ended or does not answer."""
    try:
        yield
    except RuntimeError as error:
        if not (isinstance(error, DistError) or "gloo" in str(error)):
            raise
        raise UserError(
            f"another process of this training ended or does not answer ({str(error).splitlines()[0][:160]}). Why is "
            "in its own output, here or in the log of its machine: an error, or a kill, as for too much memory. Run "
            "the same command again: it resumes from the last checkpoint"
        ) from error
