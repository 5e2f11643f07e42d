"""CPU seconds until a command answers: help, a run's status, a search beside bm25s, and what compiling kernels adds.

    python -m benchmarks.start                      about two minutes
    python -m benchmarks.start --write              and writes them into docs/results/engine.md

bm25s does what `ratchet search` does, as its documentation shows it: it opens an index of the demo's corpus, stems one
query and prints the best passages. The commands take turns; each line is the median of its runs. Needs
`pip install '.[benchmark]'`.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from shutil import rmtree

from benchmarks.pages import RESULTS, taken, write_figures
from ratchet.commands.config import open_config
from ratchet.questions.manifest import open_run

ROOT = Path(__file__).parents[1]
CONFIG = "configs/demo.yaml"
QUERY = "Who invented the potato press?"
AVX2 = {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+avx2,+fma"}
RATCHET = (sys.executable, "-m", "ratchet")
BM25S_INDEX = """
import json, sys, bm25s, Stemmer
documents = [json.loads(line) for line in open("demo/corpus.jsonl")]
tokens = bm25s.tokenize([one["text"] for one in documents], stemmer=Stemmer.Stemmer("english"), show_progress=False)
index = bm25s.BM25(method="lucene", k1=0.9, b=0.4)
index.index(tokens, show_progress=False)
index.save(sys.argv[1], corpus=documents, show_progress=False)
"""
BM25S_SEARCH = """
import sys, bm25s, Stemmer
index = bm25s.BM25.load(sys.argv[1], load_corpus=True)
tokens = bm25s.tokenize([sys.argv[2]], stemmer=Stemmer.Stemmer("english"), show_progress=False)
passages, scores = index.retrieve(tokens, k=5, show_progress=False)
for passage, score in zip(passages[0], scores[0]):
    print(f"{score:.3f}", passage["id"], passage["title"], passage["text"], sep="  ")
"""


def cpu_seconds(words: Sequence[str], environment: Mapping[str, str]) -> float:
    """User and system seconds of a command and its children."""
    with subprocess.Popen(words, cwd=ROOT, env=dict(environment), stdout=subprocess.DEVNULL) as process:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"error: {' '.join(words)} ended with {process.returncode}")
    return used.ru_utime + used.ru_stime


def measure(folder: Path, runs: int) -> dict[str, float]:
    """CPU seconds of each command, and those that compiling adds to the first index and search: by processor."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    config = ("--config", CONFIG, "--set", f"run={folder}/run", "--set", f"index.path={folder}/index")
    search = (*RATCHET, "search", *config, QUERY)
    commands = {
        "help": (*RATCHET, "--help"),
        "status": (*RATCHET, "status", *config),
        "search": search,
        "bm25s": (sys.executable, "-c", BM25S_SEARCH, f"{folder}/bm25s", QUERY),
    }
    open_run(open_config(CONFIG, config[3::2]))
    figures = {}
    for processor, variables in {"this": {}, "AVX2": AVX2}.items():
        kernels = {"NUMBA_CACHE_DIR": f"{folder}/kernels-{processor}"}
        taken = []
        for _ in range(2):
            rmtree(folder / "index", ignore_errors=True)
            steps = ((*RATCHET, "index", *config), search)
            taken.append(sum(cpu_seconds(words, environment | variables | kernels) for words in steps))
        figures[processor] = taken[0] - taken[1]
    for words in ((sys.executable, "-c", BM25S_INDEX, f"{folder}/bm25s"), *commands.values()):
        cpu_seconds(words, environment)  # compiles modules, and kernels where a command is started for the first time
    each: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(runs):
        for name, words in commands.items():
            each[name].append(cpu_seconds(words, environment))
    return figures | {name: statistics.median(seconds) for name, seconds in each.items()}


def report(figures: Mapping[str, float], runs: int) -> str:
    """The page's paragraph."""
    return (
        f"`python -m benchmarks.start`, CPU seconds, medians of {runs} runs ({taken()}): `ratchet --help` "
        f"{figures['help']:.2f}, `ratchet status` {figures['status']:.2f}, `ratchet search` on the demo's index "
        f"{figures['search']:.2f} and the same with bm25s {figures['bm25s']:.2f}. The first index and the first search "
        f"after an installation compile kernels for {figures['this']:.1f} CPU seconds, with AVX2 alone for "
        f"{figures['AVX2']:.1f}.\n"
    )


def main() -> None:
    """Measure, print, and with --write also write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.start", description=__doc__)
    parser.add_argument("--runs", type=int, default=11, help="of each command (default: 11)")
    parser.add_argument("--write", action="store_true", help="write the figures into docs/results/engine.md")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        text = report(measure(Path(folder), options.runs), options.runs)
    text = textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False) + "\n"
    print(text)
    if options.write:
        write_figures(RESULTS / "engine.md", "benchmarks.start", text)


if __name__ == "__main__":
    main()
