"""runs/X/ledger.jsonl: one line for every stage that was finished, append-only; of a stage's lines the last one counts."""

from __future__ import annotations

from ratchet.files import Segment, read_segment
from ratchet.runfolder import RunFolder
from rounds.records import Entry


def read_ledger(run: RunFolder) -> list[Entry]:
    """Every entry in the order of writing; none where there is no ledger yet."""
    return list(read_segment(run.ledger, Entry))


def latest(run: RunFolder) -> dict[tuple[int, str], Entry]:
    """By round and stage, the entry that counts."""
    return {(entry.round, entry.stage): entry for entry in read_ledger(run)}


def append(run: RunFolder, entry: Entry) -> None:
    with Segment(run.ledger) as segment:
        segment.append(entry)
