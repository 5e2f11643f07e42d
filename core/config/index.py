"""The section `index`: which chunks there are, and how they are ranked."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from ratchet.core.config.encoders import DenseConfig, EncoderConfig
from ratchet.core.config.paths import PathText
from ratchet.core.config.section import AsGiven, Section
from ratchet.core.parsing import validate_section

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
    encoder: Annotated[EncoderConfig | DenseConfig | None, AsGiven] = None
    """`sparse`, `dense`: the encoder. Its keys depend on `kind`."""
    faiss: str = "Flat"
    """`dense`: string for faiss's `index_factory`, such as `IVF1024,Flat` or `HNSW32`. Each shard has an index of its
    own. `Flat` is exact."""
    faiss_search: str = ""
    """`dense`: faiss's parameters of a search, such as `nprobe=16` or `efSearch=64`. A change needs no new index."""
    milvus: str = ""
    """Address of a Milvus cluster. Default: Milvus Lite, on a file in the index folder."""

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
