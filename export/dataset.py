"""A round's trajectories and token rows as a data set that `datasets.load_dataset` reads: Parquet files and a card."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
from jinja2 import Environment, StrictUndefined

from export.folders import CARD, export_folder
from inference.tokenizer import load_tokenizer
from questions.load import LoadedSplit, load_split
from ratchet.config import Config, is_missing, load_members, written
from ratchet.errors import UserError
from ratchet.files import write_atomic
from ratchet.plugins import short_name
from ratchet.progress import Progress
from ratchet.records import Conversation, Question, Selection, Trajectory, content_key
from ratchet.runfolder import RoundFolder, RunFolder
from report.run_table import COLUMNS, trajectory_row
from rewards.store import current_settings, stored_scores
from sampling.store import TrajectoryStore
from training.card import data_licences
from training.kept import learnt_rounds
from training.rows import RowsFile, prepare_rows

Scope = Literal["kept", "all"]
TRAJECTORIES, ROWS = "trajectories.parquet", "rows.parquet"
TEMPLATE = Path(__file__).with_name("dataset.md.j2")
BATCH = 100
"""Trajectories in memory at once."""
PART = pa.struct([("author", pa.string()), ("text", pa.string()), ("sampled", pa.bool_()), ("parsed", pa.bool_())])
CONVERSATION = pa.struct(
    [("role", pa.string()), ("model", pa.string()), ("trainable", pa.bool_()), ("parts", pa.list_(PART))]
)
SEARCH = pa.struct(
    [("role", pa.string()), ("source", pa.string()), ("query", pa.string()), ("passages", pa.list_(pa.string()))]
)
FIELDS = {
    "member": pa.string(),
    **{name: kind for name, kind in COLUMNS.items() if name != "round"},
    "explanation": pa.string(),
    "question_text": pa.string(),
    "right_answers": pa.list_(pa.string()),
    "searches": pa.list_(SEARCH),
    "conversations": pa.list_(CONVERSATION),
}


@dataclass(frozen=True)
class _Member:
    """What one experiment brings to the data set."""

    name: str
    config: Config
    folder: RoundFolder
    selection: Selection | None
    asked: LoadedSplit
    keys: frozenset[str]
    """Of the trajectories to export."""

    @property
    def store(self) -> TrajectoryStore:
        return TrajectoryStore(self.folder.trajectories)


def export_dataset(config: Config, number: int, scope: Scope, out: Path) -> Path:
    """Write the data set of a round. UserError before there are trajectories, and for `kept` before a selection."""
    target, own = out / "dataset", RunFolder(config.folder).round(number)
    folders = {
        name: own if not name else RoundFolder(member.folder / own.path.name)
        for name, member in load_members(config).items()
    }
    selections = {name: folder.read_selection() for name, folder in folders.items()}
    with_rows = scope == "kept" or all(selection is not None and selection.kept for selection in selections.values())
    rows = prepare_rows(learnt_rounds(config, own), own.rows, config.training)[0] if with_rows else None
    learnt = set(rows.table["trajectory"].unique().to_pylist()) if rows else set()
    members = []
    for name, member in load_members(config).items():
        planned, selection = TrajectoryStore(folders[name].trajectories).keys(), selections[name]
        if not planned:
            raise UserError(f"{folders[name].trajectories}: has no trajectories; sample some first: `ratchet sample`")
        kept = (learnt | set(selection.kept)) if selection else set()
        keys = frozenset(planned if scope == "all" else (key for key in planned if key in kept))
        asked = load_split(member.questions.train, member.seed)
        members.append(_Member(name, member, folders[name], selection, asked, keys))
    inputs = {
        "scope": scope,
        "trajectories": content_key([[sorted(one.keys), one.store.progress()] for one in members]),
        "selection": content_key([one.selection for one in members]),
        "scores": content_key([current_settings(one.folder.scores) for one in members]),
        "rows": rows.digest if rows else None,
    }

    def fill(folder: Path) -> None:
        statuses = _write_trajectories(folder / TRAJECTORIES, members)
        if rows is not None:
            pq.write_table(rows.table, folder / ROWS, compression="zstd")
        write_atomic(folder / CARD, _card(config, number, scope, members, statuses, rows))

    export_folder(target, inputs, fill)
    return target


def _write_trajectories(path: Path, members: Sequence[_Member]) -> Counter[str]:
    """Write them in batches; returns how many there are of each status."""
    scores = sorted({name for one in members for name in current_settings(one.folder.scores)})
    schema = pa.schema([*FIELDS.items(), *((name, pa.float64()) for name in scores if name not in FIELDS)])
    statuses: Counter[str] = Counter()
    total = sum(len(one.keys) for one in members)
    with (
        pq.ParquetWriter(path, schema, compression="zstd") as writer,
        Progress("exporting trajectories", total) as shown,
    ):
        batch: list[dict[str, Any]] = []

        def flush() -> None:
            writer.write_table(pa.Table.from_pylist(batch, schema))
            shown.advance(len(batch))
            batch.clear()

        for row in (row for one in members for row in _rows_of(one)):
            statuses[row["status"]] += 1
            batch.append(row)
            if len(batch) == BATCH:
                flush()
        flush()
    return statuses


def _rows_of(member: _Member) -> Iterator[dict[str, Any]]:
    questions = {question.id: question for question in member.asked.questions}
    choices = member.selection.questions if member.selection else ()
    rewards = {key: reward for choice in choices for key, reward in choice.rewards.items()}
    kept = set(member.selection.kept) if member.selection else set()
    values: dict[str, dict[str, float | None]] = {}
    for (key, name), score in stored_scores(member.folder.scores, member.keys).items():
        values.setdefault(key, {})[name] = score.value
    decode = _decoder(member.config)
    for trajectory in member.store.read(member.keys):
        question = questions.get(trajectory.question_id, Question(id=trajectory.question_id, text=""))
        yield {
            "member": member.name,
            **trajectory_row(trajectory),
            "reward": rewards.get(trajectory.key),
            "kept": trajectory.key in kept if member.selection else None,
            "explanation": trajectory.explanation,
            "question_text": question.text,
            "right_answers": _right_answers(question),
            "searches": _searches(trajectory),
            "conversations": [
                {
                    **conversation.model_dump(include={"role", "model", "trainable"}),
                    "parts": [
                        {**span.model_dump(), "text": decode(conversation, span.start, span.end)}
                        for span in conversation.spans
                    ],
                }
                for conversation in trajectory.conversations
            ],
            **values.get(trajectory.key, {}),
        }


def _right_answers(question: Question) -> list[str]:
    return [*question.answers, *filter(None, (question.label, question.reference))]


def _searches(trajectory: Trajectory) -> list[dict[str, Any]]:
    return [
        {
            **search.model_dump(include={"role", "source", "query"}),
            "passages": [found.id for found in search.passages],
        }
        for search in trajectory.searches
    ]


def _decoder(config: Config) -> Callable[[Conversation, int, int], str]:
    """The text of a part of a conversation."""

    @cache
    def tokenizer_of(name: str) -> Any:
        model = config.models[name]
        return load_tokenizer(model.path, model.revision)

    def decode(conversation: Conversation, start: int, end: int) -> str:
        if conversation.text:
            return conversation.text[start:end]
        ids = list(conversation.ids[start:end])
        tokenizer = tokenizer_of(conversation.model)
        return str(tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    return decode


def _card(
    config: Config,
    number: int,
    scope: Scope,
    members: Sequence[_Member],
    statuses: Counter[str],
    rows: RowsFile | None,
) -> str:
    environment = Environment(undefined=StrictUndefined, keep_trailing_newline=True, trim_blocks=True)
    described = []
    for one in members:
        manifest, sampling = one.store.manifest(), one.config.sampling
        described.append(
            {
                "name": one.name or Path(one.config.run).name,
                "source": one.asked.benchmark or Path(one.asked.source).name,
                "questions": len(one.asked.questions),
                "documents": []
                if is_missing(one.config.index)
                else [Path(written(d)).name for d in one.config.index.documents],
                "system": short_name(one.config.system.name),
                "models": sorted({Path(model.path).name for model in one.config.models.values()}),
                "policy": one.store.system_and_policy()[1],
                "sampling": f"{manifest.samples if manifest else sampling.samples} trajectories a question, "
                f"temperature {sampling.temperature:g}, top-p {sampling.top_p:g}",
                "weights": one.selection.weights if one.selection else one.config.rewards.weights,
                "rule": one.selection.rule if one.selection else {},
                "causes": Counter(choice.cause for choice in one.selection.questions) if one.selection else Counter(),
                "planned": len(one.store.keys()),
                "exported": len(one.keys),
            }
        )
    return environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        run=Path(config.run).name,
        round=number,
        scope=scope,
        members=described,
        statuses=statuses,
        rows=rows,
        licences=data_licences(member.questions.train for member in load_members(config).values()),
    )
