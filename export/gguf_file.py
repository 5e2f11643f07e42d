"""GGUF files of a merged model folder, for llama.cpp and what is built on it: Llama, Qwen2, Qwen3 and Gemma 3.

Names and layouts are those of llama.cpp (github.com/ggml-org/llama.cpp, gguf-py). Of a multimodal Gemma 3 the language
model alone is written. Tensors are read, converted and
written one at a time, so memory holds the largest one and not the model.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from ratchet.core.config import ModelConfig
from ratchet.core.errors import UserError, first_line
from ratchet.core.extras import need_extra
from ratchet.core.files import new_file
from ratchet.core.progress import Progress
from ratchet.export.gguf_vocabulary import CONVERTER, read_vocabulary
from ratchet.inference.weights import language_config, layer_alone

GgufType = Literal["f32", "f16", "bf16", "q8_0"]
TYPES: tuple[GgufType, ...] = ("f16", "q8_0")
"""Those that an export writes."""
Array = np.ndarray[Any, Any]
ARCHITECTURES = {"llama": "LLAMA", "qwen2": "QWEN2", "qwen3": "QWEN3", "gemma3_text": "GEMMA3"}
"""By transformers' name, gguf's."""
BESIDE = re.compile(r"^(model\.)?(vision_tower|multi_modal_projector)\.")
"""Tensors of a multimodal model that are not the language model's."""


class _Tensor(NamedTuple):
    """A tensor of the model folder, and what becomes of it."""

    file: Path
    name: str
    shape: tuple[int, ...]
    target: str
    """Its name in the GGUF file."""
    kind: Any
    """gguf.GGMLQuantizationType"""


def check_base(model: ModelConfig) -> None:
    """UserError where the library is not installed, or the model's architecture or tokenizer is not supported: before
    any work."""
    need_extra("gguf", "writing GGUF files")
    try:
        config, _ = language_config(model.path, model.revision)
    except (OSError, ValueError) as error:
        raise UserError(f"{model.path}: cannot read the model's configuration: {first_line(error)}") from error
    check_architecture(config, model.path)
    read_vocabulary(model.path, config.vocab_size, model.revision)


def check_architecture(config: Any, where: str) -> None:
    """UserError for a language model that llama.cpp would compute otherwise. `config`: of transformers."""
    kind, rope = config.model_type, _rope(config)
    is_gemma = kind == "gemma3_text"
    scaling = rope.get("rope_type", "default")
    activation = getattr(config, "hidden_activation" if is_gemma else "hidden_act", "")
    problems = {
        f"its architecture is {kind}": kind not in ARCHITECTURES,
        f"its positions are scaled ({scaling})": scaling not in ({"default", "linear"} if is_gemma else {"default"}),
        "its attention has a sliding window": getattr(config, "use_sliding_window", False),
        "its attention has biases": kind != "qwen2" and getattr(config, "attention_bias", False),
        "its feed-forward layers have biases": getattr(config, "mlp_bias", False),
        f"its activation is {activation}": activation != ("gelu_pytorch_tanh" if is_gemma else "silu"),
        "its windows, local positions or scale are not those of Gemma 3": is_gemma and not _is_usual_gemma(config),
    }
    if found := [problem for problem, holds in problems.items() if holds]:
        raise UserError(
            f"{where}: cannot be written as GGUF, since {' and '.join(found)}; Llama (as SmolLM2), Qwen2, Qwen3 and "
            f"Gemma 3 are supported; {CONVERTER}"
        )


def _rope(config: Any) -> dict[str, Any]:
    """How positions turn, in layers that attend to all tokens."""
    rope = getattr(config, "rope_parameters", None) or {}
    return dict(rope.get("full_attention", rope))


def _is_usual_gemma(config: Any) -> bool:
    """Whether a Gemma 3 has what llama.cpp has as constants: every sixth layer without a window, the base of positions
    in those with one, and scores divided by the root of the head's size."""
    kinds = ["full_attention" if number % 6 == 5 else "sliding_attention" for number in range(config.num_hidden_layers)]
    local = config.rope_parameters["sliding_attention"]
    return (
        (config.layer_types, local["rope_theta"], local.get("rope_type", "default")) == (kinds, 10_000.0, "default")
        and config.query_pre_attn_scalar == config.head_dim
        and not (config.attn_logit_softcapping or config.final_logit_softcapping)
        and not config.use_bidirectional_attention
    )


