"""Tables of fact verification: confusions and uncertain verdicts, the thresholds of debates, and what a memory saves.

- The scores by which a debate may end, from the turns of stored trajectories. Jeong et al. 2026 (Tool-MAD, arXiv
  2601.04742, section III-C) end a debate where scores reach 0.7 and 0.8, read off histograms of correct and wrong
  answers (figure 3); relevance is on its embedder's scale, so another embedder needs thresholds of its own. `ratchet
  evaluate thresholds` gives the score that all but a share of the correct turns reach (`--quantile 0.25`: three of four
  do), and how many wrong ones reach it. Scores that cannot be told are counted.
- The tool calls that an evidence memory saves, in percent. Each arm with a memory (`system.settings.memory`) is
  compared with the arm that differs in nothing but having none (`memory: off`), on the same questions: MERMAID (2026,
  arXiv 2601.22361, section 4.2) reports the share of all tool calls that its memory saves. Question sets of one order
  (file, shuffled, clustered) are totalled together.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TextIO

import numpy as np
from rich.table import Table
from rich.text import Text

from ratchet.agents.core.system import load_system
from ratchet.core.config import Config, SystemConfig
from ratchet.core.errors import UserError
from ratchet.core.records import Question, Trajectory, content_key
from ratchet.core.runfolder import RoundFolder
from ratchet.core.tables import new_table, print_table, wide_console
from ratchet.evaluation.arms import arm_trajectories, question_set, read_arms, split_of
from ratchet.evaluation.measures.estimates import Estimate
from ratchet.evaluation.measures.statistics import Rows, paired, statistic_interval
from ratchet.evaluation.measures.verdicts import APART, Verdicts, label_scores, uncertainty
from ratchet.evaluation.results import BASE, Arm, Results
from ratchet.evaluation.tables.suite import label, percent
from ratchet.sampling.store import TrajectoryStore

WIDTH = 160
PADDING = (0, 1, 0, 0)
CONFUSION = """\
rows: gold labels; columns: verdicts, in questions (several samples of a question share its weight); precision, recall
and F1 in percent, strict: no verdict counts as a wrong one of every other label; -: nothing to divide by"""


def print_verdicts(suite: Sequence[Results], out: TextIO | None = None) -> None:
    """Print each arm's confusion on every labelled question set, then its uncertain verdicts."""
    console = wide_console(WIDTH, out)
    if not any(arm.verdicts for results in suite for arm in results.arms):
        titles = ", ".join(results.title or results.split for results in suite)
        raise UserError(f"no verdicts to count: the questions of {titles} have no label")
    for results in suite:
        known = [(arm, arm.verdicts) for arm in results.arms if arm.verdicts is not None]
        for arm, verdicts in known:
            print_table(_confusion_table(results, arm, verdicts), out)
        if known:
            console.print(CONFUSION)
        if (uncertain := _uncertain_table(results)).rows:
            print_table(uncertain, out)


def _confusion_table(results: Results, arm: Arm, verdicts: Verdicts) -> Table:
    """Rows are gold labels, columns verdicts, in questions; then precision, recall and F1 of each label."""
    macro = percent(arm.measures.get("macro_f1"))
    title = f"{results.title}, {label(arm)}: accuracy {percent(arm.measures.get('accuracy'))}, macro-F1 {macro}"
    headings = (*verdicts.labels, *APART, "questions", "precision", "recall", "F1")
    table = new_table(title, ("gold",), headings, padding=PADDING)
    for i, (name, questions, *scores) in enumerate(label_scores(verdicts)):
        counts = [
            Text(f"{round(value, 2):g}", "bold" if column == i else "")
            for column, value in enumerate(verdicts.confusion[i])
        ]
        shares = ["-" if value is None else f"{100 * value:.1f}" for value in scores]
        table.add_row(name, *counts, f"{round(questions, 2):g}", *shares)
    return table


def _uncertain_table(results: Results) -> Table:
    table = new_table(
        f"{results.title}: uncertain verdicts, in percent",
        ("method",),
        ("uncertain", "decided", "accuracy decided"),
        "uncertain: UNCERTAIN, or a label of stance unknown; decided: another label; accuracy decided: one minus the "
        "risk at that coverage",
        PADDING,
    )
    for arm in results.arms:
        uncertain = arm.verdicts and uncertainty(arm.verdicts, results.seed)
        if uncertain:
            table.add_row(label(arm), *map(percent, (uncertain.share, uncertain.coverage, uncertain.accuracy)))
    return table


CALIBRATE_ON = ("dev", "train")
"""The splits on which thresholds may be chosen: on the reported questions they would be fitted to them."""


@dataclass(frozen=True)
class TurnScore:
    """One score of one turn that gave a label."""

    name: str
    value: float | None
    right: bool


