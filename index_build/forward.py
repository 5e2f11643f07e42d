"""Making the rows of finished shards, by which an approximate search scores (retrieval/sparse/forward.py)."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np

from index_build.writing import FolderWriter, building_folder
from ratchet.files import disk_error, write_json
from ratchet.numba_cache import njit
from ratchet.progress import Progress
from retrieval.layout import MANIFEST, ROWS, SHARDS, Manifest, RowsManifest, read_rows_manifest, rows_folder
from retrieval.shards import NOT_THERE, Shard, read_shard_manifest
from retrieval.sparse.engine import Postings
from retrieval.sparse.forward import MOST_VOCABULARY, VALUE_BITS
from retrieval.sparse.kernels import add_window, open_list
from retrieval.sparse.postings import (
    BITS,
    GAPS,
    SHORT,
    SKIP,
    SPARSE,
    WINDOW,
    WINDOW_BITS,
    bits_head,
    exception,
    places_at,
)
from retrieval.sparse.quantisation import FAR, STEPS
from retrieval.sparse.recall import RECALL
from retrieval.sparse.selection import ABSENT, AT, ENTRIES, KIND, ROW, UPCOMING


def build_rows(folder: Path, manifest: Manifest) -> None:
    """Make the rows of those shards of a learned sparse index that have none, and delete those of other shards."""
    wanted = {entry.name: entry.digest for entry in manifest.shards}
    if (folder / ROWS).is_dir():
        for path in (folder / ROWS).iterdir():
            if read_rows_manifest(path, wanted.get(path.name, "")) is None:
                shutil.rmtree(path, ignore_errors=True)
    missing = [name for name in wanted if not rows_folder(folder, name).exists()]
    shards = [Shard(path := folder / SHARDS / name, read_shard_manifest(path)) for name in missing]
    if not shards or any(shard.manifest.terms > MOST_VOCABULARY for shard in shards):
        return  # terms that have no room in a row: chunks are scored by the posting lists
    with Progress("turning posting lists of chunks into rows", sum(map(len, shards))) as progress:
        for shard in shards:
            build_shard_rows(rows_folder(folder, shard.folder.name), shard)
            progress.advance(len(shard))
    (folder / RECALL).unlink(missing_ok=True)  # rows make other settings the cheapest


def build_shard_rows(target: Path, shard: Shard) -> None:
    """Make the rows of one shard at `target`, which appears whole or not at all."""
    try:
        target.parent.mkdir(exist_ok=True)
        with building_folder(target) as folder:
            files = FolderWriter(folder)
            try:
                _write_rows(files, Postings(shard, False))
                entries = files.finish()
            finally:
                files.close()
            known = RowsManifest(shard=shard.manifest.digest, files=entries)
            write_json(folder / MANIFEST, known.model_dump(mode="json"))
    except OSError as error:
        raise disk_error(target, error) from error


def _write_rows(files: FolderWriter, postings: Postings) -> None:
    """Window by window, so that one window's rows are in memory at once."""
    rows_file, ends_file = files.array("rows", "<u4"), files.array("row_ends", "<i8")
    ends_file.append([0])
    chunk_count = len(postings.shard)
    lists = np.empty((len(postings.regions), ROW), np.int64)
    _open_lists(postings.files, postings.regions, lists, postings.windows)
    for window in range(postings.windows):
        size = min(WINDOW, chunk_count - (window << WINDOW_BITS))
        ends = np.zeros(size + 1, np.int64)
        _count_terms(postings.files, lists, window, size, postings.windows, ends)
        rows = np.empty(ends[-1], np.uint32)
        _fill_rows(postings.files, postings.tables, lists, window, size, ends[:-1].copy(), rows)
        ends_file.append(ends[1:] + (rows_file.bytes >> 2))
        rows_file.append(rows)


@njit(cache=True)
def _decode(files: Any, row: Any, first: int, size: int, chunks: Any, codes: Any, places: Any) -> int:
    """What a list has in the window that its row stands at: chunks from the window's first, codes and places."""
    data, halves, words = files
    kind, at, entries = row[KIND], row[AT], row[ENTRIES]
    if kind == ABSENT:
        return 0
    place, found, here = places_at(kind, at, entries, size), 0, -1
    codes_at = at + 4 * entries
    if kind == SPARSE:
        codes_at = at + 2 * entries
    elif kind == GAPS:
        codes_at = at + 2 * ((entries + SKIP - 1) // SKIP) + entries
    elif kind == BITS:
        codes_at = at + bits_head(size)
    for entry in range(entries):
        if kind == SPARSE:
            here = int(halves[(at >> 1) + entry])
        elif kind == GAPS:
            here += data[codes_at - entries + entry]
        elif kind == BITS:
            here += 1
            while not (data[at + (here >> 3)] >> (here & 7)) & 1:
                here += 1
        else:
            here = int(words[(at >> 2) + entry]) - first
        code = data[codes_at + entry]
        if code > 0 and 0 <= here < size:
            chunks[found], codes[found] = here, code
            places[found] = (data[place + (entry >> 1)] >> (4 * (entry & 1))) & 15
            found += 1
    return found


@njit(cache=True)
def _open_lists(files: Any, regions: Any, lists: Any, windows: int) -> None:
    for term in range(len(regions)):
        region = np.int64(regions[term])
        open_list(files, -1 if region == NOT_THERE else region, lists[term], (np.int64(0), windows), True)


@njit(cache=True)
def _count_terms(files: Any, lists: Any, window: int, size: int, windows: int, ends: Any) -> None:
    """Move all rows to a window; ends becomes where each of its chunks' rows begins, and the end."""
    bounds, nothing = np.zeros(WINDOW, np.uint16), np.zeros(STEPS + 1, np.uint16)
    here, code, place = np.empty(WINDOW, np.int64), np.empty(WINDOW, np.uint8), np.empty(WINDOW, np.uint8)
    for term in range(len(lists)):
        if lists[term, UPCOMING] != window:
            lists[term, KIND] = SHORT if lists[term, KIND] == SHORT else ABSENT
            continue
        add_window(files, lists[term], window, size, bounds, nothing, 0, windows, True)
        for i in range(_decode(files, lists[term], window << WINDOW_BITS, size, here, code, place)):
            ends[here[i] + 1] += 1
    for i in range(size):
        ends[i + 1] += ends[i]


@njit(cache=True)
def _fill_rows(files: Any, tables: Any, lists: Any, window: int, size: int, slots: Any, rows: Any) -> None:
    _, _, code_values, keys, values = tables
    here, code, place = np.empty(WINDOW, np.int64), np.empty(WINDOW, np.uint8), np.empty(WINDOW, np.uint8)
    first = window << WINDOW_BITS
    for term in range(len(lists)):
        for i in range(_decode(files, lists[term], first, size, here, code, place)):
            number = np.int64(code_values[code[i]]) + place[i]
            if place[i] == FAR:
                number = exception(keys, values, len(keys), (term << 32) | (first + here[i]), 0)
            rows[slots[here[i]]] = (term << VALUE_BITS) | number
            slots[here[i]] += 1
