"""Loading a learned sparse encoder from local folders: safetensors only, nothing fetched, no code that comes along."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from ratchet.core.config import EncoderConfig
from ratchet.core.errors import UserError, first_line
from ratchet.core.files import read_json_file
from ratchet.inference.adapters import adapter_digest
from ratchet.inference.tokenizer import load_tokenizer
from ratchet.inference.weights import untie_changed_head
from ratchet.retrieval.encoders.sparse import SparseEncoder

ADAPTER_CONFIG = "adapter_config.json"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.txt", "vocab.json")
# Room for a chunk of 512 tokens (index.chunk_tokens), its title, a prefix and special tokens.
DEFAULT_LENGTH = 576
# What of config.json tells where a model comes from, not what it computes.
PROVENANCE = ("_name_or_path", "architectures", "transformers_version", "torch_dtype", "dtype", "auto_map")


def load_encoder(config: EncoderConfig) -> SparseEncoder:
    """Load the model, its adapter if there is one, and its tokenizer; a folder that cannot be used is a UserError."""
    folder = Path(config.path)
    if not folder.is_dir():
        raise UserError(f"{folder}: no such model folder; download the model first, then set the encoder's path to it")
    device = usable_device(config.device)
    adapter = folder if (folder / ADAPTER_CONFIG).is_file() else None
    if config.base is not None and adapter is None:
        raise UserError(f"{folder}: base is set, and there is no adapter ({ADAPTER_CONFIG}) in this folder; remove it")
    if adapter and (config.base is not None or not _weight_files(folder)):
        base = _base_folder(config, adapter)
    else:
        base = folder
    files = _weight_files(base)
    if not files:
        raise UserError(
            f"{base}: holds no *.safetensors weights; other formats are not loaded, because they may run code: "
            "convert the model with save_pretrained(..., safe_serialization=True)"
        )
    shape, kind = _shape(base)
    tokenizer = _tokenizer(folder if _has_tokenizer(folder) else base)
    scale = shape.hidden_size**-0.25 if kind == "lion" else 1.0
    model = _load_model(base, files, shape, kind, adapter, getattr(torch, config.dtype))
    config = _with_length(config, model, tokenizer.backend_tokenizer)
    digest = _digest(config, base, kind, scale, tokenizer, files, adapter)
    return SparseEncoder(model.to(device).eval(), tokenizer, scale, config, digest)


def usable_device(name: str) -> torch.device:
    """The device that a config names. Raises UserError where it cannot be used here."""
    try:
        device = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"device: {name!r} cannot be used here ({reason}); use auto, cpu or cuda") from error
    return device


def _weight_files(folder: Path) -> list[Path]:
    """model.safetensors, or the parts that its index names."""
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.is_file():
        return [single]
    if not index.is_file():
        return []
    try:
        names = sorted(set(read_json_file(index)["weight_map"].values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{index}: not a readable index of weights ({error}); download the model again") from error
    for name in names:
        if not (folder / name).is_file():
            raise UserError(f"{folder / name}: missing, though {index.name} names it; download the model again")
    return [folder / name for name in names]


def _base_folder(config: EncoderConfig, adapter: Path) -> Path:
    named = config.base
    if named is None:
        try:
            named = str(read_json_file(adapter / ADAPTER_CONFIG)["base_model_name_or_path"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"{adapter / ADAPTER_CONFIG}: names no base model ({error}); set the key base") from error
    if not Path(named).is_dir():
        raise UserError(
            f"{adapter}: is an adapter to {named!r}, and there is no such folder; download that model and set the "
            "encoder's key base to its folder"
        )
    return Path(named)


def _shape(base: Path) -> tuple[Any, Literal["lion", "splade"]]:
    """The model's configuration (transformers) and the kind of encoder that it makes."""
    from transformers import MODEL_FOR_MASKED_LM_MAPPING, AutoConfig

    try:
        shape = AutoConfig.from_pretrained(base, trust_remote_code=False, local_files_only=True)
    except Exception as error:  # the readers of damaged files raise anything
        raise UserError(
            f"{base / 'config.json'}: cannot load the model's configuration: {first_line(error)}"
        ) from error
    model_type = shape.model_type
    masked = type(shape) in MODEL_FOR_MASKED_LM_MAPPING and not shape.is_encoder_decoder
    if model_type == "llama":
        return shape, "lion"
    if masked:
        return shape, "splade"
    raise UserError(
        f"{base}: is a {model_type!r} model; a sparse encoder is a Llama or a masked language model (BERT, DistilBERT)"
    )


def _has_tokenizer(folder: Path) -> bool:
    return any((folder / name).is_file() for name in TOKENIZER_FILES)


def _tokenizer(folder: Path) -> Any:
    if not _has_tokenizer(folder):
        raise UserError(f"{folder}: holds no tokenizer (tokenizer.json); copy the model's own there")
    tokenizer = load_tokenizer(str(folder))
    if getattr(tokenizer, "backend_tokenizer", None) is None:
        raise UserError(f"{folder}: its tokenizer has no fast version (tokenizer.json); save it as one first")
    return tokenizer


