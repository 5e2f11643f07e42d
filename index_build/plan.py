"""The division of sources into shards. Written once, so that every job, now or after a kill, builds the same shards."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ratchet.core.errors import UserError
from ratchet.core.files import read_record, write_json
from ratchet.core.locks import WAIT_OF_JOB, Lock, disk_error
from ratchet.core.progress import Progress
from ratchet.core.records import Record
from ratchet.core.runfolder import file_digest, tree_digest
from ratchet.index_build.documents import READ, scan_documents, source_files
from ratchet.retrieval.layout import MANIFEST, IndexSettings, Source, read_manifest

PLAN = "plan.json"
logger = logging.getLogger(__name__)


class PlannedShard(Record):
    """Documents first .. first + count - 1 of a source: one shard."""

    source: Source
    first: int
    count: int


class PlannedSource(Record):
    """A source file or folder as it was when the build was planned, and how it is divided into shards."""

    path: str
    sha256: str
    stamps: dict[str, tuple[int, int]]
    """Size and time of change (ns) of its files when the digest was taken."""
    pieces: tuple[tuple[int, int], ...] = ()
    """(first, count) of each shard."""


class Plan(Record):
    """A planned build: the settings of the index and the shards of every source."""

    settings: IndexSettings
    sources: tuple[PlannedSource, ...]

    @property
    def pieces(self) -> list[PlannedShard]:
        """All shards in the order of their numbers."""
        return [
            PlannedShard(source=Source(path=source.path, sha256=source.sha256), first=first, count=count)
            for source in self.sources
            for first, count in source.pieces
        ]


def shard_name(number: int) -> str:
    """Name a shard's folder: its number in five digits."""
    return f"{number:05d}"


def plan_index(
    target: Path,
    settings: IndexSettings,
    paths: Sequence[Path],
    shard_documents: int,
    check: Callable[[Sequence[Path]], None] = lambda new: None,
) -> Plan:
    """Return the plan of an index: the one that is there, continued with the sources that it does not have yet.

    Another one at the same place, with other settings or other documents, is refused with the differences. A bad
    document is met here, before hours of building; `check` may refuse new sources too.
    """
    if not paths:
        raise UserError("index.documents: name at least one source: a JSONL, TSV or Parquet file, or a folder of texts")
    with locked(target):
        there = read_record(target / PLAN, Plan, f"delete {target} to rebuild the index")
        if there is None and any(not path.name.startswith(".") for path in target.iterdir()):
            known = "an index of another version" if (target / MANIFEST).exists() else "something that is not an index"
            raise UserError(f"{target}: there is {known} here; choose another index.path or delete this folder")
        known_sources = there.sources if there is not None else ()
        now = [_source(path, known_sources) for path in paths]
        changes = []
        if there is not None:
            old, wanted = there.settings.model_dump(), settings.model_dump()
            changes = [f"{key}: {old[key]!r} there, {wanted[key]!r} now" for key in wanted if old[key] != wanted[key]]
        shared = min(len(now), len(known_sources))
        if [source.sha256 for source in now[:shared]] != [source.sha256 for source in known_sources[:shared]]:
            before, after = (
                ", ".join(f"{one.path} (sha256 {one.sha256[:12]})" for one in some) for some in (known_sources, now)
            )
            changes.append(f"documents: {before} there, {after} now")
        if changes:
            raise UserError(
                f"{target}: the index here was built from something else:\n  " + "\n  ".join(changes) + "\n"
                "Choose another place (--set index.path=indexes/NEW), delete this folder to rebuild it, or go back "
                "to the old values. Documents are added by naming more sources after the old ones."
            )
        # Sources may have moved since; what is still to be built of them is read where they are now.
        moved = [
            source.model_copy(update={"path": one.path, "stamps": one.stamps})
            for source, one in zip(known_sources, now, strict=False)
        ]
        known_sources = (*moved, *known_sources[shared:])
        if new := now[shared:]:
            # No id may come twice in what is not listed yet; `check` compares the rest with what is.
            listed = len(read_manifest(target).sources) if (target / MANIFEST).exists() else 0
            unlisted = [Path(source.path) for source in known_sources[listed:]]
            added = [Path(source.path) for source in new]
            with Progress("reading documents", None) as progress:
                scanned = scan_documents([*unlisted, *added], lambda document: progress.advance())
            check(added)
            for source, found in zip(new, scanned[len(unlisted) :], strict=True):
                # No shard holds documents of two sources.
                firsts = range(0, found.documents, shard_documents)
                pieces = tuple((first, min(shard_documents, found.documents - first)) for first in firsts)
                known_sources += (source.model_copy(update={"pieces": pieces}),)
                if found.skipped:
                    logger.warning("%s: not read: %s. %s", source.path, found.skipped, READ)
        plan = Plan(settings=settings, sources=known_sources)
        if plan != there:
            write_json(target / PLAN, plan.model_dump(mode="json"))
        return plan


@contextmanager
def locked(target: Path) -> Iterator[None]:
    """Lock the plan and the listing of shards; other processes wait and find them done."""
    try:
        with Lock(target / ".lock", f"the plan of {target}", wait=WAIT_OF_JOB):
            for leftover in target.glob(".*.tmp"):  # of a write_atomic that was killed
                leftover.unlink(missing_ok=True)
            yield
    except OSError as error:
        raise disk_error(target, error) from error


def _source(path: Path, known: Sequence[PlannedSource]) -> PlannedSource:
    """Describe the source as it is now; a known one whose files have not been touched, or are gone, is not read
    again."""
    before = next((source for source in known if source.path == str(path)), None)
    if before is not None and not path.exists():
        return before
    try:
        files = source_files(path)
        stamps = {str(file): (file.stat().st_size, file.stat().st_mtime_ns) for file in files}
    except OSError as error:
        raise UserError(f"{path}: cannot read ({error.strerror}); check the path in the config") from error
    if before is not None and before.stamps == stamps:
        return before
    sha256 = tree_digest(path, files) if path.is_dir() else file_digest(path)
    return PlannedSource(path=str(path), sha256=sha256, stamps=stamps)
