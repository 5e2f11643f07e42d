"""python -m index_build capacity --config X.yaml --documents 14_000_000 [--memory-gb 64]: estimates what it costs.

Builds a sample of the config's documents with its index settings, in a temporary folder beside the index, by the same
code as the real build; searches it with questions of questions.train; and extrapolates linearly to the corpus. A
quarter of the sample is built and searched too: what the rest adds is what more documents will add.
"""

from __future__ import annotations

import math
import tempfile
import textwrap
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import fmean
from timeit import repeat
from typing import Any

from index_build.build import build_index
from index_build.content import ContentFactory, open_content_factory
from index_build.documents import Document, read_documents
from index_build.tokenizer import ChunkTokenizer, chunk_tokenizer_of
from ratchet.config import Config, IndexConfig
from ratchet.errors import UserError
from ratchet.files import disk_error, write_jsonl
from ratchet.progress import duration
from retrieval.layout import read_shards
from retrieval.loader import open_folder
from retrieval.sparse.ranker import SparseRanker

K = 10
QUERIES = 64
SEARCHES = 20
"""How often each query is searched; the fastest counts."""
NOISE = 0.1
"""A search of the sample has to take so much longer than of a quarter of it, or nothing is said of how it grows."""
TEXT_FILES = ("document_", "titles.", "texts.", "chunk_spans")
"""Files of a shard that a search reads only for the passages that it returns."""
MAX_POSTING_BYTES = 1 << 34
"""Of one shard: places in the posting file are counted in words of 4 bytes with 32 bits."""


@dataclass(frozen=True)
class SampleMeasurement:
    """What was measured of an index of some of the documents."""

    documents: int
    chunks: int
    seconds: float
    """Of the build by one process."""
    text_bytes: int
    """Of the index files that hold documents."""
    search_bytes: int
    """Of the index files that every search reads."""
    posting_bytes: int
    """Of the posting file, which is part of the search_bytes."""
    ranking: float
    """Mean seconds of a query in the engine, on one thread."""
    answering: float
    """Mean seconds of a query from its text to its passages."""


@dataclass(frozen=True)
class Estimate:
    """The estimate for the complete corpus."""

    chunks: float
    shards: int
    build_seconds: float
    """Of one process on one machine."""
    text_bytes: float
    search_bytes: float
    shard_posting_bytes: float
    fixed: float
    """Seconds of a query that do not depend on the size of the index."""
    per_chunk: float
    """Seconds that a query takes longer for every chunk of the index; NaN where the sample is too small to tell."""

    @property
    def latency(self) -> float:
        return self.fixed + self.per_chunk * self.chunks


def measure_sample(
    config: Config, documents: Sequence[Document], queries: Sequence[str]
) -> tuple[SampleMeasurement, SampleMeasurement]:
    """(a quarter, all) of the documents, built and searched with these queries; nothing stays on the disk."""
    contents = open_content_factory(config.index)
    measure = chunk_tokenizer_of(config, [contents.limit] if contents.limit is not None else [])
    where = Path(config.index.path).parent
    try:
        where.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".capacity-", dir=where) as folder:
            # The smaller one first: compiling and loading for the first time are not part of the sample's time then.
            build = partial(build_and_search, config.index, contents, measure, queries)
            quarter = build(documents[:: min(4, len(documents))], Path(folder) / "quarter")
            return quarter, build(documents, Path(folder) / "all")
    except OSError as error:
        raise disk_error(where, error) from error


def take_sample(sources: Sequence[str], count: int) -> list[Document]:
    """The first documents of every source, as many of each."""
    if not sources:
        raise UserError("index.documents: name at least one source; the estimate is computed from a sample of it")
    documents: list[Document] = []
    for source in sources:
        share = min(math.ceil(count / len(sources)), count - len(documents))
        documents += [document for _, document in islice(read_documents(Path(source)), share)]
    if len(documents) < 2:
        raise UserError(f"{', '.join(sources)}: {len(documents)} documents; the estimate needs a sample of 2 or more")
    return documents


def build_and_search(
    config: IndexConfig,
    contents: ContentFactory,
    measure: ChunkTokenizer,
    queries: Sequence[str],
    documents: Sequence[Document],
    folder: Path,
) -> SampleMeasurement:
    """Build an index of some documents and measure its build time, its bytes and its search time."""
    source = folder.with_suffix(".jsonl")
    write_jsonl(source, map(asdict, documents))
    index = config.model_copy(
        update={"path": str(folder), "documents": (str(source),), "shard_documents": len(documents)}
    )
    began = time.perf_counter()
    manifest, _ = build_index(index, measure.tokenizer, measure.name, contents=contents, limits=measure.limits)
    seconds = time.perf_counter() - began
    assert manifest is not None  # there are no other jobs
    (shard,) = read_shards(folder, manifest)
    texts = sum(entry.bytes for name, entry in shard.files.items() if name.startswith(TEXT_FILES))
    opened = open_folder(folder, index.encoder, threads=1)
    ranker = opened.ranker
    assert isinstance(ranker, SparseRanker)
    return SampleMeasurement(
        documents=len(documents),
        chunks=manifest.chunks,
        seconds=seconds,
        text_bytes=texts,
        search_bytes=shard.size - texts,
        posting_bytes=shard.files["postings"].bytes,
        ranking=_mean_time(lambda query: ranker.engine.search([query], K), ranker.read(queries)),
        answering=_mean_time(lambda query: opened.search(query, K), queries),
    )


