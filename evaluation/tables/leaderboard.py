"""python -m evaluation leaderboard RUN [RUN...]

Runs side by side on question sets that are the same in all of them, word for word (by digest). A folder of runs stands
for all of its runs. What a run shows is what it chose itself without these questions: the checkpoint that its sweep
tested, else the adapter of its last evaluated round, else its base model. No choice is made by these numbers,
so they are not optimistically biased; only the order of the runs follows from them.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from rich.markup import escape
from rich.table import Table

from evaluation.measures.estimates import Estimate
from evaluation.measures.measures import BY_NAME
from evaluation.results import (
    BASE,
    TRAINED,
    Arm,
    format_difference,
    format_estimate,
    format_mean,
    measure_difference,
    read_results,
)
from evaluation.sweep.records import SweepResults
from ratchet.console import wide_console
from ratchet.errors import UserError
from ratchet.files import read_json_file, read_record
from ratchet.runfolder import RunFolder
from ratchet.tables import new_table, print_table

WIDTH = 150
COSTS = {"calls": "calls", "searches": "searches", "prompt_tokens": "tokens in", "new_tokens": "tokens out"}
CAPTION = """\
mean [95% bootstrap interval over questions]; to the first: paired by question, with its interval, which
is biased in favour of the first run, since these numbers made it the first"""


@dataclass(frozen=True)
class Entry:
    """What a run shows on one question set."""

    run: str
    split: str
    title: str
    digest: str
    measure: str
    what: str
    """The name of the checkpoint or round whose adapter this is."""
    arm: Arm
    base: Estimate | None
    """The estimate of the run's base model."""
    questions: int
    resamples: int
    seed: int
    looks: int = 1

    @property
    def mean(self) -> float:
        found = self.arm.measures[self.measure].mean
        return float("-inf") if found is None else found


def leaderboard(arguments: Sequence[str], prog: str = "python -m evaluation leaderboard") -> None:
    """Run `python -m evaluation leaderboard`."""
    parser = argparse.ArgumentParser(
        prog=prog,
        description=(__doc__ or "").partition("\n\n")[2],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="a run folder, or a folder of run folders")
    options = parser.parse_args(arguments)
    print_leaderboard(_find_runs(options.runs))


def _find_runs(folders: Sequence[Path]) -> list[Path]:
    """The run folders among or below `folders`. Raises UserError for a folder without a run."""
    found: list[Path] = []
    for folder in folders:
        runs = [folder] if _is_run(folder) else sorted(child for child in folder.glob("*") if _is_run(child))
        if not runs:
            raise UserError(f"{folder}: neither a run folder (with config.yaml and manifest.json) nor a folder of runs")
        found += [run for run in runs if run not in found]
    return found


def _is_run(folder: Path) -> bool:
    return RunFolder(folder).config.exists() and RunFolder(folder).manifest.exists()  # an index has a manifest too


def entries(run: Path) -> list[Entry]:
    """The entries of a run: one per question set, and for a sweep one per system and set."""
    swept = list(_of_sweep(run))
    known = {(one.digest, one.measure) for one in swept}
    return [*swept, *(one for one in _of_rounds(run) if (one.digest, one.measure) not in known)]


def _of_rounds(run: Path) -> Iterator[Entry]:
    """The entries of the last evaluated round with an adapter, by question set."""
    digests = _digests(run)
    trained: dict[str, Entry] = {}
    for folder in RunFolder(run).rounds():
        for path in sorted(folder.evaluation.glob("results*.json")):
            results = read_results(path)
            if results is None or results.split not in digests or results.split in ("train", "dev"):
                continue
            arm = results.arm(TRAINED) or results.arms[0]
            if arm.name == BASE and results.split in trained:
                continue  # a round that trained nothing better leaves the earlier adapter in its place
            trained[results.split] = Entry(
                run=run.name,
                split=results.split,
                title=results.title or results.split,
                digest=digests[results.split],
                measure=results.primary,
                what=f"round {folder.number}" if arm.name == TRAINED else BASE,
                arm=arm,
                base=results.arms[0].measures.get(results.primary),
                questions=results.questions,
                resamples=results.resamples,
                seed=results.seed,
            )
    yield from trained.values()


