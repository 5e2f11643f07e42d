"""Building an index: read, cut, count, sort, write. It appears whole under its path or not at all."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from index_build.chunks import Chunker
from index_build.documents import Document, check_documents, read_documents
from index_build.postings import Postings
from index_build.writing import FolderWriter, building_folder
from ratchet.config import IndexConfig
from ratchet.errors import UserError
from ratchet.files import disk_error, write_json
from ratchet.progress import Progress
from ratchet.records import content_key
from ratchet.runfolder import file_digest
from retrieval.layout import CONTENT_FILES, FORMAT, MANIFEST, IndexSettings, Manifest, Source, damaged, read_manifest
from retrieval.words import Words

# Documents that are tokenised together.
BATCH = 64


def build_index(config: IndexConfig, tokenizer: Any, name: str) -> tuple[Manifest, bool]:
    """Build the index of a config: (its manifest, whether it had to be built).

    `tokenizer` is a fast tokenizer of transformers, `name` what the config calls it. A finished index of the same
    settings and documents is checked and kept; another one at the same path is refused with the differences.
    """
    target = Path(config.path)
    paths = [Path(path) for path in config.documents]
    chunker = Chunker(tokenizer, config.chunk_tokens, config.chunk_overlap, name)
    settings = IndexSettings.of(config, chunker.digest)
    words = Words(config.stemmer, config.stop_words)
    if not paths:
        raise UserError("index.documents: name at least one JSONL file of {id, text, title?}")
    sources = tuple(Source(path=str(path), sha256=file_digest(path)) for path in paths)
    finished = _finished(target, settings, sources)
    if finished is not None:
        return finished, False
    total = check_documents(paths)
    documents = (document for path in paths for _, document in read_documents(path))
    try:
        with building_folder(target) as folder:
            files = FolderWriter(folder)
            try:
                with tempfile.TemporaryFile(dir=folder) as spill, Progress("indexing", total) as progress:
                    postings = Postings(words, spill)
                    _write_chunks(documents, chunker, postings, files, progress)
                    terms, posting_count = postings.write(files, config.k1, config.b)
                entries = files.finish()
            finally:
                files.close()
            scoring = settings.model_dump(include={"kind", "k1", "b", "stemmer", "stop_words"})
            manifest = Manifest(
                digest=content_key(FORMAT, scoring, [entries[file].sha256 for file in CONTENT_FILES]),
                settings=settings,
                tokenizer=name,
                sources=sources,
                documents=total,
                chunks=postings.chunks,
                terms=terms,
                postings=posting_count,
                mean_length=postings.mean_length,
                files=entries,
            )
            write_json(folder / MANIFEST, manifest.model_dump(mode="json"))
    except OSError as error:
        raise disk_error(target, error) from error
    return manifest, True


def _write_chunks(
    documents: Iterable[Document], chunker: Chunker, postings: Postings, files: FolderWriter, progress: Progress
) -> None:
    """Write documents and chunks, and count the chunks' terms."""
    ids, titles, texts = files.strings("document_ids"), files.strings("titles"), files.array("texts.utf8", "|u1")
    spans, document_chunks = files.array("chunk_spans", "<i8"), files.array("document_chunks", "<i8")
    document_chunks.append([0])
    for batch in _batches(documents):
        ids.extend([document.id for document in batch])
        titles.extend([document.title for document in batch])
        chunk_counts: list[int] = []
        slices: list[str] = []
        for document, cuts in zip(batch, chunker.cut([document.text for document in batch]), strict=True):
            spans.append(texts.bytes + byte_positions(document.text)[np.array(cuts)])
            texts.append(document.text.encode())
            slices += [f"{document.title}\n{document.text[start:end]}" for start, end in cuts]
            chunk_counts.append(len(cuts))
        document_chunks.append(postings.chunks + np.cumsum(chunk_counts))
        postings.add(slices)
        progress.advance(len(batch), f"{postings.chunks} chunks")


def _batches(documents: Iterable[Document]) -> Iterator[list[Document]]:
    left = iter(documents)
    while batch := list(islice(left, BATCH)):
        yield batch


def byte_positions(text: str) -> np.ndarray:
    """Position in the text's UTF-8 bytes of every character, and of the end: int64, one more than characters."""
    if text.isascii():
        return np.arange(len(text) + 1)
    points = np.frombuffer(text.encode("utf-32-le"), "<u4")
    sizes = 1 + (points > 0x7F).astype(np.int64) + (points > 0x7FF) + (points > 0xFFFF)
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])


def _finished(target: Path, settings: IndexSettings, sources: tuple[Source, ...]) -> Manifest | None:
    """The manifest of the finished index at `target`, None where there is none; anything else there is refused."""
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return None
    if not (target / MANIFEST).exists():
        raise UserError(f"{target}: there is something here that is not an index; choose another index.path")
    manifest = read_manifest(target)
    there, now = manifest.settings.model_dump(), settings.model_dump()
    changes = [f"{key}: {there[key]!r} there, {now[key]!r} now" for key in now if there[key] != now[key]]
    if [source.sha256 for source in manifest.sources] != [source.sha256 for source in sources]:
        changes.append(f"documents: {_listed(manifest.sources)} there, {_listed(sources)} now")
    if changes:
        raise UserError(
            f"{target}: the index here was built from something else:\n  " + "\n  ".join(changes) + "\n"
            "Choose another place (--set index.path=indexes/NEW), delete this folder to build it anew, or go back to "
            "the old values."
        )
    for name, entry in manifest.files.items():
        if file_digest(target / name) != entry.sha256:
            raise damaged(target, f"the content of {name} has changed since it was built")
    return manifest


def _listed(sources: tuple[Source, ...]) -> str:
    return ", ".join(f"{source.path} (sha256 {source.sha256[:12]})" for source in sources)
