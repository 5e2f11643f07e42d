"""A round's trajectories and token rows as a data set that `datasets.load_dataset` reads: Parquet files and a card."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from ratchet.core.config import Config, ModelConfig, is_missing, written
from ratchet.core.errors import UserError
from ratchet.core.escape import markdown_template
from ratchet.core.files import write_atomic
from ratchet.core.plugins import short_name
from ratchet.core.progress import Progress
from ratchet.core.records import Conversation, Question, Selection, content_key
from ratchet.core.runfolder import RoundFolder
from ratchet.export.folders import CARD, export_folder
from ratchet.inference.tokenizer import load_tokenizer
from ratchet.questions.load import LoadedSplit, load_split
from ratchet.report.run_table import COLUMNS, trajectory_row
from ratchet.rewards.store import current_settings, stored_scores
from ratchet.sampling.store import TrajectoryStore
from ratchet.training.adapter import data_licences
from ratchet.training.rows import Rows

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
class DatasetMember:
    """The part of one experiment in the data set: its config, and its records of the round."""

    name: str
    """Empty where the config has no members."""
    config: Config
    folder: RoundFolder

    @cached_property
    def selection(self) -> Selection | None:
        return self.folder.read_selection()

    @cached_property
    def asked(self) -> LoadedSplit:
        return load_split(self.config.questions.train, self.config.seed)

    @property
    def store(self) -> TrajectoryStore:
        return TrajectoryStore(self.folder.trajectories)

    def keys(self, scope: Scope, learnt: Collection[str]) -> frozenset[str]:
        """The keys of the trajectories to export. UserError before there are any."""
        planned = self.store.keys()
        if not planned:
            raise UserError(f"{self.folder.trajectories}: has no trajectories; sample some first: `ratchet sample`")
        kept = {*learnt, *self.selection.kept} if self.selection else ()
        return frozenset(planned if scope == "all" else (key for key in planned if key in kept))


def export_dataset(
    run: str, number: int, scope: Scope, members: Sequence[DatasetMember], rows: Rows | None, out: Path
) -> Path:
    """Write the data set of a round of `run`, with its token rows. UserError before there are trajectories."""
    target = out / "dataset"
    learnt = set(rows.table["trajectory"].unique().to_pylist()) if rows else set()
    keys = {member.name: member.keys(scope, learnt) for member in members}
    inputs = {
        "scope": scope,
        "trajectories": content_key([[sorted(keys[member.name]), member.store.progress()] for member in members]),
        "selection": content_key([member.selection for member in members]),
        "scores": content_key([current_settings(member.folder.scores) for member in members]),
        "rows": rows.digest if rows else None,
    }

    def fill(folder: Path) -> None:
        statuses = _write_trajectories(folder / TRAJECTORIES, members, keys)
        if rows is not None:
            pq.write_table(rows.table, folder / ROWS, compression="zstd")
        write_atomic(folder / CARD, _card(run, number, scope, members, keys, statuses, rows))

    export_folder(target, inputs, fill)
    return target


def _write_trajectories(
    path: Path, members: Sequence[DatasetMember], keys: Mapping[str, frozenset[str]]
) -> Counter[str]:
    """Write them in batches; returns the number of each status."""
    scores = sorted({name for member in members for name in current_settings(member.folder.scores)})
    schema = pa.schema([*FIELDS.items(), *((name, pa.float64()) for name in scores if name not in FIELDS)])
    statuses: Counter[str] = Counter()
    with (
        pq.ParquetWriter(path, schema, compression="zstd") as writer,
        Progress("exporting trajectories", sum(map(len, keys.values()))) as shown,
    ):
        rows = (row for member in members for row in _rows_of(member, keys[member.name]))
        while batch := list(islice(rows, BATCH)):
            statuses.update(row["status"] for row in batch)
            writer.write_table(pa.Table.from_pylist(batch, schema))
            shown.advance(len(batch))
    return statuses


def _rows_of(member: DatasetMember, keys: frozenset[str]) -> Iterator[dict[str, Any]]:
    questions = {question.id: question for question in member.asked.questions}
    choices = member.selection.choices if member.selection else ()
    rewards = {key: reward for choice in choices for key, reward in choice.rewards.items()}
    kept = set(member.selection.kept) if member.selection else set()
    values: dict[str, dict[str, float | None]] = {}
    for (key, name), score in stored_scores(member.folder.scores, keys).items():
        values.setdefault(key, {})[name] = score.value
    decode = _decoder(member.config.models)
    for trajectory in member.store.read(keys):
        question = questions.get(trajectory.question_id, Question(id=trajectory.question_id, text=""))
        yield {
            "member": member.name,
            **trajectory_row(trajectory),
            "reward": rewards.get(trajectory.key),
            "kept": trajectory.key in kept if member.selection else None,
            "explanation": trajectory.explanation,
            "question_text": question.text,
            "right_answers": [*question.answers, *filter(None, (question.label, question.reference))],
            "searches": [
                search.model_dump(include={"role", "source", "query"})
                | {"passages": [one.id for one in search.passages]}
                for search in trajectory.searches
            ],
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


def _decoder(models: Mapping[str, ModelConfig]) -> Callable[[Conversation, int, int], str]:

    @cache
    def tokenizer_of(name: str) -> Any:
        model = models[name]
        return load_tokenizer(model.path, model.revision)

    def decode(conversation: Conversation, start: int, end: int) -> str:
        if conversation.text:
            return conversation.text[start:end]
        ids = list(conversation.ids[start:end])
        tokenizer = tokenizer_of(conversation.model)
        return str(tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    return decode


def _card(
    run: str,
    number: int,
    scope: Scope,
    members: Sequence[DatasetMember],
    keys: Mapping[str, frozenset[str]],
    statuses: Counter[str],
    rows: Rows | None,
) -> str:
    described = []
    for member in members:
        manifest, config, selection = member.store.manifest(), member.config, member.selection
        sampling, documents = config.sampling, () if is_missing(config.index) else config.index.documents
        described.append(
            {
                "name": member.name or config.folder.name,
                "source": member.asked.benchmark or Path(member.asked.source).name,
                "questions": len(member.asked.questions),
                "documents": tuple(Path(written(path)).name for path in documents),
                "system": short_name(config.system.name),
                "models": sorted({Path(model.path).name for model in config.models.values()}),
                "policy": member.store.system_and_policy()[1],
                "sampling": f"{manifest.samples if manifest else sampling.samples} trajectories a question, "
                f"temperature {sampling.temperature:g}, top-p {sampling.top_p:g}",
                "weights": selection.weights if selection else config.rewards.weights,
                "rule": selection.rule if selection else {},
                "causes": Counter(choice.cause for choice in selection.questions) if selection else Counter(),
                "planned": len(member.store.keys()),
                "exported": len(keys[member.name]),
            }
        )
    return markdown_template(TEMPLATE).render(
        run=run,
        round=number,
        scope=scope,
        members=described,
        statuses=statuses,
        rows=rows,
        licences=data_licences(member.config.questions.train for member in members),
    )