def _digests(run: Path) -> dict[str, str]:
    """By question set, the digest of its questions in the run's manifest."""
    path = run / "manifest.json"
    try:
        manifest: dict[str, Any] = read_json_file(path)
        facts = manifest["questions"].items()  # early runs kept the file's digest alone: not which rows were chosen
        return {name: of_set["digest"] for name, of_set in facts if isinstance(of_set, dict)}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path}: cannot be read ({error!r}); restore the file, or remove this run from the command"
        ) from error


def _of_sweep(run: Path) -> Iterator[Entry]:
    fix = "rebuild it with `python -m evaluation sweep merge`"
    results = read_record(run / "sweep" / "sweep.json", SweepResults, fix)
    if results is None:
        return
    arms = {f"{cell.checkpoint}/{cell.system}/{cell.split}": cell.arm for cell in results.cells}
    for cell in results.cells:
        if not cell.tested:
            continue
        asked = results.set(cell.split)
        base = arms.get(cell.base or "", cell.arm)
        yield Entry(
            run=run.name,
            split=cell.split,
            title=asked.title,
            digest=asked.digest,
            measure=asked.measure,
            what=cell.checkpoint if len(results.systems) == 1 else f"{cell.checkpoint}, {cell.system}",
            arm=cell.arm,
            base=base.measures.get(asked.measure),
            questions=asked.questions,
            resamples=results.resamples,
            seed=results.seed,
            looks=asked.looks,
        )


def print_leaderboard(runs: Sequence[Path], out: TextIO | None = None) -> None:
    """Print a table for every question set that two entries share, and name the other entries."""
    console = wide_console(WIDTH, out)
    groups: dict[tuple[str, str], list[Entry]] = {}
    for run in runs:
        found = entries(run)
        if not found:
            console.print(
                f"{run}: no result on a test set, or a manifest that does not say which questions it has", markup=False
            )
        for entry in found:
            groups.setdefault((entry.digest, entry.measure), []).append(entry)
    for group in groups.values():
        if len(group) > 1:
            print_table(_table(sorted(group, key=lambda entry: -entry.mean)), out)
    alone = [group[0] for group in groups.values() if len(group) == 1]
    if alone:
        console.print(
            "Not comparable: no other run was measured on the same questions by the same measure", style="bold"
        )
    for entry in alone:
        mean = format_estimate(entry.arm.measures.get(entry.measure), entry.measure)
        measure = BY_NAME[entry.measure].title
        console.print(
            f"  {escape(entry.run)}, {escape(entry.title)} ({entry.questions} questions, digest {entry.digest[:8]}), "
            f"{escape(entry.what)}: {measure} {mean}"
        )


def _table(group: Sequence[Entry]) -> Table:
    first = group[0]
    title = f"{first.title}: {BY_NAME[first.measure].title}, {first.questions} questions, digest {first.digest[:8]}"
    numbers = ("n", "mean", "to the first", "its base", *COSTS.values())
    table = new_table(escape(title), ("run", "system", "checkpoint"), numbers, escape(CAPTION))
    for entry in group:
        found = entry.arm.measures[entry.measure]
        ids = list(first.arm.values)
        gap = measure_difference(first.arm, entry.arm, entry.measure, ids, first.resamples, first.seed)
        looks = f" (measured {entry.looks} times)" if entry.looks > 1 else ""
        table.add_row(
            escape(entry.run),
            escape(entry.arm.system),
            escape(entry.what) + looks,
            str(found.n),
            format_estimate(found, entry.measure),
            "" if entry is first else format_difference(gap, entry.measure),
            format_estimate(entry.base, entry.measure),
            *(format_mean(entry.arm.measures.get(name), name) for name in COSTS),
        )
    return table
