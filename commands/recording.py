"""Recording stages in the ledger as they finish: for the loop (`ratchet selftrain`), and for a stage's own command.

A command that a user or a job runs records its stage itself (`recorded_stages`). Under the loop, which records every
stage that it runs, it does not.
"""

from __future__ import annotations

import contextlib
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ratchet.commands.config import IN_LOOP
from ratchet.core.config import Config
from ratchet.core.errors import UserError
from ratchet.core.files import Segment, count_lines, read_json_file
from ratchet.core.installed import code_version
from ratchet.core.records import Selection
from ratchet.core.runfolder import RunFolder
from ratchet.evaluation.results import BASE_AGAIN, RESERVED, TRAINED, read_results
from ratchet.rewards.summary import mean_reward, solved_questions
from ratchet.rounds.artefacts import Adapter, Arms, Artefact, Digests, File, Segments
from ratchet.rounds.ledger import digests_of, latest_entries, outdated_stages, problem_of, reason_to_run, typed_command
from ratchet.rounds.records import AdapterChoice, Entry, Promotion, StageId
from ratchet.rounds.stages import ExperimentRun, Stage, stages_of
from ratchet.sampling.store import TrajectoryStore
from ratchet.sampling.work import work_on

OF_ADAPTERS = ("adapter", "parent", "control", "gold")
"""Inputs of stages that a command without an adapter does not read."""


@contextlib.contextmanager
def recorded_stages(
    config: Config, *ids: StageId, number: int = 1, adapter: Path | None = None, anyway: bool = False
) -> Iterator[None]:
    """Record in the run's ledger which of these stages of round `number` the block finishes, unless it raises.

    `adapter`: the adapter that the block samples with, trains on or evaluates. None is recorded where the command does
    what is no stage of its run, such as sampling with another adapter. The stages of a config's members are recorded in
    the members' own runs, and those of a config without a run folder nowhere. Raises what `outdated_inputs` raises.
    """
    if os.environ.get(IN_LOOP) or not config.run:
        yield
        return
    run = RunFolder(config.folder)
    digests = Digests(run)
    outdated = outdated_inputs(config, *ids, number=number, adapter=adapter, anyway=anyway, digests=digests)
    digest = Adapter(adapter).digest(digests) if adapter is not None else None
    stages = [
        stage
        for stage in planned_stages(config)
        if stage.id in ids and (stage.round, stage.member) == (number, "")
        if (digest is None and "adapter" not in stage.reads)
        or (digest is not None and "adapter" in stage.reads and stage.reads["adapter"].digest(digests) == digest)
    ]
    with record_when_done(run, stages, digests, outdated):
        yield


def outdated_inputs(
    config: Config,
    *ids: StageId,
    number: int = 1,
    adapter: Path | None = None,
    anyway: bool = False,
    digests: Digests | None = None,
) -> str:
    """Say what is out of date of the inputs of a command that does these stages of round `number` with this adapter.

    Empty where nothing is. Raises UserError with the commands that bring them up to date, unless `anyway`.
    """
    run, planned = RunFolder(config.folder), planned_stages(config)
    stages = [stage for stage in planned if stage.id in ids and (stage.round, stage.member) == (number, "")]
    reads = {name: one for stage in stages for name, one in stage.reads.items() if name not in OF_ADAPTERS or adapter}
    if adapter is not None:
        reads["adapter"] = _planned_adapter(adapter, planned)
    running, known = {stage.key for stage in stages}, latest_entries(run)
    outdated, again = outdated_stages(planned, reads.values(), running, known, digests or Digests(run))
    if outdated and not anyway:
        commands = "".join(f"\n  {typed_command(stage)}" for stage in again)
        raise UserError(
            f"{config.folder}: {outdated}, and this command uses what came of it. Bring it up to date first:{commands}"
            "\nWith --anyway this command uses what is there, and the run's records say so."
        )
    if outdated:
        print(f"warning: {outdated}; --anyway uses what is there", file=sys.stderr)
    return outdated


@contextlib.contextmanager
def record_when_done(
    run: RunFolder, stages: Sequence[Stage], digests: Digests, anyway: str = ""
) -> Iterator[list[dict[str, str]]]:
    """Record the stages, which the block runs in this order, unless it raises; yields the digests of their inputs.

    `anyway`: what was out of date of these. A stage is not recorded where an output is missing or incomplete, or where
    the ledger has it as it is.
    """
    inputs = [digests_of(stage.reads, digests) for stage in stages]
    began, start = datetime.now(UTC), time.monotonic()
    yield inputs
    seconds = time.monotonic() - start
    known, written = latest_entries(run), set[str]()
    for stage, read in zip(stages, inputs, strict=True):
        between = {name: one for name, one in stage.reads.items() if name in written}  # what an earlier one wrote
        written |= set(stage.writes)
        is_recorded = reason_to_run(stage, known, digests) is None and known[stage.key].anyway == anyway
        if not is_recorded and _is_complete(stage, digests):
            record_stage(run, stage, read | digests_of(between, digests), began, seconds, digests, anyway)


def _is_complete(stage: Stage, digests: Digests) -> bool:
    """Return whether every output is there, and every trajectory, of which a command may sample a part."""
    if digests_of(stage.writes, digests).keys() != stage.writes.keys():
        return False
    trajectories = stage.writes.get("trajectories")
    if not isinstance(trajectories, Segments):
        return True
    return TrajectoryStore(trajectories.folder).missing()[0] == 0


def planned_stages(config: Config) -> list[Stage]:
    """Return every stage of the config's run; none where the config lacks what a later stage needs."""
    try:
        return list(stages_of(ExperimentRun(config, config.words)))
    except UserError:
        return []


def stages_to_do_again(config: Config) -> list[str]:
    """Return a phrase for each stage whose outputs should not be used as they are, for a page that shows them."""
    run = RunFolder(config.folder)
    known, digests = latest_entries(run), Digests(run)
    shown = (problem_of(stage, known, digests) for stage in planned_stages(config) if stage.id != "report")
    return [problem for problem in shown if problem]


def _planned_adapter(folder: Path, planned: Sequence[Stage]) -> Artefact:
    written = (one for stage in planned for one in stage.writes.values() if isinstance(one, Adapter))
    return next((one for one in written if one.folder.resolve() == folder.resolve()), Adapter(folder))


# The entry of a finished stage: its digests, and facts about what it wrote


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
