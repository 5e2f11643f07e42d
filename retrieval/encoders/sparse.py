"""Learned sparse encoders: a text becomes one weight for every vocabulary token that the model finds relevant to it.

w[t] = log(1 + relu(max over the text's tokens of scale * logit[token, t])), for two kinds of models:

    lion     a Llama with full instead of causal attention (Zeng et al. 2025, arXiv 2502.15526).
             scale = hidden_size ** -0.25, which the authors' code has; as there, the special tokens that the tokenizer
             adds by itself are pooled too (Llama 3 puts one in front), no end token is appended, and no prefix.
    splade   a masked language model such as BERT or DistilBERT (Formal et al. 2021, SPLADE-max, arXiv 2109.10086).
             scale = 1; [CLS] and [SEP] are pooled, as the published models do.

The pooled, scaled logit is kept as a bfloat16, which a run in bfloat16 rounds it to anyway. Of a float32 logit it keeps
8 significant bits: an error of at most 1/256 of the logit, and of no larger share of the weight.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from ratchet.core.config import EncoderConfig
from ratchet.core.errors import UserError
from ratchet.core.text import replace_surrogates
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
        """Of weights, tokenizer and settings. Equal digest, equal vectors but for the rounding of floats, which batches
        and devices may differ in."""
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
        """(terms, codes) of every row; rows have at least one token."""
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
    """Positions of texts to run together: like lengths with like, longest * count <= batch_tokens or a single text.

    Texts without any token are in no batch.
    """
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
