"""Seconds that each command takes to show its help, and that importing its main module takes.

    python benchmarks/startup.py [--other CHECKOUT] [--repeats 5]

Prints medians. With another checkout both are measured in turns, in one run, and the last columns are this checkout's
time divided by the other's; commands that only one of them has are not compared.
"""

from __future__ import annotations

import argparse
import ast
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]


def commands(root: Path) -> dict[str, list[str]]:
    """The module and arguments of every command of a checkout, by the command as it is typed."""
    programs = [
        *(".".join(path.parent.relative_to(root).parts) for path in sorted(root.glob("[a-z]*/**/__main__.py"))),
        *("train", "selftrain"),
    ]
    found = {
        f"python {name}.py" if name in ("train", "selftrain") else f"python -m {name}": [name]
        for name in programs
        if name.partition(".")[0] not in ("tests", "tools", "benchmarks")
    }
    return found | {f"ratchet {name}": ["ratchet", name] for name in _named(root)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--other", type=Path, help="another checkout to measure beside this one")
    parser.add_argument("--repeats", type=int, default=5, help="runs of each command (default: %(default)s)")
    arguments = parser.parse_args()
    roots = [ROOT, *([arguments.other.resolve()] if arguments.other else [])]
    listed = [commands(root) for root in roots]
    print(f"{'command':28}" + "".join(f"{'help':>8}{'import':>8}" for _ in roots) + "   ratios" * (len(roots) > 1))
    for name, words in listed[0].items():
        if not all(name in of_root for of_root in listed):
            continue
        helped: list[list[float]] = [[] for _ in roots]
        imported: list[list[float]] = [[] for _ in roots]
        for _ in range(arguments.repeats):
            for at, root in enumerate(roots):
                helped[at].append(_seconds(root, ["-m", *words, "--help"]))
                imported[at].append(_seconds(root, ["-c", f"import {_main_module(root, words)}"]))
        medians = [(statistics.median(h), statistics.median(i)) for h, i in zip(helped, imported, strict=True)]
        line = f"{name:28}" + "".join(f"{h:8.2f}{i:8.2f}" for h, i in medians)
        if len(medians) > 1:
            line += "".join(f"{ours / theirs:8.2f}" for ours, theirs in zip(*medians, strict=True))
        print(line, flush=True)


def _named(root: Path) -> dict[str, str]:
    """The commands that `ratchet` lists and the module of each, read from its source: nothing is imported."""
    path = root / "commands" / "main.py"
    if not path.exists():  # a checkout before commands/
        path = root / "ratchet" / "__main__.py"
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "COMMANDS":
            assert isinstance(node.value, ast.Dict)
            pairs = zip(node.value.keys, node.value.values, strict=True)
            return {ast.literal_eval(key): _module(value) for key, value in pairs if key is not None}
    return {}


def _module(subcommand: ast.expr) -> str:
    assert isinstance(subcommand, ast.Call)
    return str(ast.literal_eval(subcommand.args[1])).partition(":")[0]


def _main_module(root: Path, words: list[str]) -> str:
    if words[1:]:
        return _named(root)[words[1]]
    return words[0] if (root / f"{words[0]}.py").exists() else f"{words[0]}.__main__"


def _seconds(root: Path, arguments: list[str]) -> float:
    started = time.perf_counter()
    environment = os.environ | {"PYTHONPATH": str(root)}
    subprocess.run([sys.executable, *arguments], cwd=root, env=environment, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
