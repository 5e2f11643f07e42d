"""The engine of another checkout of this repository, in a process of its own, beside the engine of this one."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.retrieval.baselines import Engine
from benchmarks.retrieval.corpus import Columns, Query, Rows
from benchmarks.retrieval.engines import Ours
from ratchet.errors import UserError
from retrieval.index import Ranking


class Checkout(Engine):
    """Builds its own index from the same corpus; the worker measures its times, so the way there does not count."""

    input_form = Ours.input_form

    def __init__(self, folder: Path) -> None:
        if not (folder / "benchmarks/retrieval/engines.py").exists():
            raise UserError(f"--other: {folder} is no checkout of this repository with its retrieval benchmark")
        self.name = f"other: {folder.resolve().name}"
        worker = [sys.executable, str(Path(__file__).with_name("checkout_worker.py")), str(folder.resolve())]
        self._process = subprocess.Popen(
            worker, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8"
        )

    def _ask(self, do: str, **request: Any) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": do, **request}) + "\n")
        self._process.stdin.flush()
        reply = self._process.stdout.readline()
        if not reply:
            raise UserError(f"{self.name} ended; what it said is above")
        return json.loads(reply)

    def close(self) -> None:
        """End the worker; it also ends with this process."""
        self._process.communicate()

    def prepare(self, rows: Rows) -> Any:
        with tempfile.TemporaryDirectory(prefix="retrieval-") as folder:
            for name in ("offsets", "terms", "values"):
                np.save(Path(folder) / f"{name}.npy", getattr(rows, name))
            return self._ask(
                "prepare", folder=folder, kind=rows.kind, vocabulary=rows.vocabulary, bm25=(rows.k1, rows.b)
            )

    def build(self, prepared: Any, folder: Path) -> None:
        self._ask("build", folder=str(folder))

    def open(self, folder: Path) -> None:
        self._ask("open", folder=str(folder))

    def _search(self, queries: Sequence[Query], k: int, threads: int) -> Any:
        asked = [(query.terms.tolist(), query.weights.tolist()) for query in queries]
        return self._ask("search", queries=asked, k=k, threads=threads)

    def search(self, queries: Sequence[Query], k: int, threads: int) -> list[Ranking]:
        found = self._search(queries, k, threads)[1]
        return [Ranking(np.array(scores), np.array(chunks, np.int64)) for scores, chunks in found]

    def timed(self, queries: Sequence[Query], k: int, threads: int) -> tuple[float, float]:
        wall, cpu = self._search(queries, k, threads)[0]
        return wall, cpu

    def size(self, folder: Path, columns: Columns) -> int:
        return Ours().size(folder, columns)

    def hot_bytes(self, folder: Path, columns: Columns) -> int:
        return Ours().hot_bytes(folder, columns)
