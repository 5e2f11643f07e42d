"""Token rows: what the kept trajectories of a round teach, as token ids and a loss mask, and their Parquet file.

One row per conversation of a trainable role (Salemi et al. 2025, arXiv 2506.10844, section 3.2: one adapter for all
trainable agents, the loss on their own actions, each given everything before it). The mask is 1 exactly on tokens that
the model itself sampled in an action that was parsed; prompts, documents, templates, malformed actions and frozen roles
are 0. `training.labels` has what settings change of this.

Rows are never cut: one longer than the limit is skipped and counted, because half an action teaches a wrong end.
Equal rows (ties that took the same steps) all stay: in the paper's sum every kept trajectory counts once.

Objectives other than `sft` learn from more trajectories than the kept ones, or from single actions. Their rows say in
further columns what is learnt (`training.lessons`); a row of an action ends with it.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ratchet.core.config import Config, TrainingConfig, load_members
from ratchet.core.errors import UserError
from ratchet.core.files import write_atomic
from ratchet.core.records import Record, Selection, Trajectory, content_key
from ratchet.core.runfolder import RoundFolder, segment_digest
from ratchet.rewards.summary import single_answer
from ratchet.sampling.store import TrajectoryStore
from ratchet.training.labels import Labels, labels_of, side_calls
from ratchet.training.lessons import (
    LESSON_FIELDS,
    action_lessons,
    check_lessons,
    is_plain,
    kept_roles,
    no_lessons_message,
    trajectory_lessons,
    with_lessons,
    without_single_sides,
)
from ratchet.training.objectives.objective import Objective, load_objective
from ratchet.training.schedule import held_out

ROWS_VERSION = 2
"""Raise it when the same trajectories would give other rows, so that old rows.parquet files are rebuilt."""
SCHEMA = pa.schema(
    [
        ("trajectory", pa.string()),
        ("conversation", pa.int32()),
        ("role", pa.string()),
        ("ids", pa.list_(pa.int32())),
        ("loss_mask", pa.list_(pa.int8())),
    ]
)
LESSON_SCHEMA = pa.schema([*SCHEMA, *LESSON_FIELDS])

FIX = "delete the file, and the next training rebuilds it"

EVERY_ACTION = Labels()
SIDE_CALL = "side call of the program (training.conversations)"
"""The reason for which a conversation gives no row."""

Built = tuple[pa.Table, Counter[str]]
"""Rows, and the number of skipped conversations by reason."""


class TokenRow(Record):
    """One conversation as a training example: next-token loss on ids where loss_mask is 1."""

    trajectory: str
    conversation: int
    role: str
    ids: tuple[int, ...]
    loss_mask: tuple[int, ...]
    """Same length as ids; 1 exactly on parsed, sampled tokens of a trainable role."""
    question: str = ""
    """Question of the trajectory, behind the member's name where the config has members; empty in rows of `sft`."""
    reward: float | None = None
    """Reward of the trajectory, or of the action; None in rows of `sft`."""
    weight: float = 1.0
    """Factor on the loss of the row or of its example; below 0, the row is made less likely."""
    example: str = ""
    """The name of the row's example, whose rows enter the loss together. Empty: the row stands alone."""
    chosen: bool = True
    """True makes the row more likely (chosen, desirable), False less (rejected, undesirable)."""
    action: int | None = None
    """The row teaches only the action that starts at this token; None: every action of the conversation."""


def read_kept_selection(folder: RoundFolder) -> Selection:
    """The round's selection. Raises UserError when there is none, or nothing was kept."""
    path, selection = folder.selection, folder.read_selection()
    if selection is None:
        raise UserError(f"{path}: does not exist; select the round's trajectories first: `ratchet score`")
    if not selection.kept:
        reasons = Counter(choice.reason for choice in selection.choices)
        shown = "; ".join(f"{count} x {reason}" for reason, count in reasons.most_common(3))
        raise UserError(
            f"{path}: no trajectory was kept, so there is nothing to train on ({shown or 'no questions'}). Sample more "
            "or easier questions (sampling.samples, questions.train), or keep more (rewards.select, rewards.weights)"
        )
    return selection


