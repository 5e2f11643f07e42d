"""Building an index: plan the shards, build those that are missing, list them in the manifest."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import queue
import shutil
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from ratchet.core.config import IndexConfig
from ratchet.core.errors import UserError
from ratchet.core.progress import Progress
from ratchet.index_build.chunks import Chunker
from ratchet.index_build.content import ContentFactory, drop_encoded_parts, encoding_folder, open_content_factory
from ratchet.index_build.documents import read_documents
from ratchet.index_build.plan import Plan, PlannedShard, locked, plan_index, shard_name
from ratchet.index_build.shard import build_shard, lock_of
from ratchet.retrieval.index import Shard, Store
from ratchet.retrieval.layout import (
    K1,
    MANIFEST,
    SHARD,
    SHARDS,
    B,
    IndexSettings,
    Manifest,
    ShardEntry,
    ShardManifest,
    Source,
    read_manifest,
    read_shard_manifest,
    read_stamps,
    stamp_of,
    write_stamps,
)
from ratchet.retrieval.loader import milvus_uri, open_store, vector_space

# Ids that are looked up together.
IDS = 1 << 16


def build_index(
    config: IndexConfig,
    tokenizer: Any,
    name: str,
    *,
    workers: int = 1,
    job: tuple[int, int] | None = None,
    contents: ContentFactory | None = None,
) -> tuple[Manifest | None, int]:
    """Build the missing shards of a config's index; returns its manifest and how many shards were built.

    `tokenizer` is a fast tokenizer of transformers, `name` what the config calls it. job (i, n): build only the shards
    whose number is i modulo n, as one of n jobs on any machines; the manifest (None until then) is written by whoever
    finds all shards built. `contents` is that of the config, where it is loaded already.
    """
    target = Path(config.path)
    contents = contents or open_content_factory(config)
    chunker = Chunker(tokenizer, config.chunk_tokens, config.chunk_overlap, name, contents.limit)
    settings = IndexSettings.of(config, chunker.digest, contents.encoder, chunker.fits)
    paths = [Path(path) for path in config.documents]

    plan = plan_index(target, settings, paths, config.shard_documents, partial(_check_ids, target))
    pieces = plan.pieces
    missing = [number for number, piece in enumerate(pieces) if not is_built(target, number, piece, settings.key)]
    mine = [number for number in missing if job is None or number % job[1] == job[0]]
    if mine:
        total = sum(pieces[number].count for number in mine)
        with Progress("indexing documents", total) as progress:
            if workers > 1 and len(mine) > 1:
                build_with_workers(config, chunker, settings, [(n, pieces[n]) for n in mine], workers, progress)
            else:
                for number in mine:
                    build_planned_shard(
                        target, number, pieces[number], settings.key, chunker, contents, progress.advance
                    )
    # Other jobs may have built theirs in the meantime.
    others = sorted(set(missing) - set(mine))
    if not all(is_built(target, number, pieces[number], settings.key) for number in others):
        return None, len(mine)
    with locked(target):  # another job may have come here too
        return list_shards(config, plan, name), len(mine)


def is_built(target: Path, number: int, piece: PlannedShard, settings: str) -> bool:
    """Return whether a shard of the plan is on the disk. Raises UserError where it is a shard of another index."""
    folder = target / SHARDS / shard_name(number)
    if not (folder / SHARD).exists():
        return False
    shard = read_shard_manifest(folder)
    known = (shard.settings, shard.source_sha256, shard.first, shard.documents)
    if known != (settings, piece.source.sha256, piece.first, piece.count):
        raise UserError(f"{folder}: is a shard of another index; delete it and run the same command again")
    return True


def list_shards(config: IndexConfig, plan: Plan, name: str) -> Manifest:
    """Write the manifest over all shards of the plan, unless it is there."""
    target = Path(config.path)
    old = read_manifest(target) if (target / MANIFEST).exists() else None
    names = [shard_name(number) for number in range(len(plan.pieces))]
    for shard in names:  # of builds that were killed at their very end
        drop_encoded_parts(target / SHARDS / shard)
        lock_of(target / SHARDS / shard).unlink(missing_ok=True)
    known = 0
    if old is not None:
        open_store(target, old)  # which checks the files that changed since they were last checked
        known = len(old.shards)
    if old is not None and [entry.name for entry in old.shards] == names:
        build_engine_index(config, target, old)
        return old
    shards = [read_shard_manifest(target / SHARDS / shard) for shard in names]
    manifest = _manifest(plan, name, config, shards, names)
    _stamp(target, dict(zip(names, shards, strict=True)), known)
    if old is not None:
        _check_new_ids(target, manifest, known)
    build_engine_index(config, target, manifest)
    manifest.write(target)
    if old is not None and config.engine == "milvus":  # another collection has taken its place
        from ratchet.retrieval.backends.milvus import drop_milvus

        drop_milvus(milvus_uri(target, config.milvus), vector_space(old, open_store(target, old)))
    return manifest


def _manifest(
    plan: Plan,
    name: str,
    config: IndexConfig,
    shards: Sequence[ShardManifest],
    names: Sequence[str],
) -> Manifest:
    manifest = Manifest(
        digest="",
        settings=plan.settings,
        tokenizer=name,
        encoder=config.encoder.model_dump(mode="json", exclude_unset=True) if config.encoder else {},
        sources=tuple(Source(path=source.path, sha256=source.sha256) for source in plan.sources),
        shards=tuple(
            ShardEntry(name=shard_name, digest=shard.digest, documents=shard.documents, chunks=shard.chunks)
            for shard_name, shard in zip(names, shards, strict=True)
        ),
        documents=sum(shard.documents for shard in shards),
        chunks=sum(shard.chunks for shard in shards),
    )
    return manifest.model_copy(update={"digest": manifest.content})


def _check_ids(target: Path, new: Sequence[Path]) -> None:
    """Refuse sources with ids that the index holds already, before anything is planned or built of them."""
    if not (target / MANIFEST).exists():
        return
    manifest = read_manifest(target)
    if not all((target / SHARDS / entry.name / SHARD).exists() for entry in manifest.shards):
        return  # one that was damaged and deleted is rebuilt first; listing compares the ids in the end
    store = open_store(target, manifest)
    for path in new:
        documents = read_documents(path)
        while ids := [document.id for _, document in islice(documents, IDS)]:
            if len(older := store.document_numbers(ids)):
                raise _taken(target, store, older)


def _taken(target: Path, store: Store, older: np.ndarray) -> UserError:
    place = int(np.searchsorted([shard.first_document for shard in store.shards], older[0], side="right")) - 1
    document = store.shards[place].document_ids[int(older[0]) - store.shards[place].first_document]
    return UserError(
        f"{target}: added documents have ids that the index holds already, such as {document!r}; give them others, or "
        "rebuild the index of the new documents"
    )


def _check_new_ids(target: Path, manifest: Manifest, old_shards: int) -> None:
    """Refuse ids of the newest shards that older ones hold too: planning could not compare all."""
    store = open_store(target, manifest)
    last_old = store.shards[old_shards].first_document
    for shard in store.shards[old_shards:]:
        for first in range(0, shard.manifest.documents, IDS):
            last = min(first + IDS, shard.manifest.documents)
            numbers = store.document_numbers([shard.document_ids[i] for i in range(first, last)])
            if len(older := numbers[numbers < last_old]):
                raise _taken(target, store, older)


def _stamp(target: Path, shards: dict[str, ShardManifest], known: int) -> None:
    """Files of the shards from the `known`-th on that did not change since they were built need no second check.

    A shard's manifest is written last, so a file that is younger than that was changed.
    """
    stamps = read_stamps(target)
    for name in list(shards)[known:]:
        folder = target / SHARDS / name
        finished = stamp_of(folder / SHARD)[1]
        for file in shards[name].files:
            stamp = stamp_of(folder / file)
            if stamp[1] <= finished:
                stamps[f"{SHARDS}/{name}/{file}"] = stamp
    write_stamps(target, stamps)


PR_SET_PDEATHSIG = 1
_done: Any = None
_contents: ContentFactory | None = None


def build_planned_shard(
    target: Path,
    number: int,
    piece: PlannedShard,
    settings: str,
    chunker: Chunker,
    contents: ContentFactory,
    advance: Callable[[int], None],
) -> None:
    """Build one shard of the plan, and delete its encoded parts when it is finished."""
    shard = target / SHARDS / shard_name(number)
    kept = encoding_folder(shard)
    build_shard(shard, piece, settings, chunker, lambda folder: contents.make(folder, kept), advance)
    drop_encoded_parts(shard)


def build_with_workers(
    config: IndexConfig,
    chunker: Chunker,
    settings: IndexSettings,
    pieces: Sequence[tuple[int, PlannedShard]],
    workers: int,
    progress: Progress,
) -> None:
    """Build some shards in `workers` processes. They end with this one, however it ends."""
    context = multiprocessing.get_context("spawn")
    done = context.Queue()
    before = set(multiprocessing.active_children())
    with ProcessPoolExecutor(
        min(workers, len(pieces)), context, initializer=_start, initargs=(done, os.getpid())
    ) as pool:
        left: set[Future[None]] = set()
        try:
            with _delay_ctrl_c():
                left.update(pool.submit(_build, config, chunker, settings, n, piece) for n, piece in pieces)
            while left:
                finished, left = wait(left, timeout=0.5, return_when=FIRST_EXCEPTION)
                _drain(done, progress)
                for future in finished:
                    future.result()
        except BrokenProcessPool as error:
            left = set()  # the pool fails them itself, and does not bear that they are cancelled meanwhile
            raise UserError(
                "a worker was killed, most likely for want of memory; run the same command again with fewer --workers"
            ) from error
        except KeyboardInterrupt:
            for process in set(multiprocessing.active_children()) - before:
                process.kill()  # they would otherwise finish their shards first
            left = set()  # as above
            raise
        finally:
            for future in left:
                future.cancel()
    _drain(done, progress)


@contextmanager
def _delay_ctrl_c() -> Iterator[None]:
    """Delay SIGINT until the block ends. Processes that start in the block have SIGINT blocked from their start."""
    heard: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, _: heard.append(number))  # our threads do not block
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # what the processes inherit
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, handler)
        if heard:
            signal.raise_signal(signal.SIGINT)


def _drain(done: Any, progress: Progress) -> None:
    while True:
        try:
            progress.advance(done.get_nowait())
        except queue.Empty:
            return


def _start(done: Any, parent: int) -> None:
    global _done
    _done = done
    # Linux kills us when the parent goes; elsewhere a killed parent's workers finish their shard first.
    with_prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if with_prctl is not None:
        with_prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


def _build(
    config: IndexConfig,
    chunker: Chunker,
    settings: IndexSettings,
    number: int,
    piece: PlannedShard,
) -> None:
    global _contents
    if _contents is None:  # an encoder is loaded once
        _contents = open_content_factory(config)
    build_planned_shard(Path(config.path), number, piece, settings.key, chunker, _contents, _done.put)


# Rows that are handed to Milvus at once.
ROWS = 4096


def build_engine_index(config: IndexConfig, target: Path, manifest: Manifest) -> None:
    """Build what the config's engine needs beside the shards, unless it is there."""
    if config.engine == "lucene":
        _finish_lucene(config, target, open_store(target, manifest))
    elif config.engine == "milvus":
        _finish_milvus(config, target, manifest, open_store(target, manifest))


