"""The rounds of a run side by side: what each sampled, kept, learnt and was worth. Read from small files alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from evaluation.arms import results_path
from evaluation.measures.measures import BY_NAME
from evaluation.results import BASE, TRAINED, Estimate, Results, read_results
from evaluation.tables.comparison import p_value
from ratchet.config import Config
from ratchet.records import Selection
from ratchet.runfolder import RoundFolder, RunFolder
from report.numbers import interval, number
from report.training import LogLine, read_training_log
from rounds.promotion import read_promotion
from rounds.records import Promotion


@dataclass(frozen=True)
class RoundNumbers:
    """One round. What does not exist yet is None."""

    number: int
    selection: Selection | None
    losses: tuple[float, float] | None
    """Mean training loss over the first and the last tenth of the steps."""
    results: Results | None
    """Of the split on which the round's adapter was compared with its parent."""
    promotion: Promotion | None
    final: str = ""
    """The verdict on the split that is looked at once, after all rounds, where it was asked with this adapter."""

    @property
    def base(self) -> Estimate | None:
        """The base model's mean and interval, in the measure that promotion looks at."""
        return self._measure(BASE, self.promotion.measure) if self.promotion else None

    @property
    def parse_rate(self) -> float | None:
        """Of the round's adapter on that split."""
        found = self._measure(TRAINED, "parse_rate")
        return found.mean if found else None

    def _measure(self, arm: str, name: str) -> Estimate | None:
        found = self.results.arm(arm) if self.results else None
        return found.measures.get(name) if found else None


def numbers_on_disk(run: RunFolder) -> list[int]:
    """Rounds that have anything."""
    return [folder.number for folder in run.rounds() if any(folder.path.iterdir())]


def gather_rounds(config: Config, run: RunFolder) -> tuple[RoundNumbers, ...]:
    rounds = []
    for n in numbers_on_disk(run):
        folder = run.round(n)
        promotion = read_promotion(folder)
        split = promotion.split if promotion else config.evaluation.split
        rounds.append(
            RoundNumbers(
                number=n,
                selection=folder.read_selection(),
                losses=losses(read_training_log(folder.training / "log.jsonl")),
                results=read_results(results_path(folder, config, split)),
                promotion=promotion,
                final=_final(config, folder, split),
            )
        )
    return tuple(rounds)


def _final(config: Config, folder: RoundFolder, judged_on: str) -> str:
    if config.evaluation.split == judged_on:
        return ""
    results = read_results(results_path(folder, config, config.evaluation.split))
    return f"on {results.split}: {results.verdict}" if results else ""


def losses(log: Sequence[LogLine]) -> tuple[float, float] | None:
    """Single steps are noisy: the mean of a tenth of them, at either end."""
    values = [line.loss for line in log if line.loss is not None]
    tenth = max(1, len(values) // 10)
    return (fmean(values[:tenth]), fmean(values[-tenth:])) if values else None


def rounds_view(rounds: Sequence[RoundNumbers]) -> list[dict[str, Any]]:
    """What the page's template lays out, where there is more than one round or a promotion to tell of."""
    if len(rounds) < 2 and not any(found.promotion for found in rounds):
        return []
    return [_row(found) for found in rounds]


def _row(found: RoundNumbers) -> dict[str, Any]:
    promotion, difference = found.promotion, found.promotion.difference if found.promotion else None
    digits = BY_NAME[promotion.measure].digits if promotion else 3
    return {
        "number": found.number,
        **_selected(found.selection),
        "losses": f"{number(found.losses[0], 2)} → {number(found.losses[1], 2)}" if found.losses else "–",
        "parse_rate": number(found.parse_rate, 2),
        "parent": promotion.parent if promotion else "",
        "before": number(difference.before if difference else None, digits),
        "after": number(difference.after if difference else None, digits),
        "difference": number(difference.mean if difference else None, digits, sign=True),
        "interval": interval(difference, digits),
        "p": p_value(difference) if difference else "",
        "promoted": promotion.promoted if promotion else None,
        "reason": promotion.reason if promotion else "",
        "final": found.final,
    }


def _selected(selection: Selection | None) -> dict[str, Any]:
    """In rewards: all that were sampled, and the best of each question."""
    if selection is None:
        return {"trajectories": None, "mean": "–", "best": "–", "kept": "–"}
    known = [[r for r in choice.rewards.values() if r is not None] for choice in selection.questions]
    every, best = [r for rewards in known for r in rewards], [max(rewards) for rewards in known if rewards]
    kept = sum(bool(choice.kept) for choice in selection.questions)
    return {
        "trajectories": sum(len(choice.rewards) for choice in selection.questions),
        "mean": number(fmean(every) if every else None, 3),
        "best": number(fmean(best) if best else None, 3),
        "kept": f"{kept} of {len(selection.questions)}",
    }
