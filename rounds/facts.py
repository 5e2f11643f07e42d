"""Counts and measures of a finished stage, from the small files that it wrote."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from evaluation.results import BASE, PARENT, TRAINED, read_results
from ratchet.files import count_lines
from ratchet.records import Selection
from rounds.artefacts import Adapter, Arms, Artefact, File, JsonlFiles
from rounds.records import Promotion
from rounds.stages import Stage

SENTENCES = ("reason", "verdict")
"""Facts that are sentences, too long for a line beside others."""


def facts_of(stage: Stage) -> dict[str, Any]:
    """Facts of a finished stage for readers of the ledger; no stage depends on them."""
    return collect_facts(stage.writes)


def collect_facts(writes: Mapping[str, Artefact]) -> dict[str, Any]:
    """Counts and measures of artefacts, by name."""
    found: dict[str, Any] = {}
    for name, artefact in writes.items():
        if name == "trajectories" and isinstance(artefact, JsonlFiles | Arms):
            found["trajectories"] = count_lines(artefact.files())
        elif name == "adapter" and isinstance(artefact, Adapter):
            found |= _training_facts(artefact.folder)
        elif isinstance(artefact, File) and artefact.path.exists():
            found |= _file_facts(name, artefact.path)
    return found


def _file_facts(name: str, path: Path) -> dict[str, Any]:
    if name == "selection":
        return _selection_facts(path)
    if name == "promotion":
        promotion = Promotion.model_validate_json(path.read_bytes())
        return {"promoted": promotion.promoted, "reason": promotion.reason}
    if name == "evaluation":
        return _result_facts(path)
    return {}


def _selection_facts(path: Path) -> dict[str, Any]:
    selection = Selection.model_validate_json(path.read_bytes())
    rewards = [value for choice in selection.questions for value in choice.rewards.values() if value is not None]
    return {
        "mean_reward": round(fmean(rewards), 4) if rewards else None,
        "kept": len(selection.kept),
        "kept_questions": sum(bool(choice.kept) for choice in selection.questions),
        "questions": len(selection.questions),
    }


def _training_facts(folder: Path) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((folder / "training.json").read_bytes())
    return {
        "rows": facts["rows"]["train"],
        "steps": facts["steps"],
        "dev_loss_before": facts["dev_loss_before"],
        "dev_loss": facts["dev_loss"],
    }


def _result_facts(path: Path) -> dict[str, Any]:
    results = read_results(path)
    assert results is not None
    means = {name: arm.measures[results.primary].mean for name in (BASE, PARENT, TRAINED) if (arm := results.arm(name))}
    return {"measure": results.primary, **means, "verdict": results.verdict}
