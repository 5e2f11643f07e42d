"""Whether what a command reads is up to date: by the ledger, as `ratchet status` says it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from ratchet.core.escape import shell_line
from ratchet.rounds.artefacts import Artefact, Digests, JsonlFiles
from ratchet.rounds.ledger import LatestEntries, reason_to_run
from ratchet.rounds.records import StageKey
from ratchet.rounds.stage import RATCHET, Stage
from ratchet.sampling.store import TrajectoryStore


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
    """Why a stage's outputs should not be used; empty where they may be, or where their reader says that they are
    missing.

    A stage without an entry may have been run where the ledger does not see it: an index is shared by runs.
    """
    name = f"'{stage.title}' of round {stage.round}"
    due = reason_to_run(stage, known, digests)
    if due is not None and due.again:
        return f"{name} has to be done again ({due.reason})"
    trajectories = stage.writes.get("trajectories")
    if due is not None and isinstance(trajectories, JsonlFiles):
        store = TrajectoryStore(trajectories.folder)
        missing, planned = store.missing() if store.manifest() else (0, 0)
        if 0 < missing < planned:
            return f"{name} is not complete ({missing} of {planned} trajectories are missing)"
    return ""


def typed_command(stage: Stage) -> str:
    """A stage's command as a user types it."""
    return shell_line(stage.command).replace(shell_line(RATCHET), "ratchet")
