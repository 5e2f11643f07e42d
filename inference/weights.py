"""Loading a causal language model with its weights: from safetensors alone, and complete or not at all."""

from __future__ import annotations

from typing import Any

from ratchet.errors import UserError, first_line

AGAIN = "if its files are damaged, copy or download it again"


def load_causal_model(path: str, revision: str | None = None, **options: Any) -> Any:
    """The model of a local folder or hub name; `options` are those of transformers' `from_pretrained`.

    Raises UserError for files that are damaged, lack a tensor, do not fit config.json, are in a format that may run
    code (pickle), or need code that comes with the model.
    """
    from transformers import AutoModelForCausalLM

    try:
        model, info = AutoModelForCausalLM.from_pretrained(
            path,
            revision=revision,
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
            **options,
        )
    except Exception as error:  # the readers of damaged files raise anything
        raise UserError(f"{path}: cannot load the model: {first_line(error)} ({AGAIN})") from error
    if missing := sorted(info["missing_keys"]):  # which transformers fills with random numbers
        raise UserError(f"{path}: its weights lack {len(missing)} tensors, such as {missing[0]} ({AGAIN})")
    return model
