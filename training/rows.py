"""Token rows: what a kept trajectory teaches, as token ids and a loss mask, and their Parquet file.

One row per conversation of a trainable role (seed paper 002, section 3.2: one adapter for all trainable agents, the
loss on their own actions, each given everything before it). The mask is 1 exactly on tokens that the model itself
sampled in an action that was parsed; prompts, documents, templates, malformed actions and frozen roles are 0.

Rows are never cut: one longer than the limit is left out and counted, for half an action teaches the wrong end.
Equal rows (ties that took the same steps) all stay: in the paper's sum every kept trajectory counts once.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ratchet.errors import UserError
from ratchet.files import write_atomic
from ratchet.records import Conversation, TokenRow, Trajectory

FEWEST_QUESTIONS = 10
"""With fewer questions a held-out loss says nothing and costs data that is missed."""
SCHEMA = pa.schema(
    [
        ("trajectory", pa.string()),
        ("conversation", pa.int32()),
        ("role", pa.string()),
        ("ids", pa.list_(pa.int32())),
        ("loss_mask", pa.list_(pa.int8())),
        ("retokenised", pa.bool_()),
    ]
)


@dataclass(frozen=True)
class LeftOut:
    """A conversation of a trainable role that became no row."""

    trajectory: str
    conversation: int
    role: str
    tokens: int
    reason: Literal["too long", "no parsed action"]


def build_rows(
    trajectories: Iterable[Trajectory], kept: Collection[str], max_length: int
) -> tuple[list[TokenRow], list[LeftOut]]:
    """Rows of the kept trajectories in the order of `kept`, then of conversations; and what was left out.

    A trajectory that is stored twice (a job that ran twice, a failure that was done again) counts once, as the last
    record that is not a failure, which is the one that was scored. Raises UserError when one of `kept` is missing.
    """
    wanted = set(kept)
    stored = {t.key: t for t in trajectories if t.key in wanted and t.status != "failed"}
    rows: list[TokenRow] = []
    left_out: list[LeftOut] = []
    for key in dict.fromkeys(kept):
        if key not in stored:
            raise UserError(missing(key))
        for number, conversation in enumerate(stored[key].conversations):
            if not conversation.trainable:
                continue
            mask = loss_mask(conversation)
            reason: Literal["too long", "no parsed action"] | None = None
            if not any(mask):
                reason = "no parsed action"
            elif len(mask) > max_length:
                reason = "too long"
            if reason:
                left_out.append(LeftOut(key, number, conversation.role, len(mask), reason))
                continue
            rows.append(
                TokenRow(
                    trajectory=key,
                    conversation=number,
                    role=conversation.role,
                    ids=conversation.ids,
                    loss_mask=mask,
                    retokenised=conversation.retokenised,
                )
            )
    return rows, left_out


def missing(key: str) -> str:
    return (
        f"trajectory {key} was selected but is not among the round's trajectories; they were changed after the "
        "selection: run `python -m rewards` again"
    )


def loss_mask(conversation: Conversation) -> tuple[int, ...]:
    """1 on sampled tokens of parsed actions. The first token of a dialogue has no context to be predicted from."""
    mask = np.zeros(len(conversation.ids), dtype=np.int8)
    for span in conversation.spans:
        if span.sampled and span.parsed:
            mask[span.start : span.end] = 1
    if len(mask) and mask[0]:
        raise ValueError(f"conversation of {conversation.role}: its first token is marked as sampled")
    return tuple(mask.tolist())


def check_rows(rows: Iterable[TokenRow], trajectories: Mapping[str, Trajectory]) -> int:
    """Assert that the labels are what was sampled, id for id; returns how many actions were compared.

    The spans made the masks, so this looks at the other record of the same fact: the model calls of the trajectory's
    events. Raises ValueError, which would be a fault of ours.
    """
    actions = 0
    for row in rows:
        trajectory = trajectories[row.trajectory]
        conversation = trajectory.conversations[row.conversation]
        where = f"row {row.trajectory}/{row.conversation} ({row.role})"
        if row.ids != conversation.ids or not conversation.trainable:
            raise ValueError(f"{where}: differs from its conversation")
        labels = {at: row.ids[at] for at, learnt in enumerate(row.loss_mask) if learnt}
        if not labels or 0 in labels:
            raise ValueError(f"{where}: no loss token, or one without context")
        parsed = {(span.start, span.end) for span in conversation.spans if span.sampled and span.parsed}
        sampled: dict[int, int] = {}
        for call in trajectory.model_calls:
            if call.conversation == row.conversation and (call.start, call.end) in parsed:
                if call.parse == "malformed":
                    raise ValueError(f"{where}: a malformed action at {call.start} is marked as parsed")
                sampled |= dict(enumerate(conversation.ids[call.start : call.end], call.start))
                actions += 1
        if sampled != labels:
            raise ValueError(f"{where}: labels differ from the sampled ids")
    return actions


def rows_table(rows: Iterable[TokenRow]) -> pa.Table:
    """Rows as an Arrow table: 5 bytes a token, where Python's own objects take 70."""
    listed = list(rows)
    for row in listed:
        if not any(row.loss_mask) or len(row.loss_mask) != len(row.ids):
            raise ValueError(f"row {row.trajectory}/{row.conversation} has no loss token, or a mask of another length")
    return pa.table({name: [getattr(row, name) for row in listed] for name in SCHEMA.names}, schema=SCHEMA)


