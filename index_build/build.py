"""Building an index: plan the shards, build those that are missing, list them in the manifest."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from index_build.chunks import Chunker
from index_build.content import Contents, contents_of, drop_kept, kept_folder
from index_build.engines import finish_engine
from index_build.plan import Piece, Plan, plan_index, shard_name
from index_build.shard import build_shard
from index_build.workers import build_with_workers
from ratchet.config import IndexConfig
from ratchet.errors import UserError
from ratchet.files import write_atomic
from ratchet.progress import Progress
from ratchet.records import content_key
from retrieval.layout import (
    FORMAT,
    MANIFEST,
    SHARDS,
    IndexSettings,
    Manifest,
    ShardEntry,
    Source,
    files_of,
    read_manifest,
    stamps_of,
    write_stamps,
)
from retrieval.opening import open_store
from retrieval.shard import SHARD, FileEntry, ShardManifest, read_shard_manifest


def build_index(
    config: IndexConfig,
    tokenizer: Any,
    name: str,
    *,
    workers: int = 1,
    job: tuple[int, int] | None = None,
    replace: bool = False,
) -> tuple[Manifest | None, int]:
    """Build what is missing of a config's index: (its manifest, how many shards had to be built).

    `tokenizer` is a fast tokenizer of transformers, `name` what the config calls it. `workers` processes build shards
    side by side. job (i, n): build only the shards whose number is i modulo n, as one of n jobs on any machines; the
    manifest (None until then) is written by whoever finds all shards built. `replace`: where an added document has
    the id of an older one, the older one is removed, which is otherwise an error.
    """
    target = Path(config.path)
    chunker = Chunker(tokenizer, config.chunk_tokens, config.chunk_overlap, name)
    contents = contents_of(config)
    settings = IndexSettings.of(config, chunker.digest, contents.encoder)
    plan = plan_index(target, settings, [Path(path) for path in config.documents], config.shard_documents)
    pieces = plan.pieces
    missing = [number for number, piece in enumerate(pieces) if not is_built(target, number, piece, settings.key)]
    mine = [number for number in missing if job is None or number % job[1] == job[0]]
    if mine:
        total = sum(pieces[number].count for number in mine)
        with Progress("indexing documents", total) as progress:
            if workers > 1 and len(mine) > 1:
                build_with_workers(config, tokenizer, name, [(n, pieces[n]) for n in mine], workers, progress)
            else:
                for number in mine:
                    build_piece(target, number, pieces[number], settings.key, chunker, contents, progress.advance)
    if set(missing) - set(mine):
        return None, len(mine)
    return list_shards(config, plan, name, replace), len(mine)


def build_piece(
    target: Path,
    number: int,
    piece: Piece,
    settings: str,
    chunker: Chunker,
    contents: Contents,
    advance: Callable[[int], None],
) -> None:
    shard = target / SHARDS / shard_name(number)
    kept = kept_folder(shard)
    build_shard(shard, piece, settings, chunker, lambda folder: contents.make(folder, kept), advance)
    drop_kept(shard)


def is_built(target: Path, number: int, piece: Piece, settings: str) -> bool:
    folder = target / SHARDS / shard_name(number)
    if not (folder / SHARD).exists():
        return False
    shard = read_shard_manifest(folder)
    known = (shard.settings, shard.source_sha256, shard.first, shard.documents)
    if known != (settings, piece.source.sha256, piece.first, piece.count):
        raise UserError(f"{folder}: is a shard of another index; delete it and run the same command again")
    return True


def list_shards(config: IndexConfig, plan: Plan, name: str, replace: bool) -> Manifest:
    """Write the manifest over all shards of the plan, unless it is there; they are only listed, never copied."""
    target = Path(config.path)
    old = read_manifest(target) if (target / MANIFEST).exists() else None
    names = [shard_name(number) for number in range(len(plan.pieces))]
    if old is not None and [entry.name for entry in old.shards] == names:
        open_store(target, old)  # checks the files that changed since they were last checked
        finish_engine(config, target, old)
        return old
    shards = [read_shard_manifest(target / SHARDS / shard) for shard in names]
    manifest = _manifest(plan, name, config, shards, names, _removed_of(target, old))
    stamp(target, manifest, shards)
    if old is not None:
        manifest = _without_older(target, manifest, shards, len(old.shards), replace)
    finish_engine(config, target, manifest)
    manifest.write(target)
    return manifest


def _manifest(
    plan: Plan,
    name: str,
    config: IndexConfig,
    shards: Sequence[ShardManifest],
    names: Sequence[str],
    removed: np.ndarray,
) -> Manifest:
    manifest = Manifest(
        digest="",
        settings=plan.settings,
        tokenizer=name,
        encoder=config.encoder,
        sources=tuple(Source(path=source.path, sha256=source.sha256) for source in plan.sources),
        shards=tuple(
            ShardEntry(name=shard_name, digest=shard.digest, documents=shard.documents, chunks=shard.chunks)
            for shard_name, shard in zip(names, shards, strict=True)
        ),
        documents=sum(shard.documents for shard in shards),
        chunks=sum(shard.chunks for shard in shards),
    )
    return with_removed(Path(config.path), manifest, removed)


def with_removed(target: Path, manifest: Manifest, removed: np.ndarray) -> Manifest:
    """The manifest with these documents removed, whose numbers are written beside it."""
    entry = None
    if len(removed):
        data = np.ascontiguousarray(removed, "<i8").tobytes()
        entry = FileEntry(dtype="<i8", bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
    manifest = manifest.model_copy(
        update={"removed": entry, "documents": sum(shard.documents for shard in manifest.shards) - len(removed)}
    )
    if manifest.removed_name is not None:
        write_atomic(target / manifest.removed_name, data)
    scoring = manifest.settings.model_dump(exclude={"tokenizer", "chunk_tokens", "chunk_overlap"})
    digest = content_key(FORMAT, scoring, [shard.digest for shard in manifest.shards], entry and entry.sha256)
    return manifest.model_copy(update={"digest": digest})


def _removed_of(target: Path, manifest: Manifest | None) -> np.ndarray:
    if manifest is None or manifest.removed_name is None:
        return np.empty(0, np.int64)
    return np.fromfile(target / manifest.removed_name, "<i8")


def _without_older(
    target: Path, manifest: Manifest, shards: Sequence[ShardManifest], old_shards: int, replace: bool
) -> Manifest:
    """The manifest with those older documents removed whose ids were added again; without `replace`, an error."""
    store = open_store(target, manifest)
    last_old = store.shards[old_shards].first_document
    again: list[np.ndarray] = []
    for shard in store.shards[old_shards:]:
        for first in range(0, shard.manifest.documents, 1 << 16):
            last = min(first + (1 << 16), shard.manifest.documents)
            ids = [shard.document_ids[i] for i in range(first, last)]
            numbers = store.document_numbers(ids)
            again.append(numbers[numbers < last_old])
    older = np.unique(np.concatenate(again))
    if len(older) and not replace:
        place = int(np.searchsorted([shard.first_document for shard in store.shards], older[0], side="right")) - 1
        document = store.shards[place].document_ids[int(older[0]) - store.shards[place].first_document]
        raise UserError(
            f"{target}: {len(older)} added documents have ids that the index holds already, such as {document!r}; "
            "run again with --replace to put them in the older ones' place, or remove these first"
        )
    return with_removed(target, manifest, np.union1d(store.removed, older)) if len(older) else manifest


def remove_documents(target: Path, ids: Sequence[str]) -> tuple[Manifest, int]:
    """Take documents out of an index: (its new manifest, how many were there). Their bytes stay until it is rebuilt."""
    manifest = read_manifest(target)
    if manifest.settings.engine != "ratchet" or manifest.settings.kind == "dense":
        raise UserError(f"{target}: documents can be removed from our own bm25 and sparse indexes only; build it anew")
    store = open_store(target, manifest)
    numbers = store.document_numbers(ids)
    if not len(numbers):
        return manifest, 0
    changed = with_removed(target, manifest, np.union1d(store.removed, numbers))
    changed.write(target)
    if manifest.removed_name is not None and manifest.removed_name != changed.removed_name:
        (target / manifest.removed_name).unlink(missing_ok=True)
    return changed, len(numbers)


def stamp(target: Path, manifest: Manifest, shards: Sequence[ShardManifest]) -> None:
    """Files that this machine has just written with their checksums need no second look."""
    write_stamps(target, stamps_of(target, (name for name, _ in files_of(target, manifest, list(shards)))))
