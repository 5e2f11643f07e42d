"""Making the files that an approximate search reads (retrieval/sparse/forward.py) of finished shards."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np

from index_build.encode import encode_lists, max_region_bytes
from index_build.writing import FolderWriter, building_folder
from ratchet.files import disk_error, write_json
from ratchet.numba_cache import njit
from ratchet.progress import Progress
from retrieval.layout import APPROXIMATE, ROWS, SHARDS, Manifest, RowsManifest, read_rows_manifest, rows_folder
from retrieval.sparse.bits import OVERREAD
from retrieval.sparse.engine import Postings
from retrieval.sparse.forward import MOST_VOCABULARY, VALUE_BITS
from retrieval.sparse.kernels import _add_window as add_window
from retrieval.sparse.kernels import _open_list as open_list
from retrieval.sparse.kernels import count_postings
from retrieval.sparse.postings import (
    BITS,
    GAPS,
    SHORT,
    SKIP,
    SPARSE,
    WINDOW,
    WINDOW_BITS,
    bits_head,
    places_at,
)
from retrieval.sparse.postings import _exception as exception
from retrieval.sparse.quantisation import FAR, STEPS
from retrieval.sparse.selection import ABSENT, AT, ENTRIES, KIND, ROW, UPCOMING
from retrieval.sparse.shards import NOT_THERE, Shard, read_shard_manifest

# Share of a chunk's terms, those that weigh most in it, that the short lists have.
KEPT = 0.3
# Postings of short lists that are written at once, about.
SLICE = 1 << 22


def build_rows(folder: Path, manifest: Manifest, kept: float = KEPT) -> None:
    """Make the files of those shards of a learned sparse index that have none, and delete those of other shards."""
    wanted = {entry.name: entry.digest for entry in manifest.shards}
    if (folder / APPROXIMATE).is_dir():
        for path in (folder / APPROXIMATE).iterdir():
            known = read_rows_manifest(path, wanted.get(path.name, ""))
            if known is None or known.kept != kept:
                shutil.rmtree(path, ignore_errors=True)
    missing = [name for name in wanted if not rows_folder(folder, name).exists()]
    shards = [Shard(path := folder / SHARDS / name, read_shard_manifest(path)) for name in missing]
    if any(shard.manifest.terms > MOST_VOCABULARY for shard in shards):
        return  # no room in a row: the posting lists are searched instead
    if missing:
        with Progress("making approximate search's files of chunks", sum(map(len, shards))) as progress:
            for shard in shards:
                build_shard_rows(rows_folder(folder, shard.folder.name), shard, kept)
                progress.advance(len(shard))


def build_shard_rows(target: Path, shard: Shard, kept: float = KEPT) -> None:
    """Make the files of one shard at `target`, which appears whole or not at all."""
    try:
        target.parent.mkdir(exist_ok=True)
        with building_folder(target) as folder:
            files = FolderWriter(folder)
            try:
                postings = Postings(shard, False)
                _write_short_lists(files, postings, _write_rows(files, postings, kept))
                entries = files.finish()
            finally:
                files.close()
            known = RowsManifest(shard=shard.manifest.digest, kept=kept, files=entries)
            write_json(folder / ROWS, known.model_dump(mode="json"))
    except OSError as error:
        raise disk_error(target, error) from error


def _write_short_lists(files: FolderWriter, postings: Postings, least: np.ndarray) -> None:
    """least: uint8 per chunk, the smallest code that its postings have in the short lists."""
    data_file, regions_file = files.array("postings", "|u1"), files.array("regions", "<u4")
    begins = np.where(postings.regions == NOT_THERE, -1, postings.regions.astype(np.int64))
    ends = np.cumsum(_sizes(postings.words, begins))
    first, done = 0, 0
    while first < len(ends):
        # At least one term a slice, and no more than have room.
        last = max(first + 1, int(np.searchsorted(ends, done + SLICE, side="right")))
        room = int(ends[last - 1]) - done
        bounds = np.zeros(last - first + 1, np.int64)
        chunks = np.empty(room, np.uint32)
        codes, places = np.empty((2, room), np.uint8)
        _shorten(postings.files, begins, first, last, least, bounds, chunks, codes, places)
        data = np.zeros(max_region_bytes(bounds[-1], last - first), np.uint8)
        regions = np.empty(last - first, np.int64)
        held = slice(bounds[-1])
        used = encode_lists(bounds, chunks[held], codes[held], places[held], len(least), data, regions)
        regions_file.append(np.where(regions < 0, NOT_THERE, regions + (data_file.bytes >> 2)))
        data_file.append(data[:used])
        first, done = last, int(ends[last - 1])
    if data_file.bytes:
        data_file.append(np.zeros(OVERREAD, np.uint8))


def _write_rows(files: FolderWriter, postings: Postings, kept: float) -> np.ndarray:
    """Turn the lists into rows, window by window, so that one window's rows are in memory at once.

    Returns, uint8 per chunk, the smallest code of the `kept` of its postings that have the largest.
    """
    rows_file, ends_file = files.array("rows", "<u4"), files.array("row_ends", "<i8")
    ends_file.append([0])
    chunk_count = len(postings.shard)
    least = np.empty(chunk_count, np.uint8)
    lists = np.empty((len(postings.regions), ROW), np.int64)
    _open_lists(postings.files, postings.regions, lists, postings.windows)
    for window in range(postings.windows):
        size = min(WINDOW, chunk_count - (window << WINDOW_BITS))
        ends = np.zeros(size + 1, np.int64)
        _count_terms(postings.files, lists, window, size, postings.windows, ends)
        rows = np.empty(ends[-1], np.uint32)
        codes = np.empty(ends[-1], np.uint8)
        _fill_rows(postings.files, postings.tables, lists, window, size, ends[:-1].copy(), rows, codes)
        _find_least(ends, codes, kept, least[window << WINDOW_BITS :])
        ends_file.append(ends[1:] + (rows_file.bytes >> 2))
        rows_file.append(rows)
    return least


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
def _sizes(words: Any, begins: Any) -> Any:
    sizes = np.zeros(len(begins), np.int64)
    for i in range(len(begins)):
        count_postings(words, begins[i : i + 1], sizes[i : i + 1])
    return sizes


@njit(cache=True)
def _open_lists(files: Any, regions: Any, lists: Any, windows: int) -> None:
    for term in range(len(regions)):
        region = np.int64(regions[term])
        open_list(files, -1 if region == NOT_THERE else region, lists[term], (np.int64(0), windows), True)


@njit(cache=True)
def _shorten(
    files: Any, regions: Any, first: int, last: int, least: Any, bounds: Any, chunks: Any, codes: Any, places: Any
) -> None:
    """The postings of terms first .. last - 1 whose codes are not below their chunks' least."""
    windows = (len(least) + WINDOW - 1) >> WINDOW_BITS
    row, bounding, nothing = np.empty(ROW, np.int64), np.zeros(WINDOW, np.uint16), np.zeros(STEPS + 1, np.uint16)
    here, code, place = np.empty(WINDOW, np.int64), np.empty(WINDOW, np.uint8), np.empty(WINDOW, np.uint8)
    at = 0
    for term in range(first, last):
        open_list(files, regions[term], row, (np.int64(0), windows), True)
        while row[UPCOMING] < windows:
            window = row[UPCOMING]
            begin = window << WINDOW_BITS
            size = min(WINDOW, len(least) - begin)
            add_window(files, row, window, size, bounding, nothing, 0, windows, True)
            for i in range(_decode(files, row, begin, size, here, code, place)):
                if code[i] >= least[begin + here[i]]:
                    chunks[at], codes[at], places[at] = begin + here[i], code[i], place[i]
                    at += 1
        bounds[term - first + 1] = at


@njit(cache=True)
def _find_least(ends: Any, codes: Any, kept: float, least: Any) -> None:
    """For each row its largest code that at least `kept` of its codes reach."""
    for i in range(len(ends) - 1):
        ordered = np.sort(codes[ends[i] : ends[i + 1]])
        if len(ordered) > 0:
            least[i] = ordered[len(ordered) - max(1, int(np.ceil(kept * len(ordered))))]


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
def _fill_rows(files: Any, tables: Any, lists: Any, window: int, size: int, slots: Any, rows: Any, codes: Any) -> None:
    _, _, code_values, keys, values = tables
    here, code, place = np.empty(WINDOW, np.int64), np.empty(WINDOW, np.uint8), np.empty(WINDOW, np.uint8)
    first = window << WINDOW_BITS
    for term in range(len(lists)):
        for i in range(_decode(files, lists[term], first, size, here, code, place)):
            number = np.int64(code_values[code[i]]) + place[i]
            if place[i] == FAR:
                number = exception(keys, values, (term << 32) | (first + here[i]), 0)
            rows[slots[here[i]]] = (term << VALUE_BITS) | number
            codes[slots[here[i]]] = code[i]
            slots[here[i]] += 1
