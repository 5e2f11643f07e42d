"""Make learned sparse vectors of as many passages as are wanted of encoded sentences of real texts.

    python -m benchmarks.retrieval.grow --model FOLDER --documents 1000000 --out FOLDER

A masked language model (SPLADE) encodes each sentence of the texts of --texts, JSONL with a `text` or `contents`, and
the questions of --questions. A passage is 3 to 7 sentences: one drawn evenly; each other one is, beside a sentence that
is in already, of the same text in 45 of 100 cases, one of its 50 nearest sentences by 12 terms in 47, and any sentence
in 8. Its vector is the largest logit of each term, as SPLADE pools tokens; each logit is multiplied by a log-normal
number (sigma 0.25), so that no two passages are equal, and one in ten is left out.

A stopped run, started again with the same arguments, resumes: files that are in the folder of --out are kept.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.retrieval.corpus import Query, Rows, value_table
from benchmarks.retrieval.engines import Ours
from benchmarks.retrieval.timing import log
from commands.arguments import run_command
from ratchet.config import EncoderConfig
from ratchet.numba_cache import njit
from retrieval.encoders.loading import load_encoder
from retrieval.encoders.vectors import SparseVectors, load_vectors, save_vectors

# Words of a passage that sentences are cut from, passages of a text, and words of a sentence.
PASSAGE, PASSAGES, LEAST, MOST = 120, 4, 5, 40
NEAREST, NEAREST_TERMS = 50, 12
PART = 100_000
# Sentences that are encoded between two writes, so that a stopped run loses at most these.
SLICE = 8_000


def main() -> None:
    """Encode sentences and questions, and write passages."""
    parser = argparse.ArgumentParser(description="Learned sparse vectors of as many passages as are wanted.")
    parser.add_argument("--model", required=True, help="folder of a SPLADE model")
    parser.add_argument("--texts", type=Path, nargs="+", required=True, help="JSONL, also .gz")
    parser.add_argument("--questions", type=Path, nargs="+", required=True, help="JSONL with a `question`")
    parser.add_argument("--sentences", type=int, default=80_000)
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    options = parser.parse_args()
    draw = np.random.default_rng(options.seed)
    options.out.mkdir(parents=True, exist_ok=True)
    encoder = load_encoder(EncoderConfig(path=options.model, dtype="float32", max_length=256))
    questions = [row["question"] for path in options.questions for row in _read(path)]
    chosen = [questions[i] for i in draw.permutation(len(questions))[:500]]
    _kept(options.out / "queries.npz", lambda: encoder.encode_queries(chosen))
    texts = [row.get("text") or row["contents"] for path in options.texts for row in _read(path)]
    sentences, origin = _sentences([texts[i] for i in draw.permutation(len(texts))], options.sentences)
    slices = []
    for number, first in enumerate(range(0, len(sentences), SLICE)):
        log(f"{first:,} of {len(sentences):,} sentences encoded")
        some = sentences[first : first + SLICE]
        slices.append(_kept(options.out / f"sentences-{number:03d}.npz", partial(encoder.encode_documents, some)))
    vectors = _joined(slices)
    log("looking for near sentences")
    nearest = _nearest(vectors, encoder.vocabulary)
    starts = np.searchsorted(origin, np.arange(origin[-1] + 2))

    def passages(number: int, first: int) -> SparseVectors:
        log(f"{first:,} of {options.documents:,} passages")
        return SparseVectors(
            *_grow(
                min(PART, options.documents - first), options.seed + number, encoder.vocabulary,
                vectors.offsets, vectors.terms, vectors.codes, origin, starts, nearest,
            )
        )  # fmt: skip

    for number, first in enumerate(range(0, options.documents, PART)):
        _kept(options.out / f"part-{number:03d}.npz", partial(passages, number, first))


def _kept(path: Path, make: Callable[[], SparseVectors]) -> SparseVectors:
    """What the file holds; what `make` returns, which is written, where there is none."""
    vectors = load_vectors(path)
    if vectors is None:
        vectors = make()
        save_vectors(path, vectors)
    return vectors


def _joined(slices: Sequence[SparseVectors]) -> SparseVectors:
    """One after the other."""
    ends = [np.zeros(1, np.int64)]
    for each in slices:
        ends.append(each.offsets[1:] + ends[-1][-1])
    terms, codes = ([getattr(each, name) for each in slices] for name in ("terms", "codes"))
    return SparseVectors(np.concatenate(ends), np.concatenate(terms), np.concatenate(codes))


def _read(path: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        yield from map(json.loads, file)


def _sentences(texts: list[str], count: int) -> tuple[list[str], np.ndarray]:
    """Sentences, and for each the number of its passage: int64, ascending."""
    found: list[str] = []
    origin: list[int] = []
    passage = 0
    for text in texts:
        words = text.split()
        for first in range(0, min(len(words), PASSAGE * PASSAGES), PASSAGE):
            parts = re.split(r"(?<=[.!?])\s+", " ".join(words[first : first + PASSAGE]))
            kept = [part for part in parts if len(part.split()) >= LEAST]
            found += [" ".join(part.split()[:MOST]) for part in kept]
            origin += [passage] * len(kept)
            passage += bool(kept)
        if len(found) >= count:
            break
    return found[:count], np.array(origin[:count], np.int64)


def _nearest(vectors: SparseVectors, vocabulary: int) -> np.ndarray:
    """int32 [sentences, NEAREST]: the nearest by the terms of each that weigh most times their rarity."""
    count = len(vectors)
    rows = Rows("learned", vocabulary, vectors.offsets, vectors.terms.astype(np.int32), vectors.codes)
    rarity = np.log(count / np.maximum(np.bincount(vectors.terms, minlength=vocabulary), 1))
    weights = value_table()[vectors.codes] * rarity[vectors.terms]
    nearest = np.empty((count, NEAREST), np.int32)
    engine = Ours()
    with tempfile.TemporaryDirectory() as name:
        engine.build(engine.prepare(rows), Path(name))
        engine.open(Path(name))
        for i in range(count):
            span = slice(vectors.offsets[i], vectors.offsets[i + 1])
            top = np.argsort(-weights[span])[:NEAREST_TERMS]
            query = Query(vectors.terms[span][top].astype(np.int64), weights[span][top].astype(np.float32))
            nearest[i] = np.resize(engine.search([query], NEAREST, 1)[0].chunks, NEAREST)
    return nearest


@njit(cache=True)
def _grow(
    count: int,
    seed: int,
    vocabulary: int,
    offsets: Any,
    terms: Any,
    codes: Any,
    origin: Any,
    starts: Any,
    nearest: Any,
) -> Any:
    """So many passages, as offsets, terms and codes."""
    np.random.seed(seed)
    best = np.zeros(vocabulary, np.uint16)
    touched = np.empty(vocabulary, np.int64)
    logit = np.zeros(1, np.float32)
    bits = logit.view(np.uint32)
    new_offsets = np.zeros(count + 1, np.int64)
    new_terms, new_codes = np.empty(1 << 20, np.uint32), np.empty(1 << 20, np.uint16)
    picked = np.empty(7, np.int64)
    at = 0
    for passage in range(count):
        sentences = np.random.randint(3, 8)
        picked[0] = np.random.randint(0, len(origin))
        for i in range(1, sentences):
            beside, chance = picked[np.random.randint(0, i)], np.random.random()
            if chance < 0.45:
                text = origin[beside]
                picked[i] = np.random.randint(starts[text], starts[text + 1])
            elif chance < 0.92:
                picked[i] = nearest[beside, np.random.randint(0, nearest.shape[1])]
            else:
                picked[i] = np.random.randint(0, len(origin))
        found = 0
        for sentence in picked[:sentences]:
            for j in range(offsets[sentence], offsets[sentence + 1]):
                if best[terms[j]] == 0:
                    touched[found] = terms[j]
                    found += 1
                best[terms[j]] = max(best[terms[j]], codes[j])
        if at + found > len(new_terms):
            new_terms = np.concatenate((new_terms, np.empty_like(new_terms)))
            new_codes = np.concatenate((new_codes, np.empty_like(new_codes)))
        touched[:found].sort()
        for term in touched[:found]:
            if np.random.random() >= 0.1:
                bits[0] = np.uint32(best[term]) << np.uint32(16)
                logit[0] *= np.exp(0.25 * np.random.randn())
                new_terms[at], new_codes[at] = term, (bits[0] + np.uint32(0x8000)) >> np.uint32(16)
                at += 1
            best[term] = 0
        new_offsets[passage + 1] = at
    return new_offsets, new_terms[:at].copy(), new_codes[:at].copy()


if __name__ == "__main__":
    run_command(main)
