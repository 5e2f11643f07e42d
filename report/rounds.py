"""The rounds of a run side by side: sampling, selection, training and results, read from small files only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ratchet.core.config.evaluation import FINAL
from ratchet.core.records import Selection
from ratchet.core.runfolder import RunFolder
from ratchet.evaluation.arms import results_path
from ratchet.evaluation.formats import format_number, format_p_value
from ratchet.evaluation.measures.estimates import Difference, Estimate
from ratchet.evaluation.measures.measures import direction, measure_of
from ratchet.evaluation.results import BASE, TRAINED, Results, read_results
from ratchet.rewards.summary import best_reward, mean_reward
from ratchet.rounds.records import Promotion, read_promotion


@dataclass(frozen=True)
class RoundNumbers:
    """The numbers of one round. A part that does not exist yet is None."""

    number: int
    selection: Selection | None
    results: Results | None
    """Results on the split on which the round's adapter was compared with its parent."""
    promotion: Promotion | None
    tested: Results | None = None
    """Results on the final split, if this adapter was measured there."""

    @property
    def final(self) -> str:
        """The verdict on the final split; empty where there is none."""
        return f"on {self.tested.split}: {self.tested.verdict}" if self.tested else ""

    @property
    def share_kept(self) -> float | None:
        """The share of the questions of which a trajectory is kept; None before selection."""
        choices = self.selection.questions if self.selection else ()
        return sum(bool(choice.kept) for choice in choices) / len(choices) if choices else None

    @property
    def is_promoted(self) -> bool:
        """True for a round without a promotion, too."""
        return self.promotion is None or self.promotion.promoted

    def quality(self, arm: str) -> Estimate | None:
        return quality_of(self.results, arm) if self.results else None


def quality_of(results: Results, arm: str) -> Estimate | None:
    """An arm's mean and interval in the primary measure, which promotion goes by; None where it has no mean."""
    its_arm = results.arm(arm)
    found = its_arm.measures.get(results.primary) if its_arm else None
    return found if found is not None and found.mean is not None else None


def numbers_on_disk(run: RunFolder) -> list[int]:
    """The numbers of the rounds with any records."""
    return [folder.number for folder in run.rounds() if any(folder.path.iterdir())]


def gather_rounds(run: RunFolder) -> tuple[RoundNumbers, ...]:
    """The numbers of every round with any records, in order."""
    rounds = []
    for n in numbers_on_disk(run):
        folder = run.round(n)
        promotion = read_promotion(folder)
        split = promotion.split if promotion else FINAL
        rounds.append(
            RoundNumbers(
                number=n,
                selection=folder.read_selection(),
                results=read_results(results_path(folder, split)),
                promotion=promotion,
                tested=read_results(results_path(folder, FINAL)) if split != FINAL else None,
            )
        )
    return tuple(rounds)


def rounds_view(rounds: Sequence[RoundNumbers]) -> list[dict[str, Any]]:
    """The rows of the page's table; empty for a single round without a promotion."""
    if len(rounds) < 2 and not any(numbers.promotion for numbers in rounds):
        return []
    return [_row(numbers) for numbers in rounds]


def _row(numbers: RoundNumbers) -> dict[str, Any]:
    promotion = numbers.promotion
    measure = promotion.measure if promotion else ""  # empty where the round kept nothing, and so trained nothing
    difference = promotion.difference if promotion and measure else None
    return {
        "number": numbers.number,
        **_selected(numbers.selection),
        "promotion": promotion,
        "measure": measure_of(measure).title if measure else "",
        "digits": measure_of(measure).digits if measure else 3,
        "base": numbers.quality(BASE),
        "after": numbers.quality(TRAINED),
        "difference": difference,
        "p": format_p_value(difference) if difference else "",
        "tone": tone_of(difference, measure) if measure else "",
        "final": numbers.final,
    }


def _selected(selection: Selection | None) -> dict[str, Any]:
    """Mean rewards of all sampled trajectories, and of the best of each question."""
    if selection is None:
        return {"trajectories": "-", "mean": "-", "best": "-", "kept": "-"}
    kept = sum(bool(choice.kept) for choice in selection.questions)
    return {
        "trajectories": sum(len(choice.rewards) for choice in selection.questions),
        "mean": format_number(mean_reward(selection), 3),
        "best": format_number(best_reward(selection), 3),
        "kept": f"{kept} of {len(selection.questions)}",
    }


def tone_of(difference: Difference | None, name: str) -> str:
    """The style of a difference: 'good' where it is clearly better, 'bad' where it is clearly worse, else ''."""
    return {"better": "good", "worse": "bad", "": ""}[direction(difference, name)]
