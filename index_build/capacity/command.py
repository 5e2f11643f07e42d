"""python -m index_build capacity --config X.yaml --documents 14_000_000: what a large corpus will take.

Builds, encodes and searches in small, with the index settings of the config and a sample of its documents, and computes
from the rates of this run, on this machine, the hours, bytes, jobs and memory of the whole, and how it will be served.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from index_build.capacity import rates
from index_build.capacity.forecast import Goal, Measured, plan_build, plan_serving
from index_build.capacity.report import assumptions, report
from index_build.capacity.search_rates import Disk, measure_disk, measure_search
from index_build.chunks import Chunker
from index_build.measure import measure_of
from questions.load import load_questions
from ratchet.command import config_of, config_parser, positive, whole
from ratchet.config import Config, IndexConfig, parse
from ratchet.errors import UserError
from ratchet.files import disk_error
from retrieval.encoders.vectors import SparseVectors
from retrieval.sparse.analyzer import Words
from retrieval.sparse.engine import usable_cores

QUERIES = 64


def parser_of() -> argparse.ArgumentParser:
    cores = usable_cores()
    parser = config_parser(
        "python -m index_build capacity",
        "Compute what indexing and serving a large corpus will take, from rates measured now on a small sample.",
    )
    add = parser.add_argument
    add("--documents", type=whole, required=True, help="documents of the corpus, such as 14_000_000")
    add("--chunks", type=whole, help="chunks of the corpus, where known (default: as many a document as in the sample)")
    add("--sample", type=whole, default=200, help="documents of the config that are measured (default: 200)")
    add("--jobs", type=whole, default=10, help="machines that build, each with one job (default: 10)")
    add("--workers", type=whole, default=cores, help=f"processes of each job (default: the cores here, {cores})")
    add("--memory-gb", type=positive, default=64.0, help="memory of the machine that serves (default: 64)")
    add("--threads", type=whole, default=cores, help=f"its search threads (default: the cores here, {cores})")
    add("--disk-mb-per-s", type=positive, help="how fast its disk reads (default: measured on this machine's)")
    add("--encode-chunks-per-s", type=positive, help="the encoder's rate on a job's machine (default: measured here)")
    add("--postings-per-chunk", type=positive, help="sparse: where the encoder is not here (default: measured)")
    add("--vocabulary", type=whole, default=rates.LLAMA_3_VOCABULARY, help="sparse: as above (default: Llama 3's)")
    add("--query-terms", type=whole, default=30, help="sparse: terms of a query, as above (default: 30)")
    add("--json", action="store_true", help="print everything as JSON")
    return parser


def main(arguments: list[str]) -> None:
    given = parser_of().parse_args(arguments)
    config = config_of(given)
    index = config.index
    if index.url is not None or index.kind not in ("bm25", "sparse") or index.engine != "ratchet":
        raise UserError(
            "index: the capacity plan is for kind: bm25 or sparse on engine: ratchet; give a config with one of these"
        )
    where = Path(index.path).parent
    try:
        where.mkdir(parents=True, exist_ok=True)
        # On the disk that the index will be on: its speed is measured too.
        with tempfile.TemporaryDirectory(prefix=".capacity-", dir=where) as folder, rates.one_core():
            measured, queries, notes = measure(config, given, Path(folder))
    except OSError as error:
        raise disk_error(where, error) from error
    goal = Goal(
        given.documents,
        given.chunks,
        index.shard_documents,
        given.jobs,
        given.workers,
        given.threads,
        given.memory_gb * 1e9,
    )
    bm25 = index.kind == "bm25"
    build = plan_build(goal, measured, bm25)
    serving = plan_serving(goal, measured, build, queries, bm25)
    notes += assumptions(goal, measured)
    if given.json:
        print(json.dumps(_json(goal, measured, build, serving, notes), indent=2))
    else:
        print(report(given.config, goal, measured, build, serving, notes))


def _say(text: str) -> None:
    print(f"measuring: {text}", file=sys.stderr, flush=True)


def measure(config: Config, given: argparse.Namespace, folder: Path) -> tuple[Measured, list[list[Any]], list[str]]:
    """(what was measured, the terms of some queries, what to know about it)."""
    index = config.index
    encoder, notes = _encoder(index, given)
    _say(f"reading and chunking {given.sample:,} documents")
    chosen = measure_of(config, [encoder.document_limit] if encoder is not None else [])
    chunker = Chunker(chosen.tokenizer, index.chunk_tokens, index.chunk_overlap, chosen.name, chosen.limits)
    sample = rates.take_sample(index.documents, given.sample, folder)
    texts = rates.build_sample(index, chosen.tokenizer, chunker, sample, folder)
    process = rates.memory_in_use()
    encoded = given.encode_chunks_per_s
    if index.kind == "bm25":
        _say("terms and postings")
        known = rates.word_postings(index, texts)
        building = rates.word_building(index, texts, known, folder)
        queries, kind = _word_queries(config, texts.chunk_texts, known)
    else:
        if encoder is None:
            vectors = rates.invented_vectors(given.postings_per_chunk, given.vocabulary)
            vocabulary = given.vocabulary
        else:
            _say("encoding")
            vectors, rate = rates.encode_sample(encoder, texts.chunk_texts)
            encoded, vocabulary = encoded or rate, encoder.vocabulary
            notes.append(f"encoding: {len(vectors)} chunks of the sample, with the config's encoder")
        process = max(process, rates.memory_in_use())
        known = rates.vector_postings(vectors, vocabulary)
        _say("postings")
        building = rates.vector_building(vectors, vocabulary, folder)
        queries, kind = _vector_queries(config, encoder, texts.chunk_texts, vectors, given.query_terms)
    if not any(term in known.of_term for query in queries for term in query):
        raise UserError("the sample is too small: no query shares a term with it; raise --sample")
    notes.append(f"queries: {kind}; a term that the sample does not have costs nothing")
    _say("searching")
    searching = measure_search(index, known, queries, folder / "search")
    _say("the disk")
    disk = measure_disk(folder)
    if given.disk_mb_per_s:
        disk = Disk(given.disk_mb_per_s * 1e6, disk.write, "--disk-mb-per-s")
    measured = Measured(sample, texts, known, building, searching, disk, encoded, index.kind == "sparse", process)
    return measured, queries, notes


def _encoder(index: IndexConfig, given: argparse.Namespace) -> tuple[Any, list[str]]:
    """The sparse encoder, or None where its folder is not here, with a note that says so."""
    if index.kind == "bm25":
        return None, []
    from retrieval.encoders.loading import load_encoder
    from retrieval.encoders.sparse import EncoderConfig

    settings = parse(EncoderConfig, index.encoder, "index.encoder")
    if Path(settings.path).is_dir():
        _say(f"loading {settings.path}")
        return load_encoder(settings), []
    if given.postings_per_chunk is None:
        raise UserError(
            f"{settings.path}: the encoder is not here, so nothing is known of its vectors: put it there, or give "
            "--postings-per-chunk (and --encode-chunks-per-s) as measured where it is"
        )
    rate = "--encode-chunks-per-s is taken for it" if given.encode_chunks_per_s else "give --encode-chunks-per-s"
    return None, [
        f"ENCODING WAS NOT MEASURED: {settings.path} is not here; {rate}",
        f"vectors: made up, {given.postings_per_chunk:,g} postings a chunk over {given.vocabulary:,} terms, the r-th "
        "in min(1, c / r) of the chunks",
        "chunks: not measured by the encoder's tokenizer (unless that is index.tokenizer), nor made to fit the encoder",
    ]


def _questions(config: Config) -> list[str]:
    """The config's test questions, where they are here."""
    try:
        questions = [question.text for question in load_questions(config.questions.test, config.seed)]
    except UserError:
        return []
    return random.Random(0).sample(questions, min(QUERIES, len(questions)))


