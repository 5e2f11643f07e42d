"""runs/X/ledger.jsonl: a line for every stage that was finished; of a stage's lines the last one counts.

A stage is done when its line is there and what it read and left is still on disk as the line says, so a finished run
is gone through in a moment, without a model or a server.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from datetime import datetime

from ratchet.files import Segment, read_segment
from ratchet.runfolder import RunFolder
from rounds.artefacts import Artefact, Digests
from rounds.facts import facts_of
from rounds.records import Entry
from rounds.stages import TEST, Stage

Latest = Mapping[tuple[int, str], Entry]
"""By round and stage, the entry that counts."""


def read_ledger(run: RunFolder) -> list[Entry]:
    """Every entry in the order of writing; none where there is no ledger yet."""
    return list(read_segment(run.ledger, Entry))


def latest(run: RunFolder) -> dict[tuple[int, str], Entry]:
    return {(entry.round, entry.stage): entry for entry in read_ledger(run)}


def digests_of(artefacts: Mapping[str, Artefact], digests: Digests) -> dict[str, str]:
    """By name, of what is there."""
    found = {name: artefact.digest(digests) for name, artefact in artefacts.items()}
    return {name: digest for name, digest in found.items() if digest is not None}


def to_do(stage: Stage, known: Latest, digests: Digests) -> str | None:
    """Why a stage has to be run; None where it is done. A stage that leaves nothing is run for what it shows."""
    entry = known.get((stage.round, stage.title))
    if entry is None or not stage.writes or stage.writes.keys() != entry.outputs.keys():
        return "not done yet"
    if changed := _changed(entry.inputs, digests_of(stage.reads, digests)):
        return f"made of other {changed}"
    if changed := broken(stage, entry, digests):
        return f"{changed} changed since it was done"
    return None


def broken(stage: Stage, entry: Entry, digests: Digests) -> str:
    """What the stage left and is no longer as it left it; empty where all is."""
    return _changed(entry.outputs, digests_of(stage.writes, digests))


def _changed(old: Mapping[str, str], new: Mapping[str, str]) -> str:
    return " and ".join(sorted(name for name in {*old, *new} if old.get(name) != new.get(name)))


def earlier_looks(stage: Stage, inputs: Mapping[str, str], known: Latest) -> list[int]:
    """Before a stage that tests: the other rounds whose adapters the same questions were tested with."""
    return [
        number
        for (number, title), entry in known.items()
        if stage.title.partition(":")[0] == title == TEST
        and number != stage.round
        and entry.inputs.get("questions") == inputs.get("questions")
    ]


def record(
    run: RunFolder, stage: Stage, inputs: dict[str, str], began: datetime, seconds: float, digests: Digests
) -> Entry:
    """Write down that a stage was finished; `inputs` are the digests from before it ran."""
    entry = Entry(
        round=stage.round,
        stage=stage.title,
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
