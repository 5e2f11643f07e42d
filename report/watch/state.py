"""Where a run is, read from its folder, its index and the machine: stages, pace, counts, engines and GPUs."""

from __future__ import annotations

import platform
import sqlite3
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from ratchet.lease import holder_of
from report.watch.engines import read_engines, read_gpus
from report.watch.query import counts, token_totals
from rounds.artefacts import Arms
from rounds.ledger import latest_entries
from rounds.stage import ExperimentRun, Stage
from rounds.stages import stages_of
from rounds.status import LEASE, read_training_steps, summarize_entry

WINDOW = 120.0
"""Seconds over which a rate is measured."""


class Pace:
    """The rate of a growing number, over the last WINDOW seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._name = ""
        self._seen: deque[tuple[float, float]] = deque()

    def rate(self, name: str, done: float) -> float | None:
        """Per second; None before there are two observations of the number called `name`."""
        now = self._clock()
        if name != self._name or (self._seen and done < self._seen[-1][1]):
            self._name = name
            self._seen.clear()
        self._seen.append((now, done))
        while len(self._seen) > 2 and now - self._seen[0][0] > WINDOW:
            self._seen.popleft()
        began, before = self._seen[0]
        return (done - before) / (now - began) if now > began else None


class RunState:
    """The state of one run; the paces are measured between calls of `read`."""

    def __init__(self, experiment: ExperimentRun) -> None:
        self._experiment = experiment
        self._stage_pace, self._token_pace = Pace(), Pace()
        self._engine_paces: dict[str, Pace] = {}

    def read(self, database: sqlite3.Connection, is_complete: bool) -> dict[str, Any]:
        """`is_complete`: the index holds all that is on disk, so what it grows by is what the run adds."""
        run = self._experiment.run
        holder = holder_of(run.path / LEASE)
        found = counts(database)
        rows, current = self._stages(database, is_complete)
        trajectories, prompt, cached, new = token_totals(database)
        tokens = self._token_pace.rate("tokens", new) if is_complete else None
        return {
            **found,
            "stages": rows,
            "current": current,
            "running": str(holder) if holder else "",
            "tokens": {"new": new, "prompt": prompt, "cached": cached, "trajectories": trajectories, "rate": tokens},
            "engines": [self._engine(*one) for one in read_engines(self._experiment.config)],
            "gpus": read_gpus(),
            "machine": platform.node(),
        }

    def _stages(
        self, database: sqlite3.Connection, is_complete: bool
    ) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
        """A row for each stage, and the progress of the one that is under way.

        Done is what the ledger says, which `selftrain.py status` also verifies by digests. Under way is the last of the
        others that has left anything, or the first of them.
        """
        known = latest_entries(self._experiment.run)
        stages = list(stages_of(self._experiment))
        amounts = {stage.key: self._amount(database, stage) for stage in stages if stage.key not in known}
        current = next((key for key in reversed(amounts) if amounts[key][0]), next(iter(amounts), None))
        rows = []
        is_before = True
        for stage in stages:
            is_before &= stage.key != current
            row = {
                "round": stage.round,
                "title": stage.title,
                "state": "not recorded" if is_before else "to do",
                "note": "",
            }
            if stage.key in known:
                row |= {"state": "done", "note": summarize_entry(known[stage.key])}
            elif stage.key == current:
                row["state"] = "now"
            rows.append(row)
        if current is None:
            return rows, None
        done, total, unit = amounts[current]
        # What the index catches up with is not what the run adds.
        rate = self._stage_pace.rate(f"{current} {unit}", done) if is_complete or unit == "steps" else None
        left = (total - done) / rate if rate and total and total > done else None
        progress = {"title": current.title, "round": current.round, "done": done, "total": total, "unit": unit}
        return rows, progress | {"rate": rate, "left": left}

    def _amount(self, database: sqlite3.Connection, stage: Stage) -> tuple[int, int | None, str]:
        """(done, total where it is known, what is counted) of a stage that is not finished."""
        folder = self._experiment.run.round(stage.round)
        config, run = self._experiment.config, self._experiment.run.path
        trained = {"train": folder, "train.random": folder.control("random"), "train.gold": folder.control("gold")}
        if stage.id in trained:
            done, total = read_training_steps(trained[stage.id])
            return done, total, "steps"
        if stage.id in ("index", "report", "compare"):
            return 0, None, ""
        if stage.id in ("sample", "score"):
            stores, names = [folder.trajectories], [name for name, weight in config.rewards.weights.items() if weight]
        else:
            found = next((a for a in stage.writes.values() if isinstance(a, Arms)), None)
            splits = found.splits if found else tuple(path.stem[5:] for path in folder.evaluation.glob("arms-*.json"))
            stores = [path.parent for path in Arms(folder, splits).files()]
            names = list(config.evaluation.scores)
        places = [path.relative_to(run).as_posix() for path in dict.fromkeys(stores)]
        done, total = self._trajectories(database, places)
        if stage.id == "sample" or stage.id.endswith(".sample") or (done < total and stage.id != "score"):
            return done, total or None, "trajectories"
        marks, wanted = ", ".join("?" * len(places)), ", ".join("?" * len(names))
        [scored] = database.execute(
            f"select count(*) from score where store in ({marks}) and name in ({wanted})", (*places, *map(str, names))
        ).fetchone()
        return scored, done * len(names) or None, "scores"

    def _trajectories(self, database: sqlite3.Connection, places: list[str]) -> tuple[int, int]:
        marks = ", ".join("?" * len(places))
        [done] = database.execute(
            f"select count(*) from trajectory where planned and store in ({marks})", places
        ).fetchone()
        [total] = database.execute(f"select total(planned) from store where name in ({marks})", places).fetchone()
        return done, int(total)

    def _engine(self, name: str, address: str, metrics: dict[str, float], problem: str) -> dict[str, Any]:
        pace = self._engine_paces.setdefault(address, Pace())
        new = metrics.get("new_tokens")
        rate = pace.rate(address, new) if new is not None else None
        return {"model": name, "address": address, "problem": problem, "rate": rate, **metrics}
