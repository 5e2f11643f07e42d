"""Training objectives and selection rules side by side: every arm on every task with every seed, from one stored set of
trajectories a task.

    python -m benchmarks.learning --dtype bfloat16 --data ../shared/data     all tasks, arms and seeds: many hours
    python -m benchmarks.learning --tasks demo,claims --arms base,random,sft,dpo --seeds 1 --minutes 120
    python -m benchmarks.learning --tasks my_config.yaml --arms "base,sft,sft+training.learning_rate=3e-4"
    python -m benchmarks.learning --table                     what is there so far; nothing is run

A task's trajectories are sampled and scored once, by the commands that a user would type; each cell then selects from
them, trains with its own seed for as many steps as every other, and is evaluated greedily, in a process of its own. Its
result is a file in its run folder: after a kill the same command resumes, and it runs what is missing. An arm is one of
tasks.ARMS, with further overrides of the config behind '+'. One that finds nothing to learn from (no two actions that
differ, say) is named and left out. To choose a learning rate, evaluate on other questions: --split dev --out ELSEWHERE.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from benchmarks.learning.cell import CellResult, result_path, run_cell
from benchmarks.learning.table import print_comparison
from benchmarks.learning.tasks import (
    ARMS,
    TASKS,
    Cell,
    Setting,
    cell_config,
    cells_of,
    config_file,
    pool_config,
    pool_overrides,
    task_name,
)
from commands.arguments import positive_integer, positive_number, run_command
from commands.selftrain import run_stage
from ratchet.errors import UserError
from ratchet.files import read_record, write_record
from ratchet.lease import Lease
from ratchet.progress import duration
from ratchet.runfolder import RunFolder


def main(words: Sequence[str] | None = None) -> None:
    """Run what is missing and print the table, or only the table."""
    given = list(sys.argv[1:] if words is None else words)
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.learning", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = lambda text: [name.strip() for name in text.split(",") if name.strip()]  # noqa: E731
    parser.add_argument("--tasks", type=names, default=list(TASKS), help=f"of {', '.join(TASKS)}, or config files")
    parser.add_argument("--arms", type=names, default=list(ARMS), help=f"of {', '.join(ARMS)}")
    parser.add_argument("--seeds", type=names, default=["1", "2", "3"], help="training seeds (default 1,2,3)")
    parser.add_argument("--out", type=Path, default=Path("runs/learning"), help="folder of all runs and results")
    parser.add_argument("--minutes", type=positive_number, help="start no further cell after so many minutes")
    parser.add_argument("--table", action="store_true", help="print the table of what is there, and run nothing")
    parser.add_argument("--cell", nargs=3, metavar=("TASK", "ARM", "SEED"), help=argparse.SUPPRESS)
    same = parser.add_argument_group("the same for all cells of --out")
    same.add_argument("--data", help="folder with openqa/, fever_symmetric/ and datamorgana/ (default data)")
    same.add_argument("--dtype", choices=("float32", "bfloat16"), help="of the model (default float32)")
    same.add_argument("--steps", type=positive_integer, help="training steps of every arm (default 30)")
    same.add_argument("--rows", type=positive_integer, help="rows of a step (default 8)")
    same.add_argument("--split", choices=("dev", "test"), help="the questions that are asked (default test)")
    same.add_argument("--set", dest="overrides", action="append", metavar="KEY=VALUE", help="of every task's config")
    options = parser.parse_args(given)
    if options.cell:
        task, arm, seed = options.cell
        run_cell(options.out, _setting(options), Cell(task, arm, int(seed)))
        return
    if not all(seed.isdecimal() for seed in options.seeds):
        parser.error(f"--seeds {','.join(options.seeds)}: expected numbers, such as 1,2,3")
    cells = cells_of(options.tasks, options.arms, [int(seed) for seed in options.seeds])
    if not options.table:
        with Lease(options.out / ".learning.lease", str(options.out)):
            run_missing(options.out, _setting(options), cells, options.minutes)
    results = [found for cell in cells if (found := read_result(options.out, cell))]
    print_comparison(results)
    if missing := [cell for cell in cells if not result_path(options.out, cell).exists()]:
        print(f"{len(missing)} of {len(cells)} cells are missing: {'; '.join(map(str, missing))}")


def _setting(options: argparse.Namespace) -> Setting:
    """The setting of the output folder, with the options that were given. UserError where they would change it."""
    given = {name: value for name in Setting.model_fields if (value := getattr(options, name)) is not None}
    path = options.out / "setting.json"
    stored = read_record(path, Setting, "name another --out")
    if stored is None:
        setting = Setting.model_validate(given)
        write_record(path, setting)
        return setting
    changed = stored.model_copy(update=Setting.model_validate(given).model_dump(include=set(given)))
    if changed != stored:
        raise UserError(f"{path}: the cells there have {stored!r}, and these options differ; name another --out")
    return stored


def read_result(out: Path, cell: Cell) -> CellResult | None:
    """None where the cell is not done."""
    return read_record(result_path(out, cell), CellResult, "delete it and run the same command again")


def run_missing(out: Path, setting: Setting, cells: Sequence[Cell], minutes: float | None) -> None:
    """Run every cell that has no result, each in its own process; a cell or task that fails is named and left out."""
    began = time.monotonic()
    left = [cell for cell in cells if not result_path(out, cell).exists()]
    for cell in left:
        cell_config(out, setting, cell)  # a wrong name or override is said before hours of work
    failed: set[str] = set()
    took: dict[str, list[float]] = {}
    for number, cell in enumerate(left):
        if minutes is not None and time.monotonic() - began > 60 * minutes:
            print(f"{minutes:g} minutes are over; the same command resumes with {cell}", flush=True)
            return
        if cell.task in failed:
            continue
        print(f"\n== {number + 1}/{len(left)} {cell} ({duration(time.monotonic() - began)} so far)", flush=True)
        if not make_pool(out, setting, cell.task):
            failed.add(cell.task)
            print(f"{task_name(cell.task)}: has no trajectories to learn from; its cells are left out", flush=True)
            continue
        started = time.monotonic()
        own = ("--cell", cell.task, cell.arm, str(cell.seed), "--out", str(out))
        if status := run_stage((sys.executable, "-m", "benchmarks.learning", *own)):
            print(f"{cell}: ended with status {status}, left out; the same command tries it again", flush=True)
            continue
        took.setdefault(cell.task, []).append(time.monotonic() - started)
        every = [seconds for found in took.values() for seconds in found]
        rest = sum(fmean(took.get(other.task, every)) for other in left[number + 1 :])
        print(
            f"{cell}: {duration(took[cell.task][-1])}; {len(left) - number - 1} cells left, about {duration(rest)} at "
            "this pace, without sampling",
            flush=True,
        )


def make_pool(out: Path, setting: Setting, task: str) -> bool:
    """Build the index, sample and score where that is not done; whether there is a selection then."""
    config = pool_config(out, setting, task)
    pool = RunFolder(config.folder).round(1)
    arguments = ["--config", config_file(task)]
    arguments += [word for one in pool_overrides(out, setting, task) for word in ("--set", one)]
    stages = ["index_build"] if config.index and not Path(config.index.path).exists() else []  # cells search it too
    if not pool.selection.exists():
        stages = ["index_build", "sampling", "rewards"]
    for module in stages:
        if run_stage((sys.executable, "-m", module, *arguments)):
            return False
    return pool.selection.exists()


if __name__ == "__main__":
    run_command(main)
