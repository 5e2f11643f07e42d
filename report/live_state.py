"""What a run is doing, from its ledger, what was read of it, and the machine: stages, pace, engines and GPUs."""

from __future__ import annotations

import platform
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from ratchet.core.locks import holder_of
from ratchet.core.progress import duration
from ratchet.core.runfolder import RoundFolder
from ratchet.report.engines import read_engines, read_gpus
from ratchet.report.gather import Gathered
from ratchet.report.training import read_training_log
from ratchet.rounds.ledger import latest_entries
from ratchet.rounds.stage import ExperimentRun, Stage
from ratchet.rounds.stages import stages_of
from ratchet.rounds.status import LOCK, read_training_steps, summarize_entry

WINDOW = 120.0
"""Seconds over which a rate is measured."""

Json = dict[str, Any]


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

    def read(self, gathered: Gathered, share: float, damaged: list[str]) -> Json:
        """For the page's template. `share`: how much of the trajectories was read; what is read of old ones is no pace
        of the run."""
        rows, headline, particulars, part = self._stages(gathered, share == 1.0)
        tokens = sum(tally.new_tokens for tally in gathered.tallies)
        prompt = sum(tally.prompt_tokens for tally in gathered.tallies)
        cached = sum(tally.cached_tokens for tally in gathered.tallies)
        rate = self._token_pace.rate("tokens", tokens) if share == 1.0 else None
        holder = holder_of(self._experiment.run.path / LOCK)
        return {
            "headline": headline,
            "particulars": particulars,
            "part": part,
            "stages": rows,
            "running": holder,
            "share": share,
            "damaged": damaged,
            "tokens": f"{tokens:,} new tokens in {sum(tally.total for tally in gathered.tallies):,} trajectories"
            + (f", {_pace(rate)}" if rate else "")
            + (f"; {100 * cached / prompt:.0f}% of prompt tokens came from a prefix cache." if prompt else "."),
            "engines": [self._engine(*engine) for engine in read_engines(self._experiment.config.models)],
            "gpus": read_gpus(),
            "machine": platform.node(),
        }

    def _stages(self, gathered: Gathered, is_complete: bool) -> tuple[list[Json], str, str, float | None]:
        """(a row for each stage, the stage under way, its pace in words, the part of it that is done).

        Done is what the ledger says, which `ratchet status` also verifies by digests. Under way is the last of the
        others that has left anything, or the first of them.
        """
        known = latest_entries(self._experiment.run)
        stages = list(stages_of(self._experiment))
        amounts = {stage.key: self._amount(gathered, stage) for stage in stages if stage.key not in known}
        current = next((key for key in reversed(amounts) if amounts[key][0]), next(iter(amounts), None))
        rows = []
        is_before = True
        for stage in stages:
            is_before &= stage.key != current
            state = "done" if stage.key in known else "now" if stage.key == current else ""
            state = state or ("not recorded" if is_before else "to do")
            note = summarize_entry(known[stage.key]) if stage.key in known else ""
            rows.append({"round": stage.round, "title": stage.title, "state": state, "note": note})
        if current is None:
            return rows, "Every stage is done", "", None
        done, total, unit = amounts[current]
        headline = f"{current.title.capitalize()}, round {current.round}"
        if not unit:
            return rows, headline, "", None
        rate = self._stage_pace.rate(f"{current} {unit}", done) if is_complete or unit == "steps" else None
        words = [f"{done:,}{f' of {total:,}' if total else ''} {unit}"]
        under_way = next(stage for stage in stages if stage.key == current)
        if (trained := self._trained(under_way)) is not None:
            words += _losses(trained)
        words += [_pace(rate)] if rate else []
        words += [f"{duration((total - done) / rate)} left"] if rate and total and total > done else []
        return rows, headline, " · ".join(words), min(1.0, done / total) if total else None

    def _amount(self, gathered: Gathered, stage: Stage) -> tuple[int, int | None, str]:
        """(done, total where it is known, what is counted) of a stage that is not finished."""
        if (trained := self._trained(stage)) is not None:
            return *read_training_steps(trained), "steps"
        section = {"sample": "sampled", "score": "sampled"}.get(stage.id, "evaluated")
        if stage.round != gathered.folder.number or stage.id in ("index", "report", "compare"):
            return 0, None, ""
        tallies = [tally for tally in gathered.tallies if tally.section == section]
        done, total = sum(tally.total for tally in tallies), sum(tally.planned for tally in tallies)
        if stage.id == "sample" or stage.id.endswith(".sample") or (done < total and stage.id != "score"):
            return done, total or None, "trajectories"
        rewarded = sum(len(tally.rewards) for tally in tallies)
        return rewarded, done or None, "rewards"

    def _trained(self, stage: Stage) -> RoundFolder | None:
        """The folder of a stage that trains."""
        folder = self._experiment.run.round(stage.round)
        trained = {"train": folder, "train.random": folder.control("random"), "train.gold": folder.control("gold")}
        return trained.get(stage.id)

    def _engine(self, name: str, address: str, metrics: dict[str, float], problem: str) -> Json:
        rate = None
        if "new_tokens" in metrics:
            rate = self._engine_paces.setdefault(address, Pace()).rate(address, metrics["new_tokens"])
        words = [problem] if problem else []
        if "running" in metrics:
            words.append(f"{metrics['running']:.0f} running, {metrics.get('waiting', 0):.0f} waiting")
        words += [f"{_pace(rate)} new tokens"] if rate else []
        words += [f"cache {100 * metrics['cache']:.0f}% full"] if "cache" in metrics else []
        return {"model": name, "address": address, "words": ", ".join(words)}


def _losses(folder: RoundFolder) -> list[str]:
    """The last loss and dev loss of a training, in words."""
    log = read_training_log(folder.training / "log.jsonl")
    losses = [line.loss for line in log if line.loss is not None]
    dev_losses = [line.dev_loss for line in log if line.dev_loss is not None]
    words = [f"loss {losses[-1]:.3f}"] if losses else []
    return [*words, f"dev loss {dev_losses[-1]:.3f}"] if dev_losses else words


def _pace(rate: float) -> str:
    return f"{rate:.1f}/s" if rate >= 1 else f"{60 * rate:.1f}/min"
