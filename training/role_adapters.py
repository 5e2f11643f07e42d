"""One adapter for each role, or group of roles, instead of a shared one (`training.adapters`).

Each is trained like a shared one, on the rows of its roles, in `training/<group>/` of the round; a command that was
killed finishes what is missing. The round's adapter is then a folder with theirs and an index (`inference.adapters`).
"""

from __future__ import annotations

import shutil
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from inference.adapters import adapter_of_role, write_index
from questions.leakage import TRAINING_QUESTIONS, training_question_digests
from ratchet.config import TrainedControl, TrainingConfig
from ratchet.config.training import GROUP_NAME
from ratchet.errors import UserError
from ratchet.files import disk_error, write_atomic, write_json
from ratchet.runfolder import RoundFolder
from training.adapter import read_facts
from training.card import FACTS, model_card
from training.checkpoints import publish_folder
from training.examples import needs_both_sides, without_single_sides
from training.publication import TrainingJob, published_folder, shared_facts
from training.rows import has_lessons

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
    for name, group in groups.items():
        if needs_both_sides(training) and len(set(_of_roles(training, group, rows)["chosen"].to_pylist())) < 2:
            raise UserError(
                f"training.adapters: {name} has no rows of both better and worse ones to compare, which "
                f"training.objective={training.objective} learns from: put its roles into a group with others, or set "
                "training.objective=sft"
            )
    return groups


def _of_roles(training: TrainingConfig, roles: Sequence[str], rows: pa.Table) -> pa.Table:
    """The rows of some roles; of pairs, those in which these roles act on both sides."""
    mine = rows.filter(pc.is_in(rows["role"], pa.array(roles)))
    return without_single_sides(mine, Counter())[0] if training.objective == "dpo" else mine


def rows_of_roles(
    training: TrainingConfig, roles: Sequence[str], train: pa.Table, dev: pa.Table
) -> tuple[pa.Table, pa.Table]:
    """The (train, dev) rows of some roles, numbered among themselves where an objective needs numbers."""
    mine = [_of_roles(training, roles, table) for table in (train, dev)]
    if not has_lessons(train):
        return mine[0].combine_chunks(), mine[1].combine_chunks()
    from training.objective_trainer import with_numbers  # late: it imports torch

    both = with_numbers(pa.concat_tables(mine).drop_columns(["number", "example_number"]).combine_chunks())
    return both.slice(0, len(mine[0])).combine_chunks(), both.slice(len(mine[0])).combine_chunks()


def start_of_group(start: Path | None, name: str, roles: Sequence[str]) -> Path | None:
    """The adapter that a group's training starts from, of one that may hold several. UserError where its roles have
    different ones."""
    if start is None:
        return None
    found = {adapter_of_role(start, role) for role in roles}
    if len(found) > 1:
        raise UserError(
            f"{start}: the roles of {name} ({', '.join(roles)}) have different adapters there; train them in the "
            "groups that it has (training.adapters), or start from the base model (rounds.start=base)"
        )
    one = found.pop()
    return None if one is None else Path(one)


def publish_groups(job: TrainingJob, groups: Groups) -> None:
    """Put the adapters of all groups in the job's folder, completely or not at all."""
    folder, target = job.folder, published_folder(job.config, job.folder)
    own = {name: read_facts(GroupFolder.below(folder, name).adapter) for name in groups}
    parts = {name: found for name, found in own.items() if found is not None}
    facts = (
        shared_facts(job)
        | _summed(parts, job.skipped)
        | {"adapters": {name: _own_facts(groups[name], one) for name, one in parts.items()}}
    )
    temporary = target.with_name(f".{target.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        for name in parts:
            # The card and the questions are those of the whole folder.
            ignored = shutil.ignore_patterns("README.md", TRAINING_QUESTIONS)
            shutil.copytree(GroupFolder.below(folder, name).adapter, temporary / name, ignore=ignored)
    except OSError as error:
        raise disk_error(target, error) from error
    write_index(temporary, {role: name for name in parts for role in groups[name]})
    write_json(temporary / FACTS, facts)
    write_json(temporary / TRAINING_QUESTIONS, training_question_digests(job.config))
    write_atomic(temporary / "README.md", model_card(facts))
    publish_folder(temporary, target)
    print(f"{target}: adapters of {', '.join(groups)}", file=sys.stderr, flush=True)


def _own_facts(roles: Sequence[str], facts: Mapping[str, Any]) -> dict[str, Any]:
    names = ("steps", "batch", "warmup_steps", "step", "dev_loss", "dev_loss_before")
    return {"roles": list(roles), "rows": facts["rows"]["train"], **{name: facts[name] for name in names}}


def _summed(parts: Mapping[str, Mapping[str, Any]], skipped: dict[str, int]) -> dict[str, Any]:
    """Rows and steps over all groups; the losses are means over the groups, by their held-out rows."""
    rows = [one["rows"] for one in parts.values()]
    sums = {name: sum(one[name] for one in rows) for name in ("train", "dev", "tokens", "loss_tokens", "retokenised")}
    roles = sum((Counter(one["roles"]) for one in rows), Counter[str]())
    measured = [one for one in parts.values() if one["dev_loss"] is not None and one["dev_loss_before"] is not None]
    held = sum(one["rows"]["dev"] for one in measured)
    losses = {
        name: sum(one[name] * one["rows"]["dev"] for one in measured) / held if held else None
        for name in ("dev_loss", "dev_loss_before")
    }
    return {
        "rows": {**sums, "roles": roles, "left_out": skipped},
        "steps": sum(one["steps"] for one in parts.values()),
        **losses,
    }