@dataclass(frozen=True)
class KeptRound:
    """The trajectories of a round that are trained on."""

    folder: RoundFolder
    selection: Selection
    member: str = ""
    """The name of the config's member that sampled it; empty where the config has none and trains on its own."""

    @property
    def prefix(self) -> str:
        """A prefix for question ids: two members may use the same id for different questions."""
        return f"{self.member}/" if self.member else ""

    @property
    def store(self) -> TrajectoryStore:
        return TrajectoryStore(self.folder.trajectories)

    @property
    def digest(self) -> str:
        """The digest of what is stored and kept: a trajectory may have been sampled again under its key."""
        by_role = [(choice.kept, choice.learners) for choice in self.selection.roles]
        kept = (self.selection.kept, *([by_role] if by_role else []))
        return content_key([segment_digest(file) for file in self.store.segments], *kept)

    @property
    def questions(self) -> dict[str, str]:
        """Trajectory key to question, of every question that something is kept of."""
        return {
            key: self.prefix + choice.question_id
            for choice in self.selection.choices
            if choice.kept
            for key in (*choice.kept, *choice.rewards)
        }


def read_kept(config: Config, folder: RoundFolder) -> list[KeptRound]:
    """Read what a round or control trains on: its own kept trajectories, or those of the same round of the config's
    members. UserError where a selection is missing or kept nothing."""
    folders = {"": folder}
    if config.members:
        folders = {name: RoundFolder(own.folder / folder.path.name) for name, own in load_members(config).items()}
    return [KeptRound(own, read_kept_selection(own), name) for name, own in folders.items()]


def warn_of_single_answer(kept: Iterable[KeptRound]) -> None:
    """Print a warning where all that is trained on gives the same answer."""
    if warning := single_answer(
        [best for part in kept for best in part.store.open(part.selection.kept).outlines.values()]
    ):
        print(f"warning: {warning}", file=sys.stderr)


def check_ids_are_known(trajectory: Trajectory) -> None:
    """Raises UserError where a closed model, whose token ids are not known, played a trainable role."""
    for conversation in trajectory.conversations:
        if conversation.trainable and conversation.text:
            raise UserError(
                f"trajectory {trajectory.key} cannot be trained on: its role {conversation.role} was played by the "
                f"closed model {conversation.model!r} (engine: chat-api), whose token ids are not known"
            )


# Rows


def build_rows(
    trajectory: Trajectory, max_length: int, labels: Labels = EVERY_ACTION, conversations: str = "all"
) -> tuple[list[TokenRow], list[str]]:
    """Rows of a trajectory, in the order of its conversations; and why others of trainable roles became no row.

    `conversations`: which of them, as for `side_calls`.
    Raises UserError where it was recorded as text.
    """
    check_ids_are_known(trajectory)
    left_out = side_calls(trajectory, conversations)
    rows: list[TokenRow] = []
    skipped: list[str] = []
    for number, conversation in enumerate(trajectory.conversations):
        if not conversation.trainable:
            continue
        if number in left_out:
            skipped.append(SIDE_CALL)
            continue
        mask = labels.mask(conversation)
        if not any(mask) or len(mask) > max_length:
            skipped.append("too long" if any(mask) else "no parsed action")
            continue
        row = TokenRow(
            trajectory=trajectory.key,
            conversation=number,
            role=conversation.role,
            ids=conversation.ids,
            loss_mask=mask,
        )
        rows.append(row)
    return rows, skipped


