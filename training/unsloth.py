"""The Unsloth backend: the same adapter, rows and trainer, with the model and its LoRA made by Unsloth's kernels.

It needs an NVIDIA GPU: on a CPU, importing unsloth kills the process (an illegal instruction, not an exception), so
it is imported only after CUDA was seen, and before transformers, TRL and PEFT, which it patches while it is imported.
So nothing of theirs is imported at the top of this file. Written against the signatures of
`FastLanguageModel.from_pretrained` and `.get_peft_model`; no machine of ours has run it yet. Unsloth pins the versions
of TRL and transformers that it knows.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

from ratchet.core.config import ModelConfig, TrainingConfig
from ratchet.core.errors import UserError
from ratchet.core.installed import install

PEFT = "`--set training.backend=peft` trains the same adapter here"
# What 'all-linear' means for the decoder models that Unsloth patches.
LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def check_unsloth(has_gpu: bool) -> None:
    """Raises UserError where there is no GPU, or the package is not installed; imports nothing."""
    if not has_gpu:
        raise UserError(f"training.backend=unsloth needs an NVIDIA GPU, and training has none; {PEFT}")
    if importlib.util.find_spec("unsloth") is None:
        raise _missing("unsloth is not installed")


def import_unsloth() -> Any:
    """The unsloth package, or a UserError that says what is missing."""
    import torch

    check_unsloth(torch.cuda.is_available())
    try:
        return importlib.import_module("unsloth")
    except ImportError as error:
        raise _missing(f"cannot import unsloth ({error})") from error


def _missing(why: str) -> UserError:
    return UserError(f"training.backend=unsloth: {why}; {install('unsloth')}, or {PEFT}")


def load_unsloth(model: ModelConfig, training: TrainingConfig, seed: int) -> Any:
    """A PeftModel as `training.lora` makes it: the base model in 16 bits or in 4, one LoRA adapter."""
    unsloth = import_unsloth()
    import torch

    from ratchet.training.lora import check_targets, compute_type, peft_settings

    peft_settings(training.lora)
    targets = training.lora.target_modules
    base, _ = unsloth.FastLanguageModel.from_pretrained(
        model_name=model.path,
        revision=model.revision,
        max_seq_length=training.max_length,
        dtype=None if compute_type(model) == torch.float32 else compute_type(model),
        load_in_4bit=training.four_bit,
        # Else it loads a copy of its own from the hub under another name, whatever the revision.
        use_exact_model_name=True,
        trust_remote_code=False,
    )
    check_targets(base, training.lora)
    return unsloth.FastLanguageModel.get_peft_model(
        base,
        **training.lora.model_dump(exclude={"target_modules"}),
        target_modules=_linear_targets(base) if targets == "all-linear" else targets,
        bias="none",
        use_gradient_checkpointing="unsloth" if training.gradient_checkpointing else False,
        random_state=seed,
    )


def _linear_targets(model: Any) -> list[str]:
    """The layers of LINEAR that `all-linear` means: of a mixture of experts, attention alone."""
    from ratchet.inference.weights import trained_linears

    names = {name.rpartition(".")[2] for name in trained_linears(model)}
    return [name for name in LINEAR if name in names]
