"""One adapter for each role, or group of roles, instead of a shared one (`training.adapters`).

Each is trained like a shared one, on the rows of its roles, in `training/<group>/` of the round; a command that was
killed finishes what is missing. The round's adapter is then a folder with theirs and an index (`inference.adapters`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from inference.adapters import adapter_of_role
from ratchet.config import TrainedControl, TrainingConfig
from ratchet.config.training import GROUP_NAME
from ratchet.errors import UserError
from ratchet.runfolder import RoundFolder
from training.lessons import with_numbers, without_single_sides
from training.objectives.objective import load_objective
from training.rows import RowsFile, has_lessons, prepare_rows
from training.task import TrainingTask

Groups = Mapping[str, tuple[str, ...]]
"""By the name of a group, its roles."""


@dataclass(frozen=True)
class GroupFolder(RoundFolder):
    """round-<n>/training/<group>: training and adapter of one group of roles."""

    of: RoundFolder

    @classmethod
    def below(cls, folder: RoundFolder, group: str) -> GroupFolder:
        return cls(folder.training / group, folder)

    @property
    def number(self) -> int:
        return self.of.number

    @property
    def trained_control(self) -> TrainedControl | None:
        return self.of.trained_control


def prepare_task(task: TrainingTask) -> tuple[RowsFile, Mapping[str, str]]:
    """The rows, built or read, and trajectory key to question; see `training.rows.prepare_rows`. UserError where a
    group of roles has nothing to learn."""
    rows, questions = prepare_rows(task.rounds, task.folder.rows, task.training)
    role_groups(task.training, rows.table)
    return rows, questions


def role_groups(training: TrainingConfig, rows: pa.Table) -> Groups:
    """The groups that have rows; none where one adapter is shared. UserError where a role with rows is in no group."""
    if training.adapters == "shared":
        return {}
    roles = sorted(set(rows["role"].to_pylist()))
    wanted = {role: (role,) for role in roles} if training.adapters == "role" else training.adapters
    assert not isinstance(wanted, str)
    if odd := [name for name in wanted if not GROUP_NAME.fullmatch(name)]:
        raise UserError(
            f"training.adapters=role: the role {odd[0]!r} cannot name a folder; name groups of roles instead "
            "(training.adapters={name: [role, ...]})"
        )
    grouped = {role for group in wanted.values() for role in group}
    if left := [role for role in roles if role not in grouped]:
        raise UserError(
            f"training.adapters: the trainable role {left[0]} is in no group; add it to one, or set "
            f"system.roles.{left[0]}.trainable=false"
        )
    groups = {name: group for name, group in wanted.items() if any(role in roles for role in group)}
    needs_both_sides = load_objective(training).needs_both_sides
    for name, group in groups.items():
        if needs_both_sides and len(set(_of_roles(training, group, rows)["chosen"].to_pylist())) < 2:
            raise UserError(
                f"training.adapters: {name} has no rows of both better and worse ones to compare, which "
                f"training.objective={training.objective} learns from: put its roles into a group with others, or set "
                "training.objective=sft"
            )
    return groups


def _of_roles(training: TrainingConfig, roles: Sequence[str], rows: pa.Table) -> pa.Table:
    """The rows of some roles; of pairs, those in which these roles act on both sides."""
    mine = rows.filter(pc.is_in(rows["role"], pa.array(roles)))
    return without_single_sides(mine, load_objective(training))[0] if has_lessons(mine) else mine


def rows_of_roles(
    training: TrainingConfig, roles: Sequence[str], train: pa.Table, dev: pa.Table
) -> tuple[pa.Table, pa.Table]:
    """The (train, dev) rows of some roles, numbered among themselves where an objective needs numbers."""
    mine = [_of_roles(training, roles, table) for table in (train, dev)]
    if not has_lessons(train):
        return mine[0].combine_chunks(), mine[1].combine_chunks()
    both = with_numbers(pa.concat_tables(mine).drop_columns(["number", "example_number"]).combine_chunks())
    return both.slice(0, len(mine[0])).combine_chunks(), both.slice(len(mine[0])).combine_chunks()


def start_of_group(start: Path | None, name: str, roles: Sequence[str]) -> Path | None:
    """The adapter that a group's training starts from, of one that may hold several. UserError where its roles have
    different ones."""
    if start is None:
        return None
    adapters = {adapter_of_role(start, role) for role in roles}
    if len(adapters) > 1:
        raise UserError(
            f"{start}: the roles of {name} ({', '.join(roles)}) have different adapters there; train them in the "
            "groups that it has (training.adapters), or start from the base model (rounds.start=base)"
        )
    adapter = adapters.pop()
    return None if adapter is None else Path(adapter)
