"""The learning curves of a sweep: a measure over the checkpoints of one run, in the order of their training."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from evaluation.measures.estimates import Estimate
from evaluation.measures.measures import BY_NAME
from evaluation.sweep.checkpoints import Checkpoint
from evaluation.sweep.records import SetFacts, SweepResults
from ratchet.files import write_atomic

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Points = list[tuple[Checkpoint, Estimate, float]]
"""Checkpoints with their measure and its mean, base first."""


def learning_curves(results: SweepResults) -> dict[str, Figure]:
    """By file name, a curve of each run, system and dev set with several finished checkpoints."""
    arms = {(cell.checkpoint, cell.system, cell.split): cell.arm for cell in results.cells}
    figures = {}
    runs = dict.fromkeys(checkpoint.run for checkpoint in results.checkpoints if checkpoint.run)
    for run, system, asked in product(runs, results.systems, results.sets):
        points = [
            (checkpoint, estimate, estimate.mean)
            for checkpoint in sorted(results.checkpoints, key=lambda checkpoint: checkpoint.place)
            if (checkpoint.run == run or checkpoint.adapter is None)
            and (arm := arms.get((checkpoint.name, system, asked.name))) is not None
            and (estimate := arm.measures[asked.measure]).mean is not None
        ]
        if asked.stage == "dev" and len(points) > 1:
            chosen = {choice.checkpoint for choice in results.choices if choice.system == system}
            figures[f"curve-{Path(run).name}-{system}-{asked.name}"] = _draw(points, asked, chosen)
    return figures


def _draw(points: Points, asked: SetFacts, chosen: set[str]) -> Figure:
    """Bars: 95% intervals. A ring marks the checkpoint that dev chose, small dots those within a round's training."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.6, 3.0), layout="constrained")
    axes = figure.subplots()
    axes.plot([point.place for point, _, _ in points], [mean for _, _, mean in points], color="C0")
    for point, estimate, mean in points:
        low, high = (mean if bound is None else bound for bound in (estimate.low, estimate.high))
        axes.vlines(point.place, low, high, color="C0", alpha=0.6)
        axes.plot([point.place], [mean], "o", color="C0", markersize=9 if point.step is None else 5)
        axes.annotate(f"{mean:.3f}", (point.place, mean), (9, 4), textcoords="offset points")
        if point.name in chosen:
            axes.plot([point.place], [mean], "o", markersize=16, mfc="none", mec="black", clip_on=False)
    rounds = [point for point, _, _ in points if point.step is None]
    labels = ["base" if point.round == 0 else str(point.round) for point in rounds]
    axes.set(xlabel="round", ylabel=BY_NAME[asked.measure].title, xticks=[point.place for point in rounds])
    axes.set_xticklabels(labels)
    axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
    return figure


def save_figures(figures: Mapping[str, Figure], folder: Path) -> list[Path]:
    """Write each figure into an SVG file of its name; returns the files."""
    import matplotlib

    paths = []
    for stem, figure in figures.items():
        path = folder / f"{re.sub(r'[^A-Za-z0-9_.-]+', '-', stem)}.svg"
        out = io.BytesIO()
        with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": stem}):
            # Without the date, the same records give the same file.
            figure.savefig(out, format="svg", metadata={"Date": None})
        write_atomic(path, out.getvalue())
        paths.append(path)
    return paths
