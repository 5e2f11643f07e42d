"""The capacity plan as text."""

from __future__ import annotations

import textwrap
from math import ceil

from index_build.capacity.forecast import MOST_POSTING_BYTES, Build, Goal, Measured, Serving
from index_build.postings import PARTITIONS, SLICE
from ratchet.progress import duration

ABOUT = {
    "planning": "planning, once",
    "reading": "reading",
    "chunking": "chunking",
    "texts": "storing texts",
    "encoding": "encoding, a device",
    "terms": "collecting postings",
    "postings": "sorting, writing",
    "finishing": "finishing shards",
}


def assumptions(goal: Goal, m: Measured) -> list[str]:
    notes = [
        "all grows with the documents, and these are like the sample"
        + (", but for --chunks: text and chunks grow with these" if goal.chunks else "")
        + "; a job's machine is like this one, and its workers do not slow each other down",
        f"the number of terms grows as chunks ^ {m.known.growth:.2f}, as it does within the sample; terms seen in 8 or "
        "more chunks keep their shares, rarer ones follow a power law; chunks are as independent as random ones",
        f"the disk: {m.disk.how}",
        f"searching: {m.searching.queries} queries, {m.searching.postings:,} postings, k = 10, lists as dense as those "
        "of the sample; cold time is added to searching, though part of both runs at once",
    ]
    if m.sample.documents < 1000:
        notes.append("a larger --sample makes the number of terms and the bytes a posting more certain")
    return notes


def report(config: str, goal: Goal, m: Measured, build: Build, serving: Serving, notes: list[str]) -> str:
    lines = [
        f"Capacity plan for {goal.documents:,} documents with {config}",
        f"  from {m.sample.documents:,} documents measured in this run: {m.sample.text_bytes / m.sample.documents:,.0f}"
        f" bytes, {m.texts.tokens_per_document:,.0f} tokens and {len(m.texts.chunk_texts) / m.sample.documents:.2f} "
        f"chunks a document, {m.known.per_chunk:,.0f} postings a chunk",
        f"  {build.chunks:,} chunks, {build.postings / 1e9:,.2f} billion postings, {build.shards:,} shards of "
        f"{build.shard_chunks:,.0f} chunks and {build.terms:,.0f} terms",
        "",
        *_build(goal, m, build),
        "",
        *_bytes(goal, build),
        "",
        *_serving(goal, m, build, serving),
        "",
        "What this rests on",
    ]
    for note in notes:
        lines += _wrapped(f"- {note}")
    return "\n".join(lines)


def _build(goal: Goal, m: Measured, build: Build) -> list[str]:
    jobs, workers = goal.jobs, goal.workers
    many = f"{jobs} x {workers} processes"
    lines = [f"{'Building':<24}{'measured, one process':<42}{'time: one':>12}{f'x {workers}':>12}{many:>20}"]
    for stage in build.stages:
        lines.append(
            f"  {ABOUT[stage.name]:<22}{stage.rate:<42}{_hours(stage.hours(1, 1)):>12}"
            f"{_hours(stage.hours(1, workers)):>12}{_hours(stage.hours(jobs, workers)):>20}"
        )
    known = [stage for stage in build.stages if stage.seconds is not None]
    sums = [sum(stage.hours(j, w) or 0 for stage in known) for j, w in ((1, 1), (1, workers), (jobs, workers))]
    missing = " but encoding" if len(known) < len(build.stages) else ""
    lines.append(f"  {'all' + missing:<64}{_hours(sums[0]):>12}{_hours(sums[1]):>12}{_hours(sums[2]):>20}")
    if build.wall_hours is not None:
        lines.append(f"  In whole shards, with planning: {_hours(build.wall_hours)} with {many}.")
    lines.append(
        f"  As a job array of {jobs} (at most {build.shards:,} have work): `--workers {workers} --job I/{jobs}`, "
        f"I from 0 to {jobs - 1}; then once without --job."
    )
    lines.append(
        f"  To the disk go {_bytes_text(build.disk_hours * 3600 * m.disk.write)} with temporary files: "
        f"{_hours(build.disk_hours)} at the {m.disk.write / 1e6:,.0f} MB/s measured here, beside the above."
    )
    if build.one_file_hours is not None and build.shards > 1:
        lines.append(
            f"  If all documents were in one file, passing over the beginning for each shard would cost "
            f"{_hours(build.one_file_hours)} of one process more:\n  give them as files of about a shard each, "
            "or as Parquet."
        )
    return lines


