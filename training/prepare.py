"""What a round trains on: its selection and trajectories, turned once into rows.parquet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from ratchet.config import Config, load_members
from ratchet.errors import UserError
from ratchet.records import Selection, content_key
from ratchet.runfolder import RoundFolder
from sampling.store import TrajectoryStore
from training.rows import RowsFile, build_rows, check_rows, missing, read_rows, rows_source, rows_table, write_rows

FORM = 1
"""Raise it when the same trajectories would give other rows, so that old rows.parquet files are made again."""


def kept_selection(folder: RoundFolder) -> Selection:
    """The round's selection. Raises UserError when there is none, or nothing was kept."""
    path, selection = folder.selection, folder.read_selection()
    if selection is None:
        raise UserError(f"{path}: not there; select the round's trajectories first: `python -m rewards`")
    if not selection.kept:
        reasons = Counter(choice.reason for choice in selection.questions)
        shown = "; ".join(f"{count} x {reason}" for reason, count in reasons.most_common(3))
        raise UserError(
            f"{path}: no trajectory was kept, so there is nothing to train on ({shown or 'no questions'}). Sample more "
            "or easier questions (sampling.samples, questions.train), or keep more (rewards.select, rewards.weights)"
        )
    return selection


@dataclass(frozen=True)
class Kept:
    """What one experiment kept in a round."""

    name: str
    """The member's name; empty where the config has none and trains on its own."""
    folder: RoundFolder
    selection: Selection

    @property
    def questions(self) -> dict[str, str]:
        """Kept trajectory key to question; two members may use the same id for different questions."""
        prefix = f"{self.name}/" if self.name else ""
        return {key: prefix + choice.question_id for choice in self.selection.questions for key in choice.kept}


def kept_of(config: Config, folder: RoundFolder) -> list[Kept]:
    """What a round trains on: the round's own selection, or the selections of the config's members. UserError."""
    folders = {
        name: RoundFolder(member.folder / folder.path.name) if name else folder
        for name, member in load_members(config).items()
    }
    return [Kept(name, one, kept_selection(one)) for name, one in folders.items()]


def prepare_rows(config: Config, folder: RoundFolder) -> tuple[RowsFile, Mapping[str, str]]:
    """The round's rows, made now or read if they were made of the same selections; and kept key to question."""
    kept = kept_of(config, folder)
    keys = [key for one in kept for key in one.selection.kept]
    source = content_key("rows", FORM, keys, config.training.max_length)
    if rows_source(folder.rows) != source:
        built = [_build(one.folder, one.selection.kept, config.training.max_length) for one in kept]
        table = pa.concat_tables([table for table, _ in built]).combine_chunks()
        write_rows(folder.rows, table, source, sum((left_out for _, left_out in built), Counter()))
    rows = read_rows(folder.rows)
    if not len(rows.table):
        raise UserError(
            f"{kept[0].folder.selection}: the kept trajectories give no rows to train on (left out: "
            f"{dict(rows.left_out)}); is any role trainable (system.roles.*.trainable), and training.max_length large "
            "enough?"
        )
    return rows, {key: question for one in kept for key, question in one.questions.items()}


def _build(folder: RoundFolder, kept: tuple[str, ...], max_length: int) -> tuple[pa.Table, Counter[str]]:
    """Trajectory by trajectory, so that memory holds the rows as Arrow and no more than one trajectory in full."""
    tables: dict[str, pa.Table] = {}
    reasons: dict[str, list[str]] = {}
    for trajectory in TrajectoryStore(folder.trajectories).read(kept):
        if trajectory.status != "failed":
            rows, left_out = build_rows([trajectory], [trajectory.key], max_length)
            check_rows(rows, {trajectory.key: trajectory})
            tables[trajectory.key] = rows_table(rows)
            reasons[trajectory.key] = [item.reason for item in left_out]
    for key in kept:
        if key not in tables:
            raise UserError(f"{folder.trajectories}: {missing(key)}")
    ordered = dict.fromkeys(kept)
    return (
        pa.concat_tables([tables[key] for key in ordered]).combine_chunks(),
        Counter(reason for key in ordered for reason in reasons[key]),
    )
