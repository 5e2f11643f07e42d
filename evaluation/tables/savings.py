"""The tool calls that an evidence memory saves, in percent, from stored results.

Each arm with a memory (`system.settings.memory`) is compared with the arm that differs in nothing but having none
(`memory: off`), on the same questions: MERMAID (2026, arXiv 2601.22361, section 4.2) reports the share of all tool
calls that its memory saves. Question sets of one order (file, shuffled, clustered) are totalled together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TextIO

import numpy as np
from rich.markup import escape

from ratchet.agents.core.system import load_system
from ratchet.core.config import Config, SystemConfig
from ratchet.core.errors import UserError
from ratchet.core.records import content_key
from ratchet.core.tables import new_table, print_table
from ratchet.evaluation.measures.estimates import Estimate
from ratchet.evaluation.measures.statistics import Rows, paired, statistic_interval
from ratchet.evaluation.question_sets import split_of
from ratchet.evaluation.results import BASE, Arm, Results
from ratchet.evaluation.tables.suite import percent

CAPTION = """\
tool calls: in total, searches too, several samples of a question counted as their mean; saved: of the calls without the
memory, in percent, with its 95% bootstrap interval over questions"""


@dataclass(frozen=True)
class Saving:
    """What a memory saved on some question sets."""

    arm: str
    title: str
    rows: Rows
    """Of each question: tool calls without the memory, and with it."""
    saved: Estimate
    """The share of the tool calls that the memory saved; negative where it costs some."""
    macro_f1: tuple[Estimate | None, Estimate | None] = (None, None)
    """Without the memory and with it; None over several sets."""

    @property
    def calls(self) -> tuple[float, float]:
        """Without the memory, and with it."""
        without, with_memory = self.rows.sum(axis=0)
        return float(without), float(with_memory)


def memory_pairs(config: Config) -> dict[str, str]:
    """The name of every arm with a memory, and that of the arm which differs in nothing else and has none."""
    arms = {BASE: config.system, **config.evaluation.baselines}
    memories = {name: load_system(arm).settings.model_dump().get("memory", "off") for name, arm in arms.items()}
    partners = {_rest(arm): name for name, arm in arms.items() if memories[name] == "off"}
    pairs = {name: partners.get(_rest(arm)) for name, arm in arms.items() if memories[name] != "off"}
    return {name: partner for name, partner in pairs.items() if partner is not None}


def _rest(system: SystemConfig) -> str:
    """A key of all that makes the system what it is, but for its memory."""
    loaded = load_system(system)
    settings = loaded.settings.model_dump(mode="json")
    others = {name: value for name, value in settings.items() if not name.startswith("memory")}
    return content_key(others, loaded.identity.model_dump(mode="json", exclude={"settings"}))


def print_savings(config: Config, suite: Sequence[Results], out: TextIO | None = None) -> None:
    """Print what every memory saved on each question set, and over all of them. UserError without such arms."""
    pairs = memory_pairs(config)
    if not pairs:
        raise UserError(
            "no arm with a memory has a partner without one: among the system and evaluation.baselines, name one that "
            'differs in nothing but settings: {memory: "off"}'
        )
    numbers = ("claims", "without", "with", "saved, %", "macro-F1 without", "with memory")
    table = new_table("Tool calls that the memory saved", ("question set", "method"), numbers, CAPTION)
    for saving in savings(config, suite, pairs):
        table.add_row(
            escape(saving.title),
            escape(saving.arm),
            str(len(saving.rows)),
            *(f"{calls:g}" for calls in saving.calls),
            percent(saving.saved),
            *map(percent, saving.macro_f1),
        )
    print_table(table, out)


def savings(config: Config, suite: Sequence[Results], pairs: Mapping[str, str]) -> Iterator[Saving]:
    """By arm: what it saved on each question set, then over all sets of one order where there are several."""
    for name, partner in pairs.items():
        totals: dict[str, list[Saving]] = {}
        for results in suite:
            arm, without = results.arm(name), results.arm(partner)
            rows = _calls(without, arm)
            if arm is None or without is None or not len(rows):
                continue
            f1 = (without.measures.get("macro_f1"), arm.measures.get("macro_f1"))
            title = results.title or results.split
            saving = Saving(name, title, rows, _saved(rows, results.seed), f1)
            asked = split_of(config, results.split)
            totals.setdefault(asked.order, []).append(saving)
            yield saving
        for order, alike in totals.items():
            if len(alike) > 1:
                rows = np.vstack([saving.rows for saving in alike])
                title = f"all {len(alike)} sets, {'in file order' if order == 'file' else order}"
                yield Saving(name, title, rows, _saved(rows, suite[0].seed))


def _calls(without: Arm | None, arm: Arm | None) -> Rows:
    """[questions, 2]: the tool calls of the questions that both arms were asked."""
    if without is None or arm is None:
        return np.zeros((0, 2))
    return np.array(paired(without.by_question("tool_calls"), arm.by_question("tool_calls")), np.float64).T


def _saved(rows: Rows, seed: int) -> Estimate:
    def share(sums: Rows) -> Rows:
        before = np.where(sums[:, 0] > 0, sums[:, 0], np.nan)  # no call, nothing to save
        return (sums[:, 0] - sums[:, 1]) / before

    return statistic_interval(rows, share, seed)
