"""runs/X/ledger.jsonl: a line for every stage that was finished; of a stage's lines the last one counts.

A stage is done when its line is there and what it read and wrote is still on disk as the line says, so a finished run
is gone through in a moment, without a model or a server.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ratchet.core.files import read_segment
from ratchet.core.runfolder import RunFolder
from ratchet.rounds.artefacts import Artefact, Digests, Questions
from ratchet.rounds.records import Entry, StageKey
from ratchet.rounds.stage import Stage

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