def table_rows(table: pa.Table) -> Iterator[TokenRow]:
    for batch in table.to_batches(max_chunksize=256):
        for row in batch.to_pylist():
            yield TokenRow.model_validate(row)


def rows_digest(table: pa.Table) -> str:
    """sha256 of the rows' content in order, whatever the Parquet file's encoding."""
    digest = hashlib.sha256()
    for batch in table.to_batches(max_chunksize=256):
        for row in range(len(batch)):
            names = [str(batch.column(name)[row].as_py()) for name in SCHEMA.names if name not in ("ids", "loss_mask")]
            digest.update("\0".join(names).encode())
            for name in ("ids", "loss_mask"):
                digest.update(batch.column(name)[row].values.to_numpy().tobytes())
    return digest.hexdigest()


@dataclass(frozen=True)
class RowsFile:
    table: pa.Table
    digest: str
    left_out: dict[str, int]
    """Reason to number of conversations."""


def write_rows(path: Path, table: pa.Table, source: str, left_out: Mapping[str, int]) -> None:
    """Write atomically. `source` says what the rows were made of; `rows_source` reads it back."""
    sink = pa.BufferOutputStream()
    metadata = {"source": source, "digest": rows_digest(table), "left_out": json.dumps(dict(left_out))}
    pq.write_table(table.replace_schema_metadata(metadata), sink, compression="zstd")
    write_atomic(path, sink.getvalue().to_pybytes())


def rows_source(path: Path) -> str | None:
    """What a rows file was made of; None where there is none, or it is damaged and must be made again."""
    try:
        metadata = pq.read_schema(path).metadata or {}
    except (OSError, pa.ArrowInvalid):
        return None
    return metadata.get(b"source", b"").decode() or None


def read_rows(path: Path) -> RowsFile:
    """The rows, checked against their digest."""
    way_out = "delete the file, and the next training makes it again"
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise UserError(f"{path}: cannot read the rows ({error}); {way_out}") from error
    metadata = table.schema.metadata or {}
    table = table.replace_schema_metadata(None)
    digest = metadata.get(b"digest", b"").decode()
    if not table.schema.equals(SCHEMA) or rows_digest(table) != digest:
        raise UserError(f"{path}: the rows were changed; {way_out}")
    return RowsFile(table, digest, json.loads(metadata[b"left_out"]))


def split_rows(
    table: pa.Table, question_of: Mapping[str, str], fraction: float, seed: int
) -> tuple[pa.Table, pa.Table]:
    """(train, dev) rows: a share `fraction` of the questions is held out, whole questions at a time.

    Which ones is decided by a hash of seed and question id, so more rows or another order move no question from one
    side to the other needlessly. `question_of` maps trajectory key to question id.
    """
    keys = table["trajectory"].to_pylist()
    questions = sorted(
        {question_of[key] for key in keys}, key=lambda q: hashlib.sha256(f"{seed}\0{q}".encode()).digest()
    )
    held = set(questions[: max(1, round(fraction * len(questions)))])
    if fraction == 0 or len(questions) < FEWEST_QUESTIONS:
        held = set()
    is_dev = pa.array([question_of[key] in held for key in keys], type=pa.bool_())
    return table.filter(pc.invert(is_dev)), table.filter(is_dev)
