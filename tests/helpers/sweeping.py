"""A sweep to test with: two rounds of adapters and a checkpoint on the way, on a scripted engine whose answers turn on
the seed, so that every checkpoint gets numbers of its own, and the same ones whenever it is run."""

import json
from pathlib import Path
from typing import Any

from ratchet.evaluation.sweep_results import SweepResults
from tests.helpers.adapter_folders import save_adapter
from tests.helpers.commands import command_of
from tests.helpers.scripted import scripted_experiment

sweep = command_of("sweep")

NAME = "Ada Pell"


def make_sweep(folder: Path, questions: int = 6, **settings: Any) -> Path:
    """The config's path; the run is folder/run."""
    asked = {"train": "Who built light {}?", "dev": "Who keeps light {}?", "test": "Whose is {}?"}
    splits = {
        split: [{"id": f"{split}-{i}", "text": text.format(i), "answers": [NAME]} for i in range(questions)]
        for split, text in asked.items()
    }
    script = [{"match": "", "replies": [NAME, "nobody", "Ada"]}]
    scores = {"scores": ["em", "f1"]}
    path = scripted_experiment(folder, script, splits, evaluation=scores, sweep=settings)
    for number in (1, 2):
        make_adapter(folder / "run" / f"round-{number}" / "adapter", f"weights {number}")
    make_adapter(folder / "run" / "round-1" / "training" / "checkpoint-5", "half way")
    make_adapter(folder / "run" / "round-1" / "training" / "checkpoint-10", "weights 1")
    return path


def make_adapter(folder: Path, weights: str) -> Path:
    """Other words, other weights."""
    return save_adapter(folder, b=sum(weights.encode()))


def run(path: Path, *arguments: str) -> int:
    """Run `ratchet sweep` in this process; its exit status."""
    try:
        sweep([*arguments, "--config", str(path)])
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def results_of(path: Path) -> SweepResults:
    return SweepResults.model_validate_json((path.parent / "run" / "sweep" / "sweep.json").read_bytes())


def without_seconds(results: SweepResults) -> str:
    """All of it but how long things took."""
    data = results.model_dump(mode="json")
    for cell in data["cells"]:
        cell["arm"]["measures"].pop("seconds")
        for values in cell["arm"]["values"].values():
            values.pop("seconds")
    return json.dumps(data, sort_keys=True)
