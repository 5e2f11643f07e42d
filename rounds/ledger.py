"""runs/X/ledger.jsonl: a line for every stage that was finished; of a stage's lines the last one counts.

A stage is done when its line is there and what it read and wrote is still on disk as the line says, so a finished run
is gone through in a moment, without a model or a server.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ratchet.core.escape import shell_line
from ratchet.core.files import read_segment
from ratchet.core.runfolder import RunFolder
from ratchet.rounds.artefacts import Artefact, Digests, Questions, Segments
from ratchet.rounds.records import Entry, StageKey
from ratchet.rounds.stages import RATCHET, Stage
from ratchet.sampling.store import TrajectoryStore

LatestEntries = Mapping[StageKey, Entry]
SENTENCES = ("reason", "warning", "verdict")
"""Facts that are sentences, too long for a line beside others."""


def read_ledger(run: RunFolder) -> list[Entry]:
    """Every entry in the order of writing; none where there is no ledger yet."""
    return list(read_segment(run.ledger, Entry))


def latest_entries(run: RunFolder) -> dict[StageKey, Entry]:
    """The last entry of each stage."""
    return {entry.key: entry for entry in read_ledger(run)}


def digests_of(artefacts: Mapping[str, Artefact], digests: Digests) -> dict[str, str]:
    """Digests by name, of the artefacts that exist."""
    by_name = {name: artefact.digest(digests) for name, artefact in artefacts.items()}
    return {name: digest for name, digest in by_name.items() if digest is not None}


@dataclass(frozen=True)
class RunReason:
    """The reason to run a stage."""

    reason: str
    again: bool
    """True where it was done before, and that no longer counts."""


def reason_to_run(stage: Stage, known: LatestEntries, digests: Digests) -> RunReason | None:
    """The reason to run a stage; None where it is done. A stage without outputs runs for what it prints."""
    entry = known.get(stage.key)
    if entry is None or not stage.writes or stage.writes.keys() != entry.outputs.keys():
        return RunReason("not done yet", again=False)
    now = digests_of(stage.reads, digests)
    # An evaluation needs no training questions: where their file is not here, they count as they were.
    away = [name for name, artefact in stage.reads.items() if isinstance(artefact, Questions) and name not in now]
    if changed := _changed(entry.inputs, now | {name: entry.inputs[name] for name in away if name in entry.inputs}):
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


def outdated_stages(
    planned: Sequence[Stage],
    reads: Iterable[Artefact],
    running: Collection[StageKey],
    known: LatestEntries,
    digests: Digests,
) -> tuple[str, list[Stage]]:
    """(what is out of date of these artefacts, the stages that bring them up to date); empty where nothing is.

    `planned`: every stage of the run. `running`: those that the command itself is.
    """
    needed, before = list(reads), list[Stage]()
    for stage in reversed(planned):
        if stage.key not in running and any(artefact in needed for artefact in stage.writes.values()):
            before.insert(0, stage)
            needed += stage.reads.values()
    for number, stage in enumerate(before):
        if problem := problem_of(stage, known, digests):
            return problem, before[number:]
    return "", []


def problem_of(stage: Stage, known: LatestEntries, digests: Digests) -> str:
    """The problem of a stage's outputs; empty where they may be used, or where their reader says that they are missing.

    A stage without an entry may have been run where the ledger does not see it: an index is shared by runs.
    """
    name = f"'{stage.title}' of round {stage.round}"
    due = reason_to_run(stage, known, digests)
    if due is not None and due.again:
        return f"{name} has to be done again ({due.reason})"
    trajectories = stage.writes.get("trajectories")
    if due is not None and isinstance(trajectories, Segments):
        store = TrajectoryStore(trajectories.folder)
        missing, planned = store.missing() if store.manifest() else (0, 0)
        if 0 < missing < planned:
            return f"{name} is not complete ({missing} of {planned} trajectories are missing)"
    return ""


def typed_command(stage: Stage) -> str:
    """A stage's command as a user types it."""
    return shell_line(stage.command).replace(shell_line(RATCHET), "ratchet")