def write_gguf(model: Path, target: Path, kind: GgufType, name: str) -> bool:
    """Write the folder `model` as one GGUF file, whole or not at all; False where it is there. `name`: its title.

    Matrices become `kind`, vectors float32. q8_0 is 8 bits a weight with one scale for every 32 of a row; a matrix
    whose rows 32 does not divide becomes f16.
    """
    if target.exists():
        return False
    import gguf

    config, _ = language_config(str(model))
    check_architecture(config, str(model))
    arch = gguf.MODEL_ARCH[ARCHITECTURES[config.model_type]]
    tensors = _tensors(model, gguf.get_tensor_name_map(arch, config.num_hidden_layers), kind)
    with new_file(target) as temporary:
        writer = gguf.GGUFWriter(temporary, gguf.MODEL_ARCH_NAMES[arch])
        _add_settings(writer, config, kind, name)
        read_vocabulary(str(model), config.vocab_size).write(writer)
        for tensor in tensors:
            size = int(np.prod(gguf.quants.quant_shape_to_byte_shape(tensor.shape, tensor.kind)))
            writer.add_tensor_info(tensor.target, tensor.shape, np.dtype(np.float32), size, tensor.kind)
        with contextlib.closing(writer), Progress(f"writing {target.name}, tensors", len(tensors)) as progress:
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_ti_data_to_file()
            (file,) = writer.fout
            for tensor in tensors:
                data = _convert(tensor, config)
                # Not by the writer: it uses numpy's tofile, which is silent where the disk is full.
                writer.write_padding(file, file.tell())
                file.write(data.data)
                writer.write_padding(file, data.nbytes)
                progress.advance()
    return True


def _add_settings(writer: Any, config: Any, kind: GgufType, name: str) -> None:
    import gguf

    heads, head_dim = config.num_attention_heads, getattr(config, "head_dim", None)
    head_dim = head_dim or config.hidden_size // heads
    writer.add_name(name)
    writer.add_file_type(gguf.LlamaFileType["ALL_F32" if kind == "f32" else f"MOSTLY_{kind.upper()}"])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(head_dim)
    rope = _rope(config)
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope.get("rope_type") == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    if config.model_type == "gemma3_text":
        writer.add_sliding_window(config.sliding_window)
    writer.add_vocab_size(config.vocab_size)


def _tensors(model: Path, names: Any, kind: GgufType) -> list[_Tensor]:
    from safetensors import safe_open

    def found() -> Iterator[_Tensor]:
        for file in sorted(model.glob("*.safetensors")):
            with safe_open(file, framework="pt") as opened:
                for name in opened.keys():  # noqa: SIM118 - it is no dict
                    if BESIDE.match(name):
                        continue
                    shape = tuple(opened.get_slice(name).get_shape())
                    alone = layer_alone(name).removeprefix("language_model.")
                    target = names.get_name(alone, try_suffixes=(".weight", ".bias"))
                    if target is None:
                        raise UserError(f"{file}: the tensor {name} has no place in a GGUF file of this architecture")
                    yield _Tensor(file, name, shape, target, _kind(shape, kind))

    return list(found())


def _kind(shape: tuple[int, ...], kind: GgufType) -> Any:
    import gguf

    if len(shape) == 1:
        kind = "f32"
    elif kind == "q8_0" and shape[-1] % 32:
        kind = "f16"
    return gguf.GGMLQuantizationType[kind.upper()]


def _convert(tensor: _Tensor, config: Any) -> Array:
    import gguf
    import torch
    from safetensors import safe_open

    with safe_open(tensor.file, framework="pt") as opened:
        values: Array = opened.get_tensor(tensor.name).to(torch.float32).numpy()
    if config.model_type == "llama" and tensor.name.endswith(("q_proj.weight", "k_proj.weight")):
        is_query = tensor.name.endswith("q_proj.weight")
        values = _interleaved(values, config.num_attention_heads if is_query else config.num_key_value_heads)
    if config.model_type == "gemma3_text" and tensor.name.endswith("norm.weight"):
        values = values + 1  # transformers adds it when it computes
    if not np.isfinite(values).all() or np.abs(values).max(initial=0) > np.finfo(np.float16).max:
        raise UserError(f"{tensor.file}: the tensor {tensor.name} has values that float16 cannot hold")
    return np.ascontiguousarray(gguf.quants.quantize(values, tensor.kind))


def _interleaved(weights: Array, heads: int) -> Array:
    """The rows of each head, (first half, second half), by turns: llama.cpp rotates neighbours in the Llama
    architecture, and transformers rotates row i with row i + half."""
    rows, columns = weights.shape
    return weights.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)
