"""Recording stages in the ledger as they finish: for the loop (`ratchet selftrain`), and for a stage's own command.

A command that a user or a job runs records its stage itself (`recorded_stages`). Under the loop, which records every
stage that it runs, it does not.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from ratchet.commands.config import IN_LOOP
from ratchet.core.config import Config
from ratchet.core.errors import UserError
from ratchet.core.runfolder import RunFolder
from ratchet.rounds.artefacts import Adapter, Artefact, Digests, Segments
from ratchet.rounds.facts import record_stage
from ratchet.rounds.ledger import digests_of, latest_entries, outdated_stages, problem_of, reason_to_run, typed_command
from ratchet.rounds.records import StageId
from ratchet.rounds.stages import ExperimentRun, Stage, stages_of
from ratchet.sampling.store import TrajectoryStore

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
