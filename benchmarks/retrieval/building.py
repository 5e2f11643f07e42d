"""Build the same corpora with this checkout's code and another's, in turns, and compare their times and files.

    git worktree add ../old 2ce8ada
    python -m benchmarks.retrieval.building --other ../old                200,000 documents: texts, and learned vectors

Each checkout's builds run in one process of its own, one build at a time; the first of each kind, of 100 documents,
compiles and is not counted. The corpora are those of `python -m benchmarks.retrieval`, parts A and B.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.retrieval.corpus import bm25_rows, learned_rows
from benchmarks.retrieval.engines import Ours

KINDS = ("text", "vectors")
VOCABULARY = 128_000
ROOT = Path(__file__).parents[2]


class Checkout:
    """A process that builds with the code of a checkout."""

    def __init__(self, folder: Path, documents: int) -> None:
        # -P: the modules beside this file are not the other checkout's.
        self._process = subprocess.Popen(
            [sys.executable, "-P", __file__, "--builder", "--documents", str(documents)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=folder,
            env=os.environ | {"PYTHONPATH": str(folder)},
        )

    def build(self, kind: str) -> dict[str, Any]:
        """Its wall and CPU seconds, and a digest of the files."""
        assert self._process.stdin is not None and self._process.stdout is not None
        print(kind, file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if not answer:
            sys.exit("error: a builder stopped; its message stands above")
        return dict(json.loads(answer))

    def close(self) -> None:
        self._process.communicate()


def build_on_request(documents: int) -> None:
    """Build what the lines of the standard input name, and answer each with a line."""
    made: dict[str, Any] = {}
    engine = Ours()
    for line in sys.stdin:
        kind = line.strip()
        if kind not in made:
            made.clear()
            for size in (100, documents):
                rows = bm25_rows(size, VOCABULARY, 1)
                made[kind] = engine.prepare(rows if kind == "text" else learned_rows(rows, 1))
                answer = _build(engine, made[kind])
        else:
            answer = _build(engine, made[kind])
        print(json.dumps(answer), flush=True)


def _build(engine: Ours, prepared: Any) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="building-") as name:
        wall, cpu = time.perf_counter(), time.process_time()
        engine.build(prepared, Path(name))
        times = {"wall": time.perf_counter() - wall, "CPU": time.process_time() - cpu}
        digest = hashlib.sha256()
        for path in sorted(path for path in Path(name).iterdir() if path.is_file()):
            digest.update(path.name.encode() + path.read_bytes())
    return {**times, "files": digest.hexdigest()}


def main() -> None:
    """Compare this checkout with another one."""
    parser = argparse.ArgumentParser(description="Index builds of two checkouts side by side.")
    parser.add_argument("--other", type=Path, metavar="CHECKOUT", help="folder of the other code")
    parser.add_argument("--documents", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--builder", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.builder:
        build_on_request(options.documents)
        return
    if options.other is None or not (options.other / "index_build").is_dir():
        parser.error("--other: name the folder of another checkout")
    for kind in options.kinds:
        # New processes: neither kind has the other's memory to use again.
        both = [Checkout(folder.resolve(), options.documents) for folder in (options.other, ROOT)]
        found: list[list[dict[str, Any]]] = [[], []]
        for turn in range(options.rounds):
            for side in (0, 1) if turn % 2 else (1, 0):
                found[side].append(both[side].build(kind))
        for checkout in both:
            checkout.close()
        for unit in ("wall", "CPU"):
            other, ours = (median(one[unit] for one in side) for side in found)
            print(
                f"{kind}: {unit} seconds, the other {other:.2f}, ours {ours:.2f}: the other takes {other / ours:.2f}x"
            )
        same = len({one["files"] for side in found for one in side}) == 1
        print(f"{kind}: the files are {'the same' if same else 'not the same'}", flush=True)


if __name__ == "__main__":
    main()