def _finish_lucene(config: IndexConfig, target: Path, store: Store) -> None:
    from ratchet.retrieval.backends.lucene import LuceneRanker, build_lucene

    folder = target / "lucene"
    if folder.exists():
        if len(LuceneRanker(folder, K1, B)) == len(store):
            return
        shutil.rmtree(folder)  # of before shards were added
    with Progress("indexing chunks with Lucene", len(store)) as progress:
        build_lucene(store.chunk_texts(), folder, stemmer=config.stemmer, progress=progress)


def _finish_milvus(config: IndexConfig, target: Path, manifest: Manifest, store: Store) -> None:
    from ratchet.retrieval.backends.milvus import build_milvus

    with Progress("sending vectors to Milvus", len(store)) as progress:
        build_milvus(
            milvus_uri(target, config.milvus),
            vector_space(manifest, store),
            _vectors(store),
            progress.advance,
        )


def _vectors(store: Store) -> Iterator[Any]:
    for shard in store.shards:
        for at in range(0, len(shard), ROWS):
            yield _rows(shard, at, min(at + ROWS, len(shard)))


def _rows(shard: Shard, first: int, last: int) -> Any:
    if "vectors" in shard.manifest.files:
        return shard.array("vectors").reshape(len(shard), -1)[first:last]
    from ratchet.retrieval.encoders.vectors import SparseVectors

    offsets = shard.array("row_offsets")[first : last + 1]
    span = slice(int(offsets[0]), int(offsets[-1]))
    return SparseVectors(offsets - offsets[0], shard.array("row_terms")[span], shard.array("row_values")[span])