def check_rows(rows: Iterable[TokenRow], trajectories: Mapping[str, Trajectory], labels: Labels = EVERY_ACTION) -> int:
    """Assert that the labels are what was sampled, id for id; returns how many actions were compared.

    The spans made the masks, so this reads the other record of the same fact: the model calls of the trajectory's
    events. Raises ValueError, which would be a bug.
    """
    actions = 0
    for row in rows:
        trajectory = trajectories[row.trajectory]
        conversation = trajectory.conversations[row.conversation]
        where = f"row {row.trajectory}/{row.conversation} ({row.role})"
        if row.ids != conversation.ids[: len(row.ids)] or not conversation.trainable:
            raise ValueError(f"{where}: differs from its conversation")
        if row.action is None and len(row.ids) != len(conversation.ids):
            raise ValueError(f"{where}: is cut")
        learnt = {at: row.ids[at] for at, is_learnt in enumerate(row.loss_mask) if is_learnt}
        if not learnt or 0 in learnt:
            raise ValueError(f"{where}: no loss token, or one without context")
        parsed = {(start, end) for start, end in conversation.actions() if row.action in (None, start)}
        unlearnt = {
            at
            for span in conversation.spans
            if not span.sampled or (span.thought and not labels.thoughts)
            for at in range(span.start, span.end)
        }
        sampled: dict[int, int] = {}
        for call in trajectory.model_calls:
            if call.conversation == row.conversation and (call.start, call.end) in parsed:
                if call.parse == "malformed":
                    raise ValueError(f"{where}: a malformed action at {call.start} is marked as parsed")
                sampled |= {at: conversation.ids[at] for at in range(call.start, call.end) if at not in unlearnt}
                actions += 1
        if labels.whole:
            sampled = dict(enumerate(conversation.ids[1:], 1))
        if not (learnt.items() <= sampled.items() if labels.pieces else learnt == sampled):
            raise ValueError(f"{where}: labels differ from the sampled ids")
    return actions


def rows_table(rows: Sequence[TokenRow]) -> pa.Table:
    """Rows as an Arrow table: 5 bytes a token, where Python's own objects take 70."""
    for row in rows:
        if not any(row.loss_mask) or len(row.loss_mask) != len(row.ids):
            raise ValueError(f"row {row.trajectory}/{row.conversation} has no loss token, or a mask of another length")
    return pa.table({name: [getattr(row, name) for row in rows] for name in SCHEMA.names}, schema=SCHEMA)


def has_lessons(table: pa.Table) -> bool:
    """True where the rows have the columns of LESSON_SCHEMA."""
    return "example" in table.column_names


def table_rows(table: pa.Table) -> Iterator[TokenRow]:
    """The rows of an Arrow table."""
    for batch in table.to_batches(max_chunksize=256):
        for row in batch.to_pylist():
            yield TokenRow.model_validate(row)


def rows_digest(table: pa.Table) -> str:
    """sha256 of the rows' content in order, whatever the Parquet file's encoding."""
    digest = hashlib.sha256()
    for batch in table.to_batches(max_chunksize=256):
        for row in range(len(batch)):
            names = [
                str(batch.column(name)[row].as_py()) for name in table.schema.names if name not in ("ids", "loss_mask")
            ]
            digest.update("\0".join(names).encode())
            for name in ("ids", "loss_mask"):
                digest.update(batch.column(name)[row].values.to_numpy().tobytes())
    return digest.hexdigest()


@dataclass(frozen=True)
class Rows:
    """The rows of a round."""

    table: pa.Table
    digest: str
    skipped: dict[str, int]
    """Reason to number of conversations."""
    kept: tuple[KeptRound, ...] = ()
    """The kept trajectories that the rows were made of; empty where only the file was read."""

    @property
    def questions(self) -> dict[str, str]:
        return {key: question for part in self.kept for key, question in part.questions.items()}


def write_rows(path: Path, table: pa.Table, source: str, skipped: Mapping[str, int]) -> None:
    """Write atomically. `source` is the digest of what the rows were built from; `rows_source` reads it back."""
    sink = pa.BufferOutputStream()
    metadata = {"source": source, "digest": rows_digest(table), "left_out": json.dumps(dict(skipped))}
    pq.write_table(table.replace_schema_metadata(metadata), sink, compression="zstd")
    write_atomic(path, sink.getvalue().to_pybytes())


def rows_source(path: Path) -> str | None:
    """The digest of what a rows file was built from; None where there is none, or it is damaged and must be rebuilt."""
    try:
        metadata = pq.read_schema(path).metadata or {}
        return metadata.get(b"source", b"").decode() or None
    except (OSError, ValueError):
        return None


@contextmanager
def open_rows(path: Path) -> Iterator[pq.ParquetFile | None]:
    """The file, not checked against its digest; None where there is none. What reads it may raise in the block."""
    if not path.exists():
        yield None
        return
    try:
        with pq.ParquetFile(path) as file:
            yield file
    except (OSError, ValueError, KeyError) as error:  # pyarrow's own errors derive from these
        raise UserError(f"{path}: cannot read the rows ({error}); {FIX}") from error


