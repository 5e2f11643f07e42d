"""runs/X/ledger.jsonl: a line for every stage that was finished; of a stage's lines the last one counts.

A stage is done when its line is there and what it read and left is still on disk as the line says, so a finished run
is gone through in a moment, without a model or a server.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from ratchet.files import Segment, read_segment
from ratchet.runfolder import RunFolder
from rounds.artefacts import Artefact, Digests
from rounds.facts import facts_of
from rounds.records import Entry, StageKey
from rounds.stages import Stage

Latest = Mapping[StageKey, Entry]
"""By stage, the entry that counts."""


def read_ledger(run: RunFolder) -> list[Entry]:
    """Every entry in the order of writing; none where there is no ledger yet."""
    return list(read_segment(run.ledger, Entry))


def latest(run: RunFolder) -> dict[StageKey, Entry]:
    return {entry.key: entry for entry in read_ledger(run)}


def digests_of(artefacts: Mapping[str, Artefact], digests: Digests) -> dict[str, str]:
    """By name, of what is there."""
    found = {name: artefact.digest(digests) for name, artefact in artefacts.items()}
    return {name: digest for name, digest in found.items() if digest is not None}


@dataclass(frozen=True)
class Due:
    """Why a stage has to be run."""

    reason: str
    again: bool
    """Whether it was done before, and that no longer counts."""


def to_do(stage: Stage, known: Latest, digests: Digests) -> Due | None:
    """None where the stage is done. A stage that leaves nothing is run for what it shows."""
    entry = known.get(stage.key)
    if entry is None or not stage.writes or stage.writes.keys() != entry.outputs.keys():
        return Due("not done yet", again=False)
    if changed := _changed(entry.inputs, digests_of(stage.reads, digests)):
        return Due(f"made of other {changed}", again=True)
    if changed := broken(stage, entry, digests):
        return Due(f"{changed} changed since it was done", again=True)
    return None


def broken(stage: Stage, entry: Entry, digests: Digests) -> str:
    """What the stage left and is no longer as it left it; empty where all is."""
    return _changed(entry.outputs, digests_of(stage.writes, digests))


def _changed(old: Mapping[str, str], new: Mapping[str, str]) -> str:
    return " and ".join(sorted(name for name in {*old, *new} if old.get(name) != new.get(name)))


def earlier_looks(stage: Stage, inputs: Mapping[str, str], known: Latest) -> list[int]:
    """Before a stage that tests: the other rounds whose adapters the same questions were tested with."""
    if stage.id not in ("test.sample", "test"):
        return []
    return [
        key.round
        for key, entry in known.items()
        if key.id == "test" and key.round != stage.round and entry.inputs.get("questions") == inputs.get("questions")
    ]


def record(
    run: RunFolder, stage: Stage, inputs: dict[str, str], began: datetime, seconds: float, digests: Digests
) -> Entry:
    """Write down that a stage was finished; `inputs` are the digests from before it ran."""
    entry = Entry(
        round=stage.round,
        stage=stage.id,
        member=stage.member,
        inputs=inputs,
        outputs=digests_of(stage.writes, digests),
        facts=facts_of(stage),
        began=began.isoformat(timespec="seconds"),
        seconds=round(seconds, 3),
        machine=platform.node(),
    )
    digests.save()
    with Segment(run.ledger) as segment:
        segment.append(entry)
    return entry
