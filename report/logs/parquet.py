"""Trajectories as Parquet: one file a store, one row a trajectory, written a row group at a time."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from report.logs.source import LoggedTrajectory, batches

ROWS = 200
"""Of a row group, so that memory stays small and a reader finds one trajectory without the others."""
SCHEMA = pa.schema(
    [
        ("trajectory", pa.string()),
        ("question_id", pa.string()),
        ("question", pa.string()),
        ("answers", pa.list_(pa.string())),
        ("label", pa.string()),
        ("kind", pa.string()),
        ("system", pa.string()),
        ("policy", pa.string()),
        ("sample", pa.int32()),
        ("seed", pa.int64()),
        ("status", pa.string()),
        ("answer", pa.string()),
        ("explanation", pa.string()),
        ("error", pa.string()),
        ("seconds", pa.float64()),
        ("reward", pa.float64()),
        ("kept", pa.bool_()),
        ("scores", pa.map_(pa.string(), pa.float64())),
        ("passages", pa.list_(pa.string())),
        ("events", pa.string()),
        (
            "conversations",
            pa.list_(
                pa.struct(
                    [
                        ("role", pa.string()),
                        ("model", pa.string()),
                        ("trainable", pa.bool_()),
                        ("retokenised", pa.bool_()),
                        ("ids", pa.list_(pa.int32())),
                        ("text", pa.string()),
                        ("spans", pa.string()),
                    ]
                )
            ),
        ),
    ]
)
"""`events` and `spans` are JSON, as in the run folder; `passages` are the ids of the supporting documents."""


def write_parquet(path: Path, logged: Iterable[LoggedTrajectory]) -> None:
    """Write one store's trajectories."""
    temporary = path.with_name(f".{path.name}.tmp")
    with pq.ParquetWriter(temporary, SCHEMA, compression="zstd") as writer:
        for group in batches(logged, ROWS):
            writer.write_table(pa.Table.from_pylist([_row(logged) for logged in group], SCHEMA))
    temporary.replace(path)


def _row(logged: LoggedTrajectory) -> dict[str, Any]:
    trajectory, question = logged.trajectory, logged.question
    fields = trajectory.model_dump(
        include={"system", "policy", "sample", "seed", "status", "answer", "explanation", "error", "seconds"}
    )
    return fields | {
        "trajectory": trajectory.key,
        "question_id": question.id,
        "question": question.text,
        "answers": list(question.answers),
        "label": question.label,
        "kind": question.kind,
        "reward": logged.reward,
        "kept": logged.kept,
        "scores": {name: score.value for name, score in logged.scores.items()},
        "passages": [passage.id for passage in trajectory.passages],
        "events": json.dumps([event.model_dump(mode="json") for event in trajectory.events], ensure_ascii=False),
        "conversations": [
            conversation.model_dump(include={"role", "model", "trainable", "retokenised", "ids", "text"})
            | {"spans": json.dumps([span.model_dump() for span in conversation.spans])}
            for conversation in trajectory.conversations
        ],
    }
