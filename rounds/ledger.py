"""runs/X/ledger.jsonl: a line for every stage that was finished; of a stage's lines the last one counts.

A stage is done when its line is there and what it read and wrote is still on disk as the line says, so a finished run
is gone through in a moment, without a model or a server.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from evaluation.results import BASE_AGAIN, RESERVED, TRAINED, read_results
from ratchet.files import Segment, count_lines, read_json_file, read_segment
from ratchet.runfolder import RunFolder
from ratchet.selection import Selection
from rewards.summary import mean_reward
from rounds.artefacts import Adapter, Arms, Artefact, Digests, File, JsonlFiles
from rounds.records import AdapterChoice, Entry, Promotion, StageKey
from rounds.stage import Stage

LatestEntries = Mapping[StageKey, Entry]
"""By stage, the entry that counts."""
SENTENCES = ("reason", "warning", "verdict")
"""Facts that are sentences, too long for a line beside others."""


def read_ledger(run: RunFolder) -> list[Entry]:
    """Every entry in the order of writing; none where there is no ledger yet."""
    return list(read_segment(run.ledger, Entry))


def latest_entries(run: RunFolder) -> dict[StageKey, Entry]:
    """The last entry of each stage, which is the one that counts."""
    return {entry.key: entry for entry in read_ledger(run)}


def digests_of(artefacts: Mapping[str, Artefact], digests: Digests) -> dict[str, str]:
    """Digests by name, of the artefacts that exist."""
    by_name = {name: artefact.digest(digests) for name, artefact in artefacts.items()}
    return {name: digest for name, digest in by_name.items() if digest is not None}


@dataclass(frozen=True)
class RunReason:
    """Why a stage has to be run."""

    reason: str
    again: bool
    """Whether it was done before, and that no longer counts."""


def reason_to_run(stage: Stage, known: LatestEntries, digests: Digests) -> RunReason | None:
    """Why a stage has to run; None where it is done. A stage without outputs runs for what it prints."""
    entry = known.get(stage.key)
    if entry is None or not stage.writes or stage.writes.keys() != entry.outputs.keys():
        return RunReason("not done yet", again=False)
    if changed := _changed(entry.inputs, digests_of(stage.reads, digests)):
        return RunReason(f"its input changed: {changed}", again=True)
    if changed := _changed(entry.outputs, digests_of(stage.writes, digests)):
        return RunReason(f"{changed} changed since it was done", again=True)
    return None


def _changed(old: Mapping[str, str], new: Mapping[str, str]) -> str:
    return " and ".join(sorted(name for name in {*old, *new} if old.get(name) != new.get(name)))


def earlier_test_rounds(stage: Stage, inputs: Mapping[str, str], known: LatestEntries) -> list[int]:
    """The other rounds whose adapters were tested on the same questions; empty for a stage that does not test."""
    if stage.id not in ("test.sample", "test"):
        return []
    return [
        key.round
        for key, entry in known.items()
        if key.id == "test" and key.round != stage.round and entry.inputs.get("questions") == inputs.get("questions")
    ]


def record_stage(
    run: RunFolder,
    stage: Stage,
    inputs: dict[str, str],
    began: datetime,
    seconds: float,
    digests: Digests,
    anyway: str = "",
) -> Entry:
    """Record that a stage was finished; `inputs` are the digests from before it ran, `anyway` is what was out of date
    of them."""
    entry = Entry(
        round=stage.round,
        stage=stage.id,
        member=stage.member,
        inputs=inputs,
        outputs=digests_of(stage.writes, digests),
        facts=collect_facts(stage.writes),
        began=began.isoformat(timespec="seconds"),
        seconds=round(seconds, 3),
        machine=platform.node(),
        anyway=anyway,
    )
    digests.save()
    with Segment(run.ledger) as segment:
        segment.append(entry)
    return entry


def collect_facts(writes: Mapping[str, Artefact]) -> dict[str, Any]:
    """Counts and measures of what a stage wrote, for readers of the ledger; no stage depends on them."""
    of_file: dict[str, Callable[[Path], dict[str, Any]]] = {
        "selection": _selection_facts,
        "choice": _choice_facts,
        "promotion": _promotion_facts,
        "evaluation": _result_facts,
    }
    facts: dict[str, Any] = {}
    for name, artefact in writes.items():
        if name == "trajectories" and isinstance(artefact, JsonlFiles | Arms):
            facts["trajectories"] = count_lines(artefact.files())
        elif name == "adapter" and isinstance(artefact, Adapter):
            facts |= _training_facts(artefact.folder)
        elif name in of_file and isinstance(artefact, File) and artefact.path.exists():
            facts |= of_file[name](artefact.path)
    return facts


def _selection_facts(path: Path) -> dict[str, Any]:
    selection = Selection.model_validate_json(path.read_bytes())
    mean = mean_reward(selection)
    return {
        "mean_reward": None if mean is None else round(mean, 4),
        "kept": len(selection.kept),
        "kept_questions": sum(bool(choice.kept) for choice in selection.questions),
        "questions": len(selection.questions),
    }


def _training_facts(folder: Path) -> dict[str, Any]:
    facts: dict[str, Any] = read_json_file(folder / "training.json")
    return {
        "rows": facts["rows"]["train"],
        "steps": facts["steps"],
        "dev_loss_before": facts["dev_loss_before"],
        "dev_loss": facts["dev_loss"],
    }


def _choice_facts(path: Path) -> dict[str, Any]:
    choice = AdapterChoice.model_validate_json(path.read_bytes())
    return {"step": choice.step, "reason": choice.reason}


def _promotion_facts(path: Path) -> dict[str, Any]:
    promotion = Promotion.model_validate_json(path.read_bytes())
    facts = promotion.model_dump(include={"promoted", "reason", "warning"})
    return {name: value for name, value in facts.items() if value != ""}


def _result_facts(path: Path) -> dict[str, Any]:
    results = read_results(path)
    assert results is not None
    means = {name: arm.measures[results.primary].mean for name in RESERVED if (arm := results.arm(name))}
    changes = {
        f"{prefix}{what}": count
        for name, prefix in ((TRAINED, ""), (BASE_AGAIN, "base_again_"))
        if (of_arm := results.changes(name)) is not None
        for what, count in (("gained", of_arm.gained), ("broken", of_arm.broken))
    }
    return {"measure": results.primary, **means, **changes, "verdict": results.verdict}
