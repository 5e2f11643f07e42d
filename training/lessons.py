"""The lessons that an objective draws from a selection, as further columns of token rows.

Objectives other than `sft` learn from all candidates of the questions that selection kept (`rewards.selection`), by the
rewards that are stored in the selection. Which lessons these are, each objective says itself (`training.objectives`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean

import pyarrow as pa
import pyarrow.compute as pc

from ratchet.core.errors import UserError
from ratchet.core.records import QuestionChoice, Record, Selection
from ratchet.training.objectives.objective import EQUAL, Alternatives, ExampleObjective, Lesson, Objective

LESSON_FIELDS = (
    pa.field("question", pa.string()),
    pa.field("reward", pa.float64()),
    pa.field("weight", pa.float64()),
    pa.field("example", pa.string()),
    pa.field("chosen", pa.bool_()),
    pa.field("action", pa.int32()),
)
"""Further columns of token rows."""


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
    """What the row is a part of: rows with the same name enter the loss together. Empty: the row stands alone."""
    chosen: bool = True
    """Whether the row is made more likely (chosen, desirable) or less (rejected, undesirable)."""
    action: int | None = None
    """The row teaches only the action that starts at this token; None: every action of the conversation."""


def is_plain(objective: Objective, selection: Selection) -> bool:
    """Whether the rows are the paper's: those of the kept trajectories, each with the weight 1."""
    return objective.learns_from_kept_alone and all(choice.weight == 1 for choice in selection.questions)


def trajectory_lessons(selection: Selection, objective: Objective, prefix: str = "") -> dict[str, Lesson]:
    """By trajectory key, what is learnt of whole trajectories; `prefix` makes a question's id unique among members."""
    return {
        key: lesson
        for choice in selection.questions
        if choice.kept and choice.weight > EQUAL
        for key, lesson in objective.lessons(_alternatives(choice, prefix + choice.question_id)).items()
    }


def _alternatives(choice: QuestionChoice, question: str) -> Alternatives:
    return Alternatives(
        question,
        choice.weight,
        rewards={key: value for key in choice.candidates if (value := choice.rewards[key]) is not None},
        mean=fmean(known_rewards(choice) or [0.0]),
        kept={key: choice.rewards[key] or 0.0 for key in choice.kept},
        pairs=[f"{question}#{number}" for number in range(len(choice.kept))],
    )


def known_rewards(choice: QuestionChoice) -> list[float]:
    """The rewards of a question's attempts, those that did not finish among them."""
    return [value for value in choice.rewards.values() if value is not None]


def check_lessons(objective: Objective, selections: Sequence[Selection]) -> None:
    """Raises UserError, in one line, for selections that the objective learns nothing from. Of actions, it notices only
    that no question has different rewards."""
    questions = [choice for selection in selections for choice in selection.questions if choice.kept]
    if questions and all(choice.weight <= EQUAL for choice in questions):
        raise UserError(
            f"rewards.select.difficulty={selections[0].rule.get('difficulty')} gives the weight 0 to all "
            f"{len(questions)} kept questions, since every attempt at them succeeded: set it to none, or raise "
            "rewards.select.success"
        )
    if objective.learns_from_kept_alone:
        return
    if objective.compares_actions:
        is_enough = any(max(known_rewards(choice)) - min(known_rewards(choice)) > EQUAL for choice in questions)
    else:
        lessons = [trajectory_lessons(selection, objective).values() for selection in selections]
        is_enough = len({lesson.chosen for part in lessons for lesson in part}) > objective.needs_both_sides
    if not is_enough:
        raise UserError(no_lessons_message(objective, selections, {}))


def no_lessons_message(objective: Objective, selections: Sequence[Selection], skipped: Mapping[str, int]) -> str:
    """The message where the objective finds nothing to compare; `skipped` conversations by reason."""
    what = "actions after the same tokens that" if objective.compares_actions else "trajectories that"
    count = sum(bool(choice.kept) for selection in selections for choice in selection.questions)
    left_out = f" (skipped: {dict(skipped)})" if skipped else ""
    return (
        f"training.objective={objective.name} learns from better and worse {what} differ in reward, and none of the "
        f"{count} kept questions has both{left_out}: sample more or hotter (sampling.samples, sampling.temperature), "
        "or set training.objective=sft"
    )


def with_lessons(table: pa.Table, lessons: Sequence[Lesson], actions: Sequence[int | None]) -> pa.Table:
    """A table of rows with LESSON_FIELDS: a lesson for each row, and the action that it teaches."""
    *fields, last = LESSON_FIELDS
    for field in fields:
        table = table.append_column(field, pa.array([getattr(lesson, field.name) for lesson in lessons], field.type))
    return table.append_column(last, pa.array(actions, last.type))


def with_numbers(rows: pa.Table) -> pa.Table:
    """The rows with two more columns: their number in the table, and that of their example."""
    examples = pc.dictionary_encode(rows["example"].combine_chunks()).indices.cast(pa.int64())
    return rows.append_column("number", pa.array(range(len(rows)), pa.int64())).append_column(
        "example_number", examples
    )


def without_single_sides(table: pa.Table, objective: Objective) -> tuple[pa.Table, Counter[str]]:
    """The rows without pairs of which one side gave no row, and the number of these rows by the reason."""
    if not (isinstance(objective, ExampleObjective) and objective.in_pairs):
        return table, Counter()
    sides = list(zip(table["example"].to_pylist(), table["chosen"].to_pylist(), strict=True))
    known = set(sides)
    both = {example for example, side in known if (example, not side) in known}
    has_both = [example in both for example, _ in sides]
    left_out = Counter({"the pair's other side has no row": has_both.count(False)})
    return table.filter(pa.array(has_both, pa.bool_())), +left_out