def _with_length(config: EncoderConfig, model: Any, tokenizer: Any) -> EncoderConfig:
    """The config with the length that its encoder reads. Raises UserError for what would otherwise end a build hours
    into it, such as a token past the end of a table of positions."""
    if tokenizer.get_vocab_size(with_added_tokens=False) > model.get_input_embeddings().num_embeddings:
        raise UserError(f"{config.path}: its tokenizer has more tokens than the model; copy the model's own there")
    tables = (
        table
        for name, table in model.named_modules()
        if name.endswith("position_embeddings") and isinstance(table, torch.nn.Embedding)
    )
    # RoBERTa counts positions from behind its padding index.
    sizes = [table.num_embeddings - (0 if table.padding_idx is None else table.padding_idx + 1) for table in tables]
    wanted = config.max_length or min([DEFAULT_LENGTH, *sizes])
    if wanted <= tokenizer.num_special_tokens_to_add(False):
        raise UserError(f"max_length: {wanted} leaves no room for text beside the special tokens; raise it")
    if sizes and wanted > min(sizes):
        raise UserError(f"max_length: {wanted}, and {config.path} reads at most {min(sizes)} tokens")
    if not isinstance(model.get_output_embeddings(), torch.nn.Linear):
        raise UserError(f"{config.path}: a {type(model).__name__} has no linear last layer over the vocabulary")
    return config.model_copy(update={"max_length": wanted})


def _load_model(base: Path, files: list[Path], shape: Any, kind: str, adapter: Path | None, dtype: torch.dtype) -> Any:
    from transformers import MODEL_FOR_MASKED_LM_MAPPING, LlamaForCausalLM
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    shape.use_cache = False
    if kind == "lion":
        shape.is_causal = False  # how transformers has a decoder attend in both directions
    loader: Any = LlamaForCausalLM if kind == "lion" else MODEL_FOR_MASKED_LM_MAPPING[type(shape)]
    try:
        weights: dict[str, torch.Tensor] = {}
        for file in files:
            weights |= load_file(file)
        # By state_dict, not by folder: an adapter in the folder would be attached on the way, and not merged.
        model, info = loader.from_pretrained(
            None,
            config=shape,
            state_dict=weights,
            dtype=torch.float32 if adapter else dtype,  # an adapter is merged in float32, then rounded once
            attn_implementation="sdpa",
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            trust_remote_code=False,
        )
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise UserError(f"{base}: cannot load the weights: {first_line(error)}") from error
    if missing := sorted(info["missing_keys"]):
        raise UserError(
            f"{base}: its weights lack {len(missing)} of the model's tensors, {missing[0]!r} for one; an encoder needs "
            "the language-modelling head too: export the model as "
            + ("LlamaForCausalLM" if kind == "lion" else "a ...ForMaskedLM model")
        )
    if mismatched := sorted(str(entry[0]) for entry in info["mismatched_keys"]):
        raise UserError(f"{base}: {mismatched[0]!r} has another shape in the weights than config.json says")
    return _merge(model, adapter).to(dtype) if adapter else model


def _merge(model: Any, adapter: Path) -> Any:
    """The model with a LoRA adapter's product added to its weights; every tensor of the adapter must find its place."""
    from peft import PeftConfig, get_peft_model
    from peft.utils import set_peft_model_state_dict

    try:
        config = PeftConfig.from_pretrained(str(adapter))
        if config.peft_type != "LORA":
            raise ValueError(f"it is a {config.peft_type} adapter, and only LORA can be merged")
        config.init_lora_weights = True  # others (PiSSA) change the base weights before ours are read
        config.base_model_name_or_path = None  # PEFT warns where it is not the name of a model that has none
        weights = load_file(adapter / "adapter_model.safetensors")
        untie_changed_head(model, (name.partition(".lora_")[0] for name in weights))
        wrapped: Any = get_peft_model(model, config)
        result = set_peft_model_state_dict(wrapped, weights)
        strange = [*result.unexpected_keys, *(key for key in result.missing_keys if "lora_" in key)]
        if strange:
            raise ValueError(f"{len(strange)} of its tensors do not match the model's, {strange[0]!r} for one")
        return wrapped.merge_and_unload()
    except (OSError, ValueError, TypeError, KeyError, RuntimeError, SafetensorError) as error:
        raise UserError(f"{adapter}: the adapter does not fit the model: {first_line(error)}") from error


def _digest(
    config: EncoderConfig, base: Path, kind: str, scale: float, tokenizer: Any, files: list[Path], adapter: Path | None
) -> str:
    digest = hashlib.sha256()
    # The file, not the object read from it: that has defaults of this version of transformers.
    shape = read_json_file(base / "config.json")
    settings = {
        "kind": kind,
        "scale": scale,
        "model": {key: value for key, value in shape.items() if key not in PROVENANCE},
        "tokenizer": tokenizer.backend_tokenizer.to_str(),
        "adapter": adapter_digest(adapter) if adapter else None,
        "dtype": config.dtype,
        "max_length": config.max_length,
        **{"query_prefix": "", "document_prefix": "", "top": None},  # once keys of the config
    }
    digest.update(json.dumps(settings, sort_keys=True, default=str).encode())
    for file in files:
        with file.open("rb") as weights:
            digest.update(hashlib.file_digest(weights, "sha256").digest())
    return digest.hexdigest()[:16]
