"""The ledger's entry of a finished stage: its digests, and facts about what it wrote."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from ratchet.core.files import Segment, count_lines, read_json_file
from ratchet.core.installed import code_version
from ratchet.core.records import Selection
from ratchet.core.runfolder import RunFolder
from ratchet.evaluation.results import BASE_AGAIN, RESERVED, TRAINED, read_results
from ratchet.rewards.summary import mean_reward, solved_questions
from ratchet.rounds.artefacts import Adapter, Arms, Artefact, Digests, File, Segments
from ratchet.rounds.ledger import digests_of
from ratchet.rounds.records import AdapterChoice, Entry, Promotion
from ratchet.rounds.stages import Stage
from ratchet.sampling.work import work_on


def record_stage(
    run: RunFolder,
    stage: Stage,
    inputs: dict[str, str],
    began: datetime,
    seconds: float,
    digests: Digests,
    anyway: str = "",
) -> Entry:
    """Record a finished stage; `inputs` are digests from before it ran, `anyway` names those that were out of date."""
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
        code=code_version() or "",
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
        if name == "trajectories" and isinstance(artefact, Segments | Arms):
            facts["trajectories"] = count_lines(artefact.files())
            facts |= _work_facts(artefact) if isinstance(artefact, Segments) else {}
        elif name == "adapter" and isinstance(artefact, Adapter):
            facts |= _training_facts(artefact.folder)
        elif name in of_file and isinstance(artefact, File) and artefact.path.exists():
            facts |= of_file[name](artefact.path)
    return facts


def _work_facts(sampled: Segments) -> dict[str, Any]:
    work = work_on(sampled.folder)
    if work is None:
        return {}
    return {
        "trajectories_an_hour": round(work.an_hour, 1),
        "prompt_tokens": work.prompt_tokens,
        "new_tokens": work.new_tokens,
    }


def _selection_facts(path: Path) -> dict[str, Any]:
    selection = Selection.model_validate_json(path.read_bytes())
    mean = mean_reward(selection)
    return {
        "mean_reward": None if mean is None else round(mean, 4),
        "kept": sum(len(choice.kept) for choice in selection.questions),
        "kept_of_curriculum": sum(len(choice.kept) for choice in selection.curriculum),
        "kept_questions": sum(bool(choice.kept) for choice in selection.questions),
        "solved_questions": solved_questions(selection),
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
