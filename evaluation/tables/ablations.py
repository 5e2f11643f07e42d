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
from ratchet.config import Config

if TYPE_CHECKING:
    from matplotlib.figure import Figure


Value = float | str
"""Of a setting: a number, or its text."""


def ablated_settings(config: Config) -> dict[str, dict[Value, str]]:
    """By setting, the arm with each value of it: the base arm, and baselines that differ from it in nothing else."""
    own = load_system(config.system).settings.model_dump()
    found: dict[str, dict[Value, str]] = {}
    for arm, baseline in config.evaluation.baselines.items():
        if baseline.name != config.system.name:
            continue
        other = load_system(baseline).settings.model_dump()
        changed = [name for name in own if own[name] != other[name]]
        if len(changed) == 1:
            [name] = changed
            found.setdefault(name, {_shown(own[name]): BASE})[_shown(other[name])] = arm
    return found


def _shown(value: Any) -> Value:
    if type(value) in (int, float):
        return float(value)
    return " + ".join(map(str, value)) if isinstance(value, tuple) else str(value).lower()


def draw(name: str, arms: Mapping[Value, str], results: Sequence[Results]) -> Figure:
    """Lines over the values of a number, one for each question set; else bars, one for each value in each set."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(1.6 + 1.6 * max(3, len(results)), 3.2), layout="constrained")
    axes = figure.subplots()
    values = sorted(value for value in arms if isinstance(value, float))
    if len(values) == len(arms):
        for one in results:
            axes.plot(values, [percent(one, arms[value]) for value in values], "o-", label=one.title or one.split)
        axes.set(xlabel=name.replace("_", " "), xticks=values)
    else:
        width = 0.8 / len(arms)
        for number, value in enumerate(arms):
            at = [place + (number + 0.5) * width - 0.4 for place in range(len(results))]
            axes.bar(at, [percent(one, arms[value]) for one in results], width, label=f"{name}: {value}")
        axes.set(xticks=range(len(results)), xticklabels=[one.title or one.split for one in results])
    axes.set(ylabel=f"{' / '.join(dict.fromkeys(one.primary for one in results))}, %")
    axes.legend(fontsize="small", frameon=False)
    return figure


def percent(results: Results, arm: str) -> float:
    """The arm's primary measure in percent; NaN, of which nothing is drawn, where it was not run."""
    found = results.arm(arm)
    mean = found.measures[results.primary].mean if found and results.primary in found.measures else None
    return float("nan") if mean is None else 100 * mean