def read_rows(path: Path) -> Rows:
    """The rows, checked against their digest."""
    try:
        table = pq.read_table(path)
        metadata = table.schema.metadata or {}
        digest, left_out = metadata.get(b"digest", b"").decode(), json.loads(metadata.get(b"left_out", b"{}"))
        table = table.replace_schema_metadata(None)
        is_intact = any(map(table.schema.equals, (SCHEMA, LESSON_SCHEMA))) and rows_digest(table) == digest
    # A text that is not UTF-8 is a ValueError.
    except (OSError, ValueError, RecursionError, pa.ArrowException) as error:
        raise UserError(f"{path}: cannot read the rows ({error}); {FIX}") from error
    if not is_intact:
        raise UserError(f"{path}: the rows were changed; {FIX}")
    return Rows(table, digest, left_out)


def prepare_rows(config: Config, folder: RoundFolder, kept: Sequence[KeptRound] = ()) -> Rows:
    """The rows that a round, or one of its controls, trains on, built now or read if they were built from the same
    selections and trajectories. `kept`: what `read_kept` gives, where that was read before.

    Raises UserError where nothing was kept, or the objective finds nothing to learn.
    """
    kept, path, training = kept or read_kept(config, folder), folder.rows, config.training
    objective = load_objective(training)
    selections = [part.selection for part in kept]
    check_lessons(objective, selections)
    stored = [part.digest for part in kept]
    further: list[Any] = [training.loss_on] if training.loss_on != "actions" else []
    further += [training.role_weights] if training.role_weights else []
    further += [training.conversations] if training.conversations != "main" else []
    source = content_key("rows", ROWS_VERSION, stored, training.max_length, training.thoughts, *further)
    plain = all(is_plain(objective, selection) for selection in selections)
    if not plain:
        choices = [choice for selection in selections for choice in selection.trained]
        source = content_key(source, objective.name, objective.compares_actions, choices)
    if rows_source(path) != source:
        labels = labels_of(config)
        if plain:
            built = [_build_plain_table(part, training, labels) for part in kept]
        elif objective.compares_actions:
            built = [_build_action_table(part, objective, training, labels) for part in kept]
        else:
            built = [_build_lesson_table(part, objective, training, labels) for part in kept]
        table = pa.concat_tables([table for table, _ in built]).combine_chunks()
        write_rows(path, table, source, sum((skipped for _, skipped in built), Counter()))
    rows = replace(read_rows(path), kept=tuple(kept))
    if objective.needs_both_sides and len(set(rows.table["chosen"].to_pylist())) < 2:
        raise UserError(no_lessons_message(objective, selections, rows.skipped))
    if not len(rows.table):
        raise UserError(
            f"{kept[0].folder.selection}: the kept trajectories give no rows to train on (skipped: "
            f"{dict(rows.skipped)}); is any role trained (system.roles.*.trainable, training.role_weights, "
            "training.conversations), and training.max_length large enough?"
        )
    return rows


def _build_plain_table(kept: KeptRound, training: TrainingConfig, labels: Labels) -> Built:
    table, skipped = _build_table(kept, kept.selection.kept, training, labels)
    learnt = kept_roles(kept.selection)
    is_learnt = [(key, role) in learnt or (key, "") in learnt for key, role in _trajectory_and_role(table)]
    return table.filter(pa.array(is_learnt, pa.bool_())), skipped


def _build_lesson_table(kept: KeptRound, objective: Objective, training: TrainingConfig, labels: Labels) -> Built:
    lessons = trajectory_lessons(kept.selection, objective, kept.prefix)
    table, skipped = _build_table(kept, tuple(key for key, _ in lessons), training, labels)
    found = [lessons.get((key, role)) or lessons.get((key, "")) for key, role in _trajectory_and_role(table)]
    own = [lesson for lesson in found if lesson is not None]
    table = table.filter(pa.array([lesson is not None for lesson in found], pa.bool_()))
    table, single = without_single_sides(with_lessons(table, own, [None] * len(own)), objective)
    return table, skipped + single


def _trajectory_and_role(table: pa.Table) -> Iterator[tuple[str, str]]:
    return zip(table["trajectory"].to_pylist(), table["role"].to_pylist(), strict=True)