def _mean_time(search: Callable[[Any], object], queries: Sequence[Any]) -> float:
    """Seconds of a query: the fastest of some tries of each, averaged."""
    return fmean(min(repeat(partial(search, query), number=1, repeat=SEARCHES)) for query in queries)


def extrapolate(small: SampleMeasurement, sample: SampleMeasurement, documents: int, shard_documents: int) -> Estimate:
    """`small` is an index of fewer of the sample's documents."""
    more, share = sample.documents - small.documents, documents / sample.documents
    shards = math.ceil(documents / shard_documents)
    of_shard = min(documents, shard_documents)

    def in_shard(of_small: int, of_sample: int) -> float:
        """Terms come again in later documents: the rest of the sample added less than its first quarter had."""
        return of_sample + (of_sample - of_small) / more * (of_shard - sample.documents)

    grown = sample.ranking - small.ranking
    growth_known = grown > NOISE * small.ranking and sample.chunks > small.chunks
    per_chunk = grown / (sample.chunks - small.chunks) if growth_known else math.nan
    full_shards = documents / of_shard
    return Estimate(
        chunks=sample.chunks * share,
        shards=shards,
        build_seconds=sample.seconds * share,
        text_bytes=sample.text_bytes * share,
        search_bytes=full_shards * in_shard(small.search_bytes, sample.search_bytes),
        shard_posting_bytes=in_shard(small.posting_bytes, sample.posting_bytes),
        fixed=max(0.0, sample.answering - per_chunk * sample.chunks) if growth_known else sample.answering,
        per_chunk=per_chunk,
    )


def report(
    index: IndexConfig,
    sample: SampleMeasurement,
    found: Estimate,
    workers: int,
    hours: float,
    memory: float,
    process: float,
) -> str:
    """`memory` and `process` in bytes: of the machine that serves, and of what a process takes beside the index."""
    at_once = workers if index.kind == "bm25" else 1  # an encoder takes all of a machine
    jobs = min(found.shards, math.ceil(found.build_seconds / at_once / (3600 * hours)))
    rounds = math.ceil(math.ceil(found.shards / jobs) / at_once)
    busiest = rounds * found.build_seconds / found.shards
    needed, free_memory = found.search_bytes + process, memory - process
    on_disk = sample.text_bytes + sample.search_bytes
    lines = [
        f"Sample: {sample.documents:,} documents, {sample.documents / sample.seconds:,.0f} a second in one process",
        f"A document: {sample.chunks / sample.documents:.2f} chunks, {on_disk / sample.documents:,.0f} bytes on disk",
        f"Whole: {found.chunks:,.0f} chunks, {found.shards:,} shards",
        f"Build: {duration(found.build_seconds)} of one process, or {jobs:,} jobs with `--workers {workers} "
        f"--job K/{jobs}`, the busiest {duration(busiest)} (asked for: {hours:g} hours)",
    ]
    if busiest > 3600 * hours:
        lines.append("  A shard is built by one process: for more jobs, lower index.shard_documents.")
    if found.shard_posting_bytes > MAX_POSTING_BYTES:
        max_documents = int(index.shard_documents * MAX_POSTING_BYTES / found.shard_posting_bytes * 0.9)
        lines.append(
            f"  A shard's postings may take {_gb(MAX_POSTING_BYTES)}: set index.shard_documents to {max_documents:,} "
            "or less."
        )
    lines += [
        f"Disk: {_gb(found.text_bytes + found.search_bytes)}: texts and ids {_gb(found.text_bytes)}, what every search "
        f"reads {_gb(found.search_bytes)}",
        f"Memory for searching: {_gb(needed)}, of which {_gb(process)} are the process; "
        f"{'this fits' if needed <= memory else 'DOES NOT FIT'} {_gb(memory)}",
    ]
    if needed > memory and free_memory > 0:
        machines = math.ceil(found.search_bytes / free_memory)
        each = math.ceil(found.shards / machines)
        lines.append(
            f"  {machines:,} machines hold it together, each with the documents of {each:,} shards and a "
            "`ratchet serve-index`."
        )
    latency = (
        f"{1000 * sample.answering:,.2f} ms a query on the sample, which is too small to tell how it grows: raise "
        "--sample"
        if math.isnan(found.per_chunk)
        else f"{1000 * found.latency:,.2f} ms a query: {1000 * found.fixed:,.2f} ms whatever the size, and "
        f"{1e9 * found.per_chunk:,.2f} ms for every million chunks"
    )
    lines += [f"Latency: {latency}", "Assumptions:"]
    for assumption in (
        "Everything grows linearly with the documents, which are like the sample, the first of every source. Sorting "
        "grows a little faster; vocabulary and bytes a posting grow more slowly, so that bytes and memory are upper "
        "bounds, closer with a larger --sample.",
        "Jobs run on machines like this one, and their processes do not slow each other down"
        + ("." if index.kind == "bm25" else "; encoding is counted once a machine, whatever --workers says."),
        f"Latency is the mean of {QUERIES} training questions at most (without their file: of documents' first words), "
        f"{K} passages each, on one thread, with all that they read in memory. Long queries share more threads; what "
        "has to come from the disk takes longer.",
    ):
        lines += textwrap.wrap(assumption, 116, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False)
    return "\n".join(lines)


def _gb(size: float) -> str:
    return f"{size / 1e9:,.1f} GB" if size >= 1e9 else f"{size / 1e6:,.1f} MB"
