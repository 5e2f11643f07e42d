"""Loading a causal language model with its weights: from safetensors alone, and complete or not at all."""

from __future__ import annotations

from collections.abc import Iterable
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


def untie_changed_head(model: Any, layers: Iterable[str]) -> None:
    """Give the output head weights of its own where it shares the embedding's and an adapter is merged into one of the
    two: the other would change as well. `layers`: the adapter's, as PEFT names them in its file."""
    import torch

    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    if head is None or head.weight is not embedding.weight:
        return
    changed = {name.removeprefix("base_model.model.") for name in layers}
    if any(module is head or module is embedding for name, module in model.named_modules() if name in changed):
        head.weight = torch.nn.Parameter(head.weight.detach().clone())
        model.config.tie_word_embeddings = False