def _bytes(goal: Goal, build: Build) -> list[str]:
    total = sum(build.bytes.values())
    lines = [f"Bytes{'':<19}{'all':>12}{'a shard':>12}"]
    for name, size in [*build.bytes.items(), ("all", total)]:
        each = (
            f"  {size / max(build.postings, 1):6.2f} a posting" if name in ("postings", "exceptions", "terms") else ""
        )
        lines.append(f"  {name:<22}{_bytes_text(size):>12}{_bytes_text(size / build.shards):>12}{each}")
    for name, size in build.temporary.items():
        lines.append(f"  {name:<22}{'':>12}{_bytes_text(size):>12}  for each shard that is being built")
    lines.append(
        f"  A worker takes {_bytes_text(build.worker_memory)} of memory, {goal.workers} of them "
        f"{_bytes_text(goal.workers * build.worker_memory)}."
    )
    if build.shard_posting_bytes > MOST_POSTING_BYTES:
        most = int(goal.shard_documents * MOST_POSTING_BYTES / build.shard_posting_bytes * 0.9)
        lines.append(
            f"  A shard's postings may take {_bytes_text(MOST_POSTING_BYTES)}: set index.shard_documents to {most:,} "
            "or less."
        )
    elif build.postings / build.shards > PARTITIONS * SLICE:
        most = int(goal.shard_documents * PARTITIONS * SLICE / (build.postings / build.shards))
        lines.append(
            f"  index.shard_documents of {most:,} or less would have the sort read each posting once, not "
            f"{ceil(build.postings / build.shards / PARTITIONS / SLICE)} times; the time above is without that."
        )
    return lines


def _serving(goal: Goal, m: Measured, build: Build, s: Serving) -> list[str]:
    memory = f"{goal.memory / 1e9:,.0f} GB"
    lines = [
        f"Serving on one machine with {memory} and {goal.threads} threads",
        *_wrapped(
            f"Searched are {_bytes_text(s.searched_bytes)}, texts aside, of which a query's passages are read; "
            f"{memory} less {_bytes_text(m.process)} of the process keep {s.cached:.0%} of it in the page cache."
        ),
        *_wrapped(
            f"A query: {s.query_terms:,.1f} terms, {s.query_postings / 1e6:,.2f} million postings, "
            f"{_bytes_text(s.query_bytes)} (mean of {s.queries}). Measured: {1e9 * m.searching.per_posting:.2f} ns a "
            f"posting; one thread reads {m.searching.memory / 1e9:,.1f} GB/s from memory, the disk gives "
            f"{m.disk.read / 1e9:,.2f} GB/s."
        ),
        f"    {'all in memory':<32}{_time(s.latency):>12}   slowest {_time(s.slowest)}; on one thread "
        f"{_time(s.one_thread)}; {s.per_second:,.1f} queries/s in batches",
    ]
    if s.cached < 1:
        share = f"{s.cached:.0%} of every list in memory"
        lines.append(
            f"    {share:<32}{_time(s.expected):>12}   less where the same terms are asked for again and again"
        )
    lines += [
        f"    {'nothing in memory (WILLNEED)':<32}{_time(s.cold):>12}   in batches of {s.queries}, lists read once: "
        f"{_time(s.batch_cold)} a query ({_bytes_text(s.batch_bytes)})",
        f"  Its first opening on another machine compares every file with its checksum: {_hours(s.check / 3600)} or "
        "more.",
    ]
    if s.cached < 1:
        lines.append("  To keep all of it in memory:")
        if s.nodes:
            lines += _wrapped(
                f"- {s.nodes} machines of {memory}, each with the documents of {-(-build.shards // s.nodes)} shards "
                f"and a `python -m retrieval.serving.server`: about {_time(s.latency / s.nodes)} a query; the caller "
                "merges their results by score (exact for sparse; BM25 counts document frequencies machine by machine)"
            )
        if m.encodes and s.top:
            lines += _wrapped(
                f"- `encoder.top: {int(s.top)}`, the largest weights of a chunk, instead of {m.known.per_chunk:,.0f} "
                "on average: less exact, measure its quality first"
            )
    return lines


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, 118, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)


def _hours(hours: float | None) -> str:
    if hours is None:
        return "?"
    return duration(3600 * hours)


def _time(seconds: float) -> str:
    return f"{seconds:,.2f} s" if seconds >= 1 else f"{1000 * seconds:,.2f} ms"


def _bytes_text(size: float) -> str:
    for unit, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size >= unit:
            return f"{size / unit:,.1f} {name}"
    return f"{size:,.0f} B"