def _build_action_table(kept: KeptRound, objective: Objective, training: TrainingConfig, labels: Labels) -> Built:
    """Rows of single actions: each is its conversation up to the end of the action."""
    every = action_lessons(kept.store.read(kept.questions), kept.selection, objective, kept.prefix)
    lessons = [(taken, lesson) for taken, lesson in every if training.role_weights.get(taken.action.role, 1)]
    taught: dict[str, list[int]] = {}
    for number, (taken, _) in enumerate(lessons):
        taught.setdefault(taken.trajectory, []).append(number)
    tables: dict[int, pa.Table] = {}
    skipped: Counter[str] = Counter()
    for trajectory in kept.store.read(taught):
        left_out = side_calls(trajectory, training.conversations)
        for number in taught[trajectory.key]:
            taken, lesson = lessons[number]
            if taken.action.conversation in left_out:
                skipped[SIDE_CALL] += 1
                continue
            start, end = taken.action.start, taken.action.end
            if end > training.max_length:
                skipped["too long"] += 1
                continue
            conversation = trajectory.conversations[taken.action.conversation]
            mask = (0,) * start + labels.mask(conversation)[start:end]
            if not any(mask):
                skipped["no value to learn"] += 1
                continue
            row = TokenRow(
                trajectory=trajectory.key,
                conversation=taken.action.conversation,
                role=conversation.role,
                ids=conversation.ids[:end],
                loss_mask=mask,
                action=start,
            )
            check_rows([row], {trajectory.key: trajectory}, labels)
            tables[number] = with_lessons(rows_table([row]), [lesson], [start])
    ordered = pa.concat_tables([LESSON_SCHEMA.empty_table(), *(tables[number] for number in sorted(tables))])
    table, single = without_single_sides(ordered, objective)
    return table, skipped + single


def _build_table(kept: KeptRound, keys: tuple[str, ...], training: TrainingConfig, labels: Labels) -> Built:
    """Build them trajectory by trajectory, so that memory holds Arrow rows and one trajectory in full."""
    tables: dict[str, pa.Table] = {}
    reasons: dict[str, list[str]] = {}
    for trajectory in kept.store.read(keys):
        if trajectory.status != "failed":
            rows, skipped = build_rows(trajectory, training.max_length, labels, training.conversations)
            check_rows(rows, {trajectory.key: trajectory}, labels)
            rows = [row for row in rows if training.role_weights.get(row.role, 1)]
            tables[trajectory.key] = rows_table(rows)
            reasons[trajectory.key] = skipped
    if missing := [key for key in keys if key not in tables]:
        raise UserError(
            f"{kept.store.folder}: trajectory {missing[0]} was selected but is not among the round's trajectories; "
            "they were changed after the selection: run `ratchet score` again"
        )
    ordered = dict.fromkeys(keys)
    return (
        pa.concat_tables([SCHEMA.empty_table(), *(tables[key] for key in ordered)]).combine_chunks(),
        Counter(reason for key in ordered for reason in reasons[key]),
    )


def split_rows(
    table: pa.Table, question_of: Mapping[str, str], fraction: float, seed: int
) -> tuple[pa.Table, pa.Table]:
    """(train, dev) rows: a share `fraction` of the questions is held out, with all rows of a question on one side.

    Which ones is decided by a hash of seed and question id, so more rows or another order move no question from one
    side to the other needlessly. `question_of` maps trajectory key to question id.
    """
    keys = table["trajectory"].to_pylist()
    questions = sorted(
        {question_of[key] for key in keys}, key=lambda q: hashlib.sha256(f"{seed}\0{q}".encode()).digest()
    )
    held = set(questions[: held_out(len(questions), fraction)])
    is_dev = pa.array([question_of[key] in held for key in keys], type=pa.bool_())
    return table.filter(pc.invert(is_dev)), table.filter(is_dev)


def row_lengths(table: pa.Table) -> list[int]:
    """Tokens of each row."""
    return list(pc.list_value_length(table["ids"]).to_pylist())


def loss_tokens(table: pa.Table) -> int:
    """The number of tokens with loss."""
    return int(pc.sum(pc.list_flatten(table["loss_mask"])).as_py() or 0)
