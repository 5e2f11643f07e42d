"""The worker of checkout.py: runs the engine of the checkout named by its argument, a line of JSON in and one out.

It imports nothing of the checkout that it lies in, so that any commit whose benchmark has `engines.Ours` can be run.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np


def main() -> None:
    """Answer requests until there are no more."""
    sys.path[0] = sys.argv[1]
    from benchmarks.retrieval.corpus import Query, Rows
    from benchmarks.retrieval.engines import Ours

    engine = Ours()
    prepared: Any = None
    answers, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        request = json.loads(line)
        reply: Any = None
        if request["do"] == "prepare":
            arrays = [np.load(Path(request["folder"]) / f"{name}.npy") for name in ("offsets", "terms", "values")]
            prepared = engine.prepare(Rows(request["kind"], request["vocabulary"], *arrays, *request["bm25"]))
        elif request["do"] == "build":
            engine.build(prepared, Path(request["folder"]))
            prepared = None
        elif request["do"] == "open":
            engine.open(Path(request["folder"]))
        else:
            queries = [Query(np.array(t, np.int64), np.array(w, np.float32)) for t, w in request["queries"]]
            started, cpu = time.perf_counter(), time.process_time()
            found = engine.search(queries, request["k"], request["threads"])
            spent = time.perf_counter() - started, time.process_time() - cpu
            reply = spent, [(ranking.scores.tolist(), ranking.chunks.tolist()) for ranking in found]
        print(json.dumps(reply), file=answers, flush=True)


if __name__ == "__main__":
    main()
