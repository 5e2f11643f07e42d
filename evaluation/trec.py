"""Measures of TREC runs by relevance judgements, and their comparison: `ratchet evaluate retrieval`.

ir_measures (MacAvaney et al. 2022, arXiv 2111.13466) computes the measures by trec_eval's definitions. Every judged
query counts, with 0 where a run has nothing for it. Intervals and p values are those of all our tables.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ir_measures

from ratchet.core.errors import UserError, first_line
from ratchet.core.records import Question
from ratchet.core.tables import new_table, print_table
from ratchet.evaluation.formats import format_interval, format_number, format_p
from ratchet.evaluation.measures.estimates import Difference, Estimate
from ratchet.evaluation.measures.statistics import bootstrap_interval, holm, paired_difference
from ratchet.retrieval.trec import Qrels, TrecRun, trec_id

SEED = 0
DIGITS = 4
COMMAS = re.compile(r",(?![^(]*\))")
"""Those between measures, not between the parameters of one: nDCG(dcg='exp-log2',gains={0:0,1:1})@10."""


def parse_measures(text: str) -> list[Any]:
    """Return the measures of ir_measures that a text names, separated by commas. Raises UserError."""
    measures = []
    for name in COMMAS.split(text):
        try:
            measure = ir_measures.parse_measure(name.strip())
            if measure.params.get("cutoff", 1) < 1:
                raise ValueError("a cutoff is 1 or more")  # trec_eval's code would end the process
            ir_measures.evaluator([measure], {"1": {"d": 1}})
        except Exception as error:  # of many kinds, AssertionError among them
            reason = " ".join(str(error).split())
            raise UserError(
                f"--measures: {name.strip()!r} cannot be computed ({reason}); measures are written as in nDCG@10, "
                "R@100, RR@10, AP, P(rel=2)@5 (https://ir-measur.es)"
            ) from error
        measures.append(measure)
    return list(dict.fromkeys(measures))


def gold_qrels(questions: Iterable[Question]) -> Qrels:
    """Return judgements in which each gold document of a question has the relevance 1. Raises UserError where no
    question has one."""
    qrels = {question.id: dict.fromkeys(question.gold_ids, 1) for question in questions if question.gold_ids}
    if not qrels:
        raise UserError("no question has gold_ids; name a file of judgements with --qrels")
    return qrels


@dataclass(frozen=True)
class RunResult:
    """A run's values in one measure, and their difference from the first run's."""

    run: str
    measure: str
    estimate: Estimate
    difference: Difference | None
    """None for the first run."""
    p: float | None
    """The difference's p value, adjusted by Holm for all differences of the results."""


def measure_runs(runs: Mapping[str, TrecRun], qrels: Qrels, measures: Sequence[Any]) -> list[RunResult]:
    """Measure every run, and compare the others with the first. Raises UserError for a run without a judged query."""
    judged = {trec_id(query): {trec_id(name): rel for name, rel in found.items()} for query, found in qrels.items()}
    values = {name: _values(name, run, judged, measures) for name, run in runs.items()}
    first, *others = values
    pairs = [(name, measure) for measure in measures for name in others]
    differences = {
        (name, measure): paired_difference(values[first][measure], values[name][measure], SEED)
        for name, measure in pairs
    }
    adjusted = dict(zip(pairs, holm([differences[pair].p or 0.0 for pair in pairs]), strict=True))
    return [
        RunResult(
            name,
            str(measure),
            bootstrap_interval(values[name][measure], SEED),
            differences.get((name, measure)),
            adjusted.get((name, measure)),
        )
        for measure in measures
        for name in values
    ]


def _values(name: str, run: TrecRun, qrels: Qrels, measures: Sequence[Any]) -> dict[Any, list[float]]:
    """By measure, its value for every judged query, in the order of the judgements."""
    # Some of what computes measures breaks ties in another way than trec_eval: no two scores are equal here.
    # Some takes numbers alone as the ids of queries, as TREC's are: they are numbered.
    numbers = {query: str(number) for number, query in enumerate(qrels)}
    scored = {
        numbers[query]: {document: float(len(found) - rank) for rank, document in enumerate(found)}
        for query, found in run.items()
        if query in qrels
    }
    if not scored:
        raise UserError(f"{name}: has none of the {len(qrels):,} judged queries; are run and judgements of one set?")
    values = {measure: [0.0] * len(qrels) for measure in measures}
    try:
        for one in ir_measures.iter_calc(measures, {numbers[query]: found for query, found in qrels.items()}, scored):
            values[one.measure][int(one.query_id)] = one.value
    except Exception as error:  # of many kinds, those of the programs that it starts among them
        raise UserError(
            f"{name}: ir_measures cannot compute {', '.join(map(str, measures))} ({first_line(error)}); leave out "
            "the measure that needs another program"
        ) from error
    return values


def print_runs(results: Sequence[RunResult], judged: str) -> None:
    """Print one table of all runs in all measures. `judged`: the judgements' name."""
    first, tests = results[0], sum(one.difference is not None for one in results)
    title = f"{first.estimate.n:,} queries, {judged}"
    caption = "Brackets: 95% bootstrap intervals over queries."
    if tests:
        caption += f" Differences are paired, from {first.run}; p by a sign-flip test, after Holm for {tests} tests."
    headings = ("difference", "p") if tests else ()
    table = new_table(title, ("measure", "run"), ("mean", *headings), caption)
    shown = ""
    for one in results:
        cells = [_cell(one.estimate)]
        if tests:
            cells += [_cell(one.difference), "" if one.p is None else format_p(one.p)]
        table.add_row("" if one.measure == shown else one.measure, one.run, *cells)
        shown = one.measure
    print_table(table)


def _cell(value: Estimate | Difference | None) -> str:
    if value is None:
        return ""
    mean = format_number(value.mean, DIGITS, sign=isinstance(value, Difference))
    return f"{mean} {format_interval(value, DIGITS)}".rstrip()
