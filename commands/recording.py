"""Recording stages in the ledger as they finish: for the loop (`ratchet selftrain`), and for a stage's own command.

A command that a user or a job runs records its stage itself (`recorded_stages` in commands/arguments.py). Under the
loop, which records every stage that it runs, it does not.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from ratchet.config import Config
from ratchet.errors import UserError
from ratchet.runfolder import RunFolder
from rounds.artefacts import Adapter, Digests, JsonlFiles
from rounds.ledger import digests_of, latest_entries, reason_to_run, record_stage
from rounds.records import StageId
from rounds.stage import ExperimentRun, Stage
from rounds.stages import stages_of
from sampling.store import TrajectoryStore


@contextlib.contextmanager
def record_when_done(run: RunFolder, stages: Sequence[Stage], digests: Digests) -> Iterator[list[dict[str, str]]]:
    """Record the stages, which the block runs in this order, unless it raises; yields the digests of their inputs.

    A stage is not recorded where an output is missing or incomplete, or where the ledger has it as it is.
    """
    inputs = [digests_of(stage.reads, digests) for stage in stages]
    began, start = datetime.now(UTC), time.monotonic()
    yield inputs
    seconds = time.monotonic() - start
    known, written = latest_entries(run), set[str]()
    for stage, read in zip(stages, inputs, strict=True):
        between = {name: one for name, one in stage.reads.items() if name in written}  # what an earlier one wrote
        written |= set(stage.writes)
        if reason_to_run(stage, known, digests) is not None and _is_complete(stage, digests):
            run.path.mkdir(parents=True, exist_ok=True)
            record_stage(run, stage, read | digests_of(between, digests), began, seconds, digests)


def _is_complete(stage: Stage, digests: Digests) -> bool:
    """Whether every output is there, and every trajectory, of which a command may sample a part."""
    if digests_of(stage.writes, digests).keys() != stage.writes.keys():
        return False
    trajectories = stage.writes.get("trajectories")
    if not isinstance(trajectories, JsonlFiles):
        return True
    store = TrajectoryStore(trajectories.folder)
    lines, planned = store.progress()
    if lines == planned and len(list(store.segments)) == 1:
        return True  # no need to read them
    return sum(1 for _ in store.read()) == planned


@contextlib.contextmanager
def record_by_hand(config: Config, ids: Collection[StageId], number: int, adapter: Path | None) -> Iterator[None]:
    """Record those of the run's stages that have one of these ids, belong to round `number` and use this adapter.

    None may: a command can do what is no stage of its run, such as sampling with another adapter. The stages of a
    config's members are recorded in the members' own runs.
    """
    experiment = ExperimentRun(config, ())
    digests = Digests(experiment.run)
    digest = Adapter(adapter).digest(digests) if adapter is not None else None
    try:
        planned = list(stages_of(experiment))
    except UserError:  # the config lacks what a later stage needs, such as questions or a judge: it has no whole run
        planned = []
    stages = [
        stage
        for stage in planned
        if stage.id in ids and (stage.round, stage.member) == (number, "")
        if (digest is None and "adapter" not in stage.reads)
        or (digest is not None and "adapter" in stage.reads and stage.reads["adapter"].digest(digests) == digest)
    ]
    with record_when_done(experiment.run, stages, digests):
        yield