def _word_queries(config: Config, texts: Sequence[str], known: rates.Postings) -> tuple[list[list[Any]], str]:
    words = Words(config.index.stemmer, config.index.stop_words)
    asked = [list(dict.fromkeys(words.terms(text))) for text in _questions(config)]
    asked = [query for query in asked if any(term in known.of_term for term in query)]
    if asked:
        return asked, f"{len(asked)} questions of {config.questions.test.path}"
    return [list(dict.fromkeys(words.terms(text)))[:8] for text in texts[:QUERIES]], "the first words of chunks"


def _vector_queries(
    config: Config, encoder: Any, texts: Sequence[str], vectors: SparseVectors, count: int
) -> tuple[list[list[Any]], str]:
    if encoder is None:
        drawn = np.random.default_rng(0)
        rows = zip(vectors.offsets, vectors.offsets[1:], strict=False)
        chosen = [vectors.terms[low:high] for low, high in rows if high > low][:QUERIES]
        queries = [drawn.choice(row, min(count, len(row)), replace=False).tolist() for row in chosen]
        return queries, f"{count} terms drawn from a chunk's vector, made up like it"
    asked = _questions(config)
    kind = f"{len(asked)} questions of {config.questions.test.path}, encoded"
    if not asked:
        asked, kind = [" ".join(text.split()[:12]) for text in texts[:QUERIES]], "the first words of chunks, encoded"
    found = encoder.encode_queries(asked)
    spans = zip(found.offsets, found.offsets[1:], strict=False)
    return [found.terms[low:high].tolist() for low, high in spans if high > low], kind


def _json(goal: Goal, m: Measured, build: Any, serving: Any, notes: list[str]) -> dict[str, Any]:
    return {
        "goal": asdict(goal),
        "measured": {
            "documents": m.sample.documents,
            "chunks": len(m.texts.chunk_texts),
            "tokens_per_document": m.texts.tokens_per_document,
            "text_bytes": m.sample.text_bytes,
            "documents_read_per_s": m.sample.read,
            "documents_skipped_per_s": m.sample.skipped,
            "bytes_hashed_per_s": m.sample.digested,
            "seconds": m.texts.seconds,
            "postings_per_chunk": m.known.per_chunk,
            "vocabulary_growth": m.known.growth,
            "building": asdict(m.building),
            "encode_chunks_per_s": m.encoded,
            "searching": asdict(m.searching),
            "disk": asdict(m.disk),
            "process_bytes": m.process,
        },
        "build": asdict(build),
        "serving": asdict(serving),
        "notes": notes,
    }
