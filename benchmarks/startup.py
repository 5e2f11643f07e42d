"""Seconds that each command takes to show its help, and that importing its main module takes.

    python -m benchmarks.startup [--repeats 5]

Prints medians. To compare two versions, run it in a `git worktree` of each.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from commands.main import COMMANDS

ROOT = Path(__file__).parents[1]


def commands() -> dict[str, list[str]]:
    """The module and arguments of every command, by the command as it is typed."""
    programs = [
        *(".".join(path.parent.relative_to(ROOT).parts) for path in sorted(ROOT.glob("[a-z]*/**/__main__.py"))),
        *("train", "selftrain"),
    ]
    found = {
        f"python {name}.py" if name in ("train", "selftrain") else f"python -m {name}": [name]
        for name in programs
        if name.partition(".")[0] not in ("tests", "tools", "benchmarks")
    }
    return found | {f"ratchet {name}": ["ratchet", name] for name in COMMANDS}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=5, help="runs of each command (default: %(default)s)")
    arguments = parser.parse_args()
    print(f"{'command':28}{'help':>8}{'import':>8}")
    for name, words in commands().items():
        helped = [_seconds(["-m", *words, "--help"]) for _ in range(arguments.repeats)]
        imported = [_seconds(["-c", f"import {_main_module(words)}"]) for _ in range(arguments.repeats)]
        print(f"{name:28}{statistics.median(helped):8.2f}{statistics.median(imported):8.2f}", flush=True)


def _main_module(words: list[str]) -> str:
    if words[1:]:
        return str(COMMANDS[words[1]].target).partition(":")[0]
    return words[0] if (ROOT / f"{words[0]}.py").exists() else f"{words[0]}.__main__"


def _seconds(arguments: list[str]) -> float:
    started = time.perf_counter()
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, *arguments], cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
