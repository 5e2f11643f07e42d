"""python -m tests.campaign: run the attacks, resume after an interruption, and print the table.

    python -m tests.campaign --seed 1 --out runs/campaign            the whole campaign, in hours
    python -m tests.campaign --part 0.01                             one trial in a hundred of each attack
    python -m tests.campaign --attack "malformed replies" --trial 17 --seed 1      one trial again, with its traceback
    python -m tests.campaign --table --out runs/campaign             the table of what there is, also while it runs

A trial is drawn from the seed, its attack and its number alone. Results are appended to OUT/results.jsonl; a trial
that is there is not run again.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel

from commands.arguments import run_command
from ratchet.errors import UserError, did_you_mean
from ratchet.files import Segment, read_record, read_segment, write_record
from ratchet.progress import Progress
from tests.campaign.attacks import ATTACKS
from tests.campaign.trial import Attack, Result, dice_of, run_trial

ROOT = Path(__file__).parents[2]
OUT = ROOT / "runs" / "campaign"


class Plan(BaseModel, frozen=True):
    """What a folder of results belongs to."""

    seed: int
    commit: str


def main(words: Sequence[str] | None = None) -> None:
    """Run what is missing, and print the table of what is there."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaign", description="Attack the project, from a seed.")
    parser.add_argument("--seed", type=int, default=0, help="default: 0")
    parser.add_argument("--attack", action="append", default=[], metavar="NAME", help="only this attack (repeatable)")
    parser.add_argument("--part", type=float, default=1.0, help="this part of all trials, at least one (default: 1)")
    parser.add_argument("--patience", type=float, default=1.0, help="multiply time limits by this on a busy machine")
    parser.add_argument("--trial", type=int, metavar="N", help="run trial N alone, record nothing, show its traceback")
    parser.add_argument("--out", type=Path, default=OUT, help="folder of the results (default: runs/campaign)")
    parser.add_argument("--table", action="store_true", help="print the table of what --out holds, and run nothing")
    given = parser.parse_args(words)
    if given.table:
        found = read_record(given.out / "plan.json", Plan, "choose another --out")
        if found is None:
            raise UserError(f"{given.out}: holds no results of a campaign; choose another --out")
        print(table(found, list(read_segment(given.out / "results.jsonl", Result))))
        return
    chosen = _chosen(given.attack)
    if given.trial is not None:
        for attack in chosen:
            with tempfile.TemporaryDirectory() as folder, attack.open(Path(folder)) as trial:
                trial(dice_of(given.seed, attack, given.trial))
        return
    plan = _plan(given.out, given.seed)
    with Segment(given.out / "results.jsonl") as results:
        for attack in chosen:
            _run(attack, plan, math.ceil(attack.whole * given.part), results, given.patience)
    print(table(plan, list(read_segment(given.out / "results.jsonl", Result))))


def _chosen(names: Sequence[str]) -> list[Attack]:
    known = {attack.name: attack for attack in ATTACKS}
    for name in names:
        if name not in known:
            raise UserError(f"--attack {name}: there is no such attack{did_you_mean(name, known)}")
    return [known[name] for name in names] or list(ATTACKS)


def _plan(out: Path, seed: int) -> Plan:
    """The plan of the folder. UserError where its results are of another seed or commit: a table has one of each."""
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()
    plan, path = Plan(seed=seed, commit=commit), out / "plan.json"
    there = read_record(path, Plan, "choose another --out")
    if there is not None and there != plan:
        raise UserError(f"{path}: holds results of {there}, and this is {plan}; choose another --out")
    write_record(path, plan)
    return plan


def _run(attack: Attack, plan: Plan, count: int, results: Segment, patience: float) -> None:
    done = {result.number for result in read_segment(results.path, Result) if result.attack == attack.name}
    missing = [number for number in range(count) if number not in done]
    if not missing:
        return
    if reason := attack.missing():
        print(f"{attack.name}: skipped, since {reason}", file=sys.stderr)
        return
    with (
        tempfile.TemporaryDirectory() as folder,
        attack.open(Path(folder)) as trial,
        Progress(attack.name, count, count - len(missing)) as progress,
    ):
        failures = 0
        for number in missing:
            result = run_trial(attack, trial, plan.seed, number, patience)
            failures += bool(result.problem)
            results.append(result)
            progress.advance(note=f"{failures} failures")


def table(plan: Plan, results: Sequence[Result]) -> str:
    """The results in Markdown, and below them the first failures."""
    lines = [
        f"Seed {plan.seed}, commit {plan.commit}.",
        "",
        "| attack | what must hold | trials | failures | longest (s) |",
        "|---|---|---|---|---|",
    ]
    for attack in ATTACKS:
        own = [result for result in results if result.attack == attack.name]
        if own:
            failures = sum(bool(result.problem) for result in own)
            longest = max(result.seconds for result in own)
            lines.append(f"| {attack.name} | {attack.oracle} | {len(own):,} | {failures} | {longest:.1f} |")
    failed = [result for result in results if result.problem]
    lines += ["", *(f"{result.attack} {result.number}: {result.problem}" for result in failed[:20])]
    return "\n".join(lines).rstrip()


if __name__ == "__main__":
    run_command(main)
