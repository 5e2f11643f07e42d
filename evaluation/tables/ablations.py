"""python -m evaluation ablations --config X: what each setting of the system changes, from stored results.

A setting is drawn where some baseline is the config's system with that setting alone changed. Of Tool-MAD's config
(Jeong et al. 2026, arXiv 2601.04742, section IV-E) these are figure 8 (`rounds`: a line for each question
set), figures 9 and 10 (`query_formulation`, `stability`: for each question set a bar for each value) and table VI
(`agents`). The measure is each set's primary one, of the base model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agents.core.system import load_system
from evaluation.results import BASE, Results
from ratchet.config import SystemConfig

if TYPE_CHECKING:
    from matplotlib.figure import Figure


Value = float | str
"""Of a setting: a number, or its text."""


def ablated_settings(system: SystemConfig, baselines: Mapping[str, SystemConfig]) -> dict[str, dict[Value, str]]:
    """By setting, the arm with each value of it: the base arm, and baselines that differ from it in nothing else."""
    own = load_system(system).settings.model_dump()
    arms: dict[str, dict[Value, str]] = {}
    for arm, baseline in baselines.items():
        if baseline.name != system.name:
            continue
        other = load_system(baseline).settings.model_dump()
        changed = [name for name in own if own[name] != other[name]]
        if len(changed) == 1:
            [name] = changed
            arms.setdefault(name, {_shown(own[name]): BASE})[_shown(other[name])] = arm
    return arms


def _shown(value: Any) -> Value:
    if type(value) in (int, float):
        return float(value)
    return " + ".join(map(str, value)) if isinstance(value, tuple) else str(value).lower()


def draw(name: str, arms: Mapping[Value, str], suite: Sequence[Results]) -> Figure:
    """Lines over the values of a number, one for each question set; else bars, one for each value in each set."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(1.6 + 1.6 * max(3, len(suite)), 3.2), layout="constrained")
    axes = figure.subplots()
    titles = [results.title or results.split for results in suite]
    values = sorted(value for value in arms if isinstance(value, float))
    if len(values) == len(arms):
        for title, results in zip(titles, suite, strict=True):
            axes.plot(values, [percent(results, arms[value]) for value in values], "o-", label=title)
        axes.set(xlabel=name.replace("_", " "), xticks=values)
    else:
        width = 0.8 / len(arms)
        for number, value in enumerate(arms):
            at = [place + (number + 0.5) * width - 0.4 for place in range(len(suite))]
            axes.bar(at, [percent(results, arms[value]) for results in suite], width, label=f"{name}: {value}")
        axes.set(xticks=range(len(suite)), xticklabels=titles)
    axes.set(ylabel=f"{' / '.join(dict.fromkeys(results.primary for results in suite))}, %")
    axes.legend(fontsize="small", frameon=False)
    return figure


def percent(results: Results, arm: str) -> float:
    """The arm's primary measure in percent; NaN, of which nothing is drawn, where it was not run."""
    shown = results.arm(arm)
    mean = shown.measures[results.primary].mean if shown and results.primary in shown.measures else None
    return float("nan") if mean is None else 100 * mean