def turn_scores(questions: Iterable[Question], trajectories: Iterable[Trajectory]) -> Iterator[TurnScore]:
    """The scores of all turns that gave a label, of questions that have one."""
    labels = {question.id: question.label for question in questions if question.label is not None}
    for trajectory in trajectories:
        label = labels.get(trajectory.question_id)
        for turn in trajectory.turns if label else ():
            for name, value in turn.scores.items() if turn.verdict else ():
                yield TurnScore(name, value, turn.verdict == label)


def stored_scores(
    split: str, questions: Sequence[Question], stores: Mapping[str, TrajectoryStore]
) -> dict[str, list[TurnScore]]:
    """By method, the scores of its turns, of every method that scores them. UserError where none does."""
    if not stores:
        raise UserError(f"{split}: no method was run yet; run `ratchet evaluate --config ... --split {split}`")
    scores = {
        name: own for name, store in stores.items() if (own := list(turn_scores(questions, arm_trajectories(store))))
    }
    if not scores:
        raise UserError(
            "no scored turns: only tool_mad with stability scores has them, on questions with labels; run it first: "
            "`ratchet evaluate --config ...`"
        )
    return scores


def known_values(scores: Iterable[TurnScore], right: bool, name: str) -> list[float]:
    """The values of one score, of the turns whose label is right or of the others."""
    return [s.value for s in scores if s.right is right and s.value is not None and s.name == name]


def find_thresholds(scores: Sequence[TurnScore], quantile: float) -> dict[str, float | None]:
    """By score, the value that 1 - `quantile` of the correct turns reach, to three digits; None without such turns."""
    thresholds: dict[str, float | None] = {}
    for name in dict.fromkeys(score.name for score in scores):
        right = known_values(scores, True, name)
        at = float(np.quantile(right, quantile, method="lower")) if right else None
        thresholds[name] = None if at is None else math.floor(1000 * at) / 1000
    return thresholds


def print_thresholds(
    config: Config,
    folder: RoundFolder,
    split: str,
    quantile: float,
    setting_only: bool = False,
    out: TextIO | None = None,
) -> None:
    """Print the thresholds of every method that ends by some, and the argument of --set that gives them to all systems.

    `setting_only`: print nothing but this argument, of the first method.
    """
    if split not in CALIBRATE_ON:
        raise UserError(
            f"--split {split}: thresholds are chosen on dev or train, never on the questions that are reported"
        )
    if not 0 <= quantile <= 1:
        raise UserError(f"--quantile {quantile:g}: give a share of the correct answers, from 0 to 1")
    stores = read_arms(folder, split)
    for name, scores in stored_scores(split, question_set(config, split).questions, stores).items():
        manifest = stores[name].manifest()
        if manifest is None or "thresholds" not in type(load_system(manifest.system).settings).model_fields:
            continue
        thresholds = find_thresholds(scores, quantile)
        setting = thresholds_setting(thresholds)
        if setting_only and not setting:
            raise UserError(f"{split}, {name}: no answer was right, so there are no thresholds")
        if setting_only:
            return print(setting, file=out)
        print_table(threshold_table(f"{split}, {name}", scores, thresholds), out)
        if setting:
            print(f"for every system, in a new run folder: --set '{setting}'\n", file=out)


def threshold_table(title: str, scores: Sequence[TurnScore], thresholds: Mapping[str, float | None]) -> Table:
    """Each score's threshold, and how many right and wrong turns reach it."""
    numbers = ("threshold", "right", "reach it", "wrong", "reach it", "unknown")
    table = new_table(title, ("score",), numbers)
    for name, threshold in thresholds.items():
        cells = ["-" if threshold is None else f"{threshold:.3f}"]
        for right in (True, False):
            values = known_values(scores, right, name)
            reach = 0 if threshold is None else sum(value >= threshold for value in values)
            cells += [str(len(values)), "-" if threshold is None or not values else f"{100 * reach / len(values):.1f}%"]
        table.add_row(name, *cells, str(sum(s.value is None for s in scores if s.name == name)))
    return table


def thresholds_setting(thresholds: Mapping[str, float | None]) -> str:
    """The thresholds as a setting of a config; empty without any."""
    known = [f"{name}: {threshold:g}" for name, threshold in thresholds.items() if threshold is not None]
    return f"embedder.thresholds={{{', '.join(known)}}}" if known else ""


SAVINGS = """\
tool calls: in total, searches too, several samples of a question counted as their mean; saved: of the calls without the
memory, in percent, with its 95% bootstrap interval over questions"""


@dataclass(frozen=True)
class Saving:
    """The tool calls that a memory saved on some question sets."""

    arm: str
    title: str
    rows: Rows
    """[questions, 2]: tool calls without the memory, and with it."""
    saved: Estimate
    """The share of the tool calls that the memory saved; negative where it costs some."""
    macro_f1: tuple[Estimate | None, Estimate | None] = (None, None)
    """Without the memory and with it; None over several sets."""

    @property
    def calls(self) -> tuple[float, float]:
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
    table = new_table("Tool calls that the memory saved", ("question set", "method"), numbers, SAVINGS)
    for saving in savings(config, suite, pairs):
        table.add_row(
            saving.title,
            saving.arm,
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
