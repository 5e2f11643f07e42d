"""The demo, run by another checkout and then by this one: seconds of each stage, and their ratio.

    python -m benchmarks.demo --other CHECKOUT [--config configs/demo.yaml] [--run runs/demo_compared] [--set KEY=VALUE]

The run folders are RUN-before and RUN-now. To see where one run's time goes, start it under a profiler:
`py-spy record --subprocesses --output demo.svg -- python selftrain.py --config configs/demo.yaml`.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from commands.arguments import run_command
from ratchet.errors import UserError
from ratchet.tables import new_table, print_table


def main(words: Sequence[str] | None = None) -> None:
    """Run both, one after the other, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--other", type=Path, required=True, metavar="CHECKOUT", help="the version to compare with")
    parser.add_argument("--config", default="configs/demo.yaml", help="default: %(default)s")
    parser.add_argument("--run", type=Path, default=Path("runs/demo_compared"), help="default: %(default)s")
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE")
    options = parser.parse_args(words)
    checkouts = {"before": options.other.resolve(), "now": Path.cwd()}
    seconds = {}
    for name, checkout in checkouts.items():
        overrides = [f"run={Path(f'{options.run}-{name}').resolve()}", *options.overrides]
        print(f"== {name}: {checkout}", flush=True)
        seconds[name] = stage_seconds(run_demo(checkout, options.config, overrides))
    print_table(compare_stages(**seconds))


def run_demo(checkout: Path, config: str, overrides: Sequence[str]) -> str:
    """What `selftrain.py` of a checkout prints. UserError where it fails."""
    command = [sys.executable, "selftrain.py", "--config", config]
    command += [word for override in overrides for word in ("--set", override)]
    variables = {**os.environ, "PYTHONPATH": str(checkout)}
    ended = subprocess.run(command, cwd=checkout, env=variables, stdout=subprocess.PIPE, text=True)
    if ended.returncode:
        raise UserError(f"{' '.join(command)} in {checkout} ended with status {ended.returncode}:\n{ended.stdout}")
    return ended.stdout


def stage_seconds(output: str) -> dict[str, int]:
    """What each stage took, by the lines that selftrain.py prints when it begins one and at the end."""
    seconds: dict[str, int] = {}
    stage, before = "", 0
    lines = r"^(?:== \d+/\d+ (.*?) \(|done in )(?:(\d+)m)?(\d+)s"
    for title, minutes, rest in re.findall(lines, output, re.MULTILINE):
        now = 60 * int(minutes or 0) + int(rest)
        if stage:
            seconds[stage] = now - before
        stage, before = title, now
    return {**seconds, "all": before}


def compare_stages(before: dict[str, int], now: dict[str, int]) -> Table:
    """Seconds of each stage that both have, and their ratio."""
    table = new_table(f"seconds, {os.cpu_count() or 1} cores", ["stage"], ["before", "now", "now / before"])
    for stage in now:
        if stage in before:
            ratio = f"{now[stage] / before[stage]:.2f}" if before[stage] else ""
            table.add_row(stage, str(before[stage]), str(now[stage]), ratio)
    return table


if __name__ == "__main__":
    run_command(main)
