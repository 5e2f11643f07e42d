"""Learned sparse encoders: a text becomes one weight for every vocabulary token that the model finds relevant to it.

w[t] = log(1 + relu(max over the text's tokens of scale * logit[token, t])), for two kinds of models:

    lion     a Llama with full instead of causal attention (Zeng et al. 2025, arXiv 2502.15526).
             scale = hidden_size ** -0.25, which the authors' code has; as there, the special tokens that the tokenizer
             adds by itself are pooled too (Llama 3 puts one in front), no end token is appended, and no prefix.
    splade   a masked language model such as BERT or DistilBERT (Formal et al. 2021, SPLADE-max, arXiv 2109.10086).
             scale = 1; [CLS] and [SEP] are pooled, as the published models do.

The pooled, scaled logit is kept as a bfloat16, which a run in bfloat16 rounds it to anyway. Of a float32 logit it keeps
8 significant bits: an error of at most 1/256 of the logit, and of no larger share of the weight.

Loading a learned sparse encoder from local folders: safetensors only, nothing fetched, no code that comes along."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from ratchet.core.config import EncoderConfig
from ratchet.core.errors import UserError, first_line
from ratchet.core.files import read_json_file
from ratchet.core.text import replace_surrogates
from ratchet.inference.adapters import CONFIG, adapter_digest
from ratchet.inference.tokenizer import load_tokenizer
from ratchet.inference.weights import merge_adapter
from ratchet.retrieval.encoders.limits import TokenLimit
from ratchet.retrieval.encoders.vectors import SparseVectors

BATCH_TOKENS = 16_384
"""Tokens of a batch, padding included; a batch has at least one text."""
LOGIT_TOKENS = 1024
"""Tokens whose logits over the vocabulary are held in memory at once."""


class SparseEncoder:
    """Made by `load_encoder`. Threads may call it at once.

    On the CPU the same call gives the same bits. Other texts in the call may change how they are batched, and by that
    the rounding of floats, nothing else.
    """

    def __init__(self, model: Any, tokenizer: Any, scale: float, config: EncoderConfig, digest: str) -> None:
        """`model` is a transformers model with an output embedding; `tokenizer` its own fast one, which is changed.
        `config` has a `max_length`."""
        self.digest = digest
        """A digest of weights, tokenizer and settings. Equal digest, equal vectors but for the rounding of floats,
        which batches and devices may differ in."""
        self._config = config
        self._scale = scale
        self._device = model.device
        self._vocabulary_layer = model.get_output_embeddings()
        self.vocabulary: int = self._vocabulary_layer.out_features
        # With its last layer taken out, the model's "logits" are what that layer reads: so it can be applied by slices.
        name = next(name for name, module in model.named_modules() if module is self._vocabulary_layer)
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, torch.nn.Identity())
        self._body = model
        counter, limits = copy.deepcopy(tokenizer), (config.max_length, config.path, digest)
        self.document_limit, self._query_limit = (TokenLimit(counter, "", *limits) for _ in range(2))
        self._tokenizer = tokenizer.backend_tokenizer
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(config.max_length)

    def encode_documents(self, texts: Sequence[str]) -> SparseVectors:
        return self._encode(texts)

    def encode_queries(self, texts: Sequence[str]) -> SparseVectors:
        self._query_limit.warn_of_cut(texts)
        return self._encode(texts)

    def _encode(self, texts: Sequence[str]) -> SparseVectors:
        clean = [replace_surrogates(text) for text in texts]  # the tokenizer would refuse half a surrogate pair
        ids = [encoding.ids for encoding in self._tokenizer.encode_batch_fast(clean)]
        rows: list[tuple[np.ndarray, np.ndarray]] = [(np.empty(0, np.uint32), np.empty(0, np.uint16))] * len(ids)
        for batch in batches([len(row) for row in ids], BATCH_TOKENS):
            for at, row in zip(batch, self._encode_batch([ids[i] for i in batch]), strict=True):
                rows[at] = row
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum([len(terms) for terms, _ in rows], out=offsets[1:])
        return SparseVectors(
            offsets,
            np.concatenate([terms for terms, _ in rows] or [np.empty(0, np.uint32)]),
            np.concatenate([codes for _, codes in rows] or [np.empty(0, np.uint16)]),
        )

    @torch.inference_mode()
    def _encode_batch(self, rows: list[list[int]]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        lengths = [len(row) for row in rows]
        ids = torch.tensor([row + [0] * (max(lengths) - len(row)) for row in rows])  # any token will do: it is masked
        mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
        ids, mask = ids.to(self._device), mask.to(self._device)
        hidden = self._body(input_ids=ids, attention_mask=mask.long()).logits
        for pooled in self._pool(hidden, mask, lengths):
            logits = (pooled.float() * self._scale).to(torch.bfloat16)
            if not torch.isfinite(logits).all():
                raise UserError(f"{self._config.path}: the model's output is not finite; are its weights damaged?")
            codes = logits.view(torch.int16)
            at, terms = (codes > 0).nonzero(as_tuple=True)  # relu: as integers too, all negatives are below 0
            ends = torch.bincount(at, minlength=len(codes)).cumsum(0)[:-1].cpu().numpy()
            split = (
                np.split(terms.cpu().numpy().astype(np.uint32), ends),
                np.split(codes[at, terms].cpu().numpy().view(np.uint16), ends),
            )
            yield from zip(*split, strict=True)

    def _pool(self, hidden: torch.Tensor, mask: torch.Tensor, lengths: list[int]) -> Iterator[torch.Tensor]:
        """Largest logits of some rows at a time, [rows, vocabulary]; hidden is [batch, length, width].

        max commutes with the scale, relu and log1p, which come after it. Logits of at most LOGIT_TOKENS tokens exist
        at once: several rows, or a part of one.
        """
        batch, length, _ = hidden.shape
        rows = max(1, LOGIT_TOKENS // length)
        tokens = min(length, LOGIT_TOKENS)
        for first in range(0, batch, rows):
            pooled: torch.Tensor | None = None
            for at in range(0, max(lengths[first : first + rows]), tokens):
                part = np.s_[first : first + rows, at : at + tokens]
                logits = self._vocabulary_layer(hidden[part])
                if min(lengths[first : first + rows]) < at + tokens:
                    logits.masked_fill_(~mask[part][:, :, None], -torch.inf)
                highest = logits.amax(dim=1)
                pooled = highest if pooled is None else torch.maximum(pooled, highest)
            assert pooled is not None
            yield pooled


def batches(lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """Yield positions of texts to run together: like lengths with like, longest * count <= batch_tokens or a single
    text. Texts without any token are in no batch."""
    batch: list[int] = []
    for at in sorted(range(len(lengths)), key=lambda i: lengths[i]):
        if lengths[at] == 0:
            continue
        if batch and lengths[at] * (len(batch) + 1) > batch_tokens:
            yield batch
            batch = []
        batch.append(at)
    if batch:
        yield batch


# Room for a chunk of 512 tokens (index.chunk_tokens), its title, a prefix and special tokens.
DTYPE: Final = "bfloat16"
"""That of a config without one."""
DEFAULT_LENGTH = 576
# What of config.json tells where a model comes from, not what it computes.
PROVENANCE = ("_name_or_path", "architectures", "transformers_version", "torch_dtype", "dtype", "auto_map")


def load_encoder(config: EncoderConfig) -> SparseEncoder:
    """Load the model, its adapter if there is one, and its tokenizer; a folder that cannot be used is a UserError."""
    folder = Path(config.path)
    if not folder.is_dir():
        raise UserError(f"{folder}: no such model folder; download the model first, then set the encoder's path to it")
    device = usable_device(config.device)
    adapter = folder if (folder / CONFIG).is_file() else None
    base = folder if adapter is None or _weight_files(folder) else _base_folder(adapter)
    files = _weight_files(base)
    if not files:
        raise UserError(
            f"{base}: holds no *.safetensors weights; other formats are not loaded, because they may run code: "
            "convert the model with save_pretrained(..., safe_serialization=True)"
        )
    shape, kind = _shape(base)
    tokenizer = load_tokenizer(str(folder if any(folder.glob("tokenizer*")) else base))
    if getattr(tokenizer, "backend_tokenizer", None) is None:
        raise UserError(f"{folder}: its tokenizer has no fast version (tokenizer.json); save it as one first")
    scale = shape.hidden_size**-0.25 if kind == "lion" else 1.0
    model = _load_model(base, files, shape, kind, adapter, getattr(torch, config.dtype or DTYPE))
    config = _with_length(config, model, tokenizer.backend_tokenizer)
    digest = _digest(config, base, kind, scale, tokenizer, files, adapter)
    return SparseEncoder(model.to(device).eval(), tokenizer, scale, config, digest)


def usable_device(name: str) -> torch.device:
    """Return the device that a config names. Raises UserError where it cannot be used here."""
    try:
        device = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"device: {name!r} cannot be used here ({reason}); use auto, cpu or cuda") from error
    return device


def _weight_files(folder: Path) -> list[Path]:
    """Return model.safetensors, or its parts. Raises UserError where the index of the parts names one that is not
    there."""
    single, parts = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.is_file() or not parts.is_file():
        return [single] if single.is_file() else []
    try:
        files = [folder / name for name in sorted(set(read_json_file(parts)["weight_map"].values()))]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{parts}: cannot be read ({error}); copy the model again") from error
    if missing := [file.name for file in files if not file.is_file()]:
        raise UserError(f"{folder}: the weights {', '.join(missing)} are not there; copy the model again")
    return files


def _base_folder(adapter: Path) -> Path:
    try:
        named = str(read_json_file(adapter / CONFIG)["base_model_name_or_path"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{adapter / CONFIG}: names no base model ({error})") from error
    if not Path(named).is_dir():
        raise UserError(
            f"{adapter}: is an adapter to {named!r}, and there is no such folder; download that model and name its "
            f"folder as base_model_name_or_path in {CONFIG}"
        )
    return Path(named)


def _shape(base: Path) -> tuple[Any, Literal["lion", "splade"]]:
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
    return merge_adapter(model, adapter, str(base)).to(dtype) if adapter else model


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
        "dtype": config.dtype or DTYPE,
        "max_length": config.max_length,
        **{"query_prefix": "", "document_prefix": "", "top": None},  # once keys of the config
    }
    digest.update(json.dumps(settings, sort_keys=True, default=str).encode())
    for file in files:
        with file.open("rb") as weights:
            digest.update(hashlib.file_digest(weights, "sha256").digest())
    return digest.hexdigest()[:16]
