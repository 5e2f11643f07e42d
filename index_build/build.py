"""Building an index: plan the shards, build those that are missing, list them in the manifest."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from ratchet.core.config import IndexConfig
from ratchet.core.errors import UserError
from ratchet.core.progress import Progress
from ratchet.index_build.chunks import Chunker
from ratchet.index_build.content import ContentFactory, drop_encoded_parts, open_content_factory
from ratchet.index_build.documents import read_documents
from ratchet.index_build.engines import build_engine_index, drop_older_engine_index
from ratchet.index_build.plan import Plan, PlannedShard, locked, plan_index, shard_name
from ratchet.index_build.workers import build_planned_shard, build_with_workers
from ratchet.index_build.writing import lock_of
from ratchet.retrieval.index import Store
from ratchet.retrieval.layout import (
    MANIFEST,
    SHARD,
    SHARDS,
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
from ratchet.retrieval.loader import open_store

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

    `tokenizer` is a fast tokenizer of transformers, `name` what the config calls it. `workers` processes build shards
    side by side. job (i, n): build only the shards whose number is i modulo n, as one of n jobs on any machines; the
    manifest (None until then) is written by whoever finds all shards built. `contents` is that of the config, where it
    is loaded already. Chunks are made to fit what its encoder reads.
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
    """Whether a shard of the plan is on the disk. Raises UserError where it is a shard of another index."""
    folder = target / SHARDS / shard_name(number)
    if not (folder / SHARD).exists():
        return False
    shard = read_shard_manifest(folder)
    known = (shard.settings, shard.source_sha256, shard.first, shard.documents)
    if known != (settings, piece.source.sha256, piece.first, piece.count):
        raise UserError(f"{folder}: is a shard of another index; delete it and run the same command again")
    return True


def list_shards(config: IndexConfig, plan: Plan, name: str) -> Manifest:
    """Write the manifest over all shards of the plan, unless it is there; they are only listed, never copied."""
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
    if old is not None:
        drop_older_engine_index(config, target, old)
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
