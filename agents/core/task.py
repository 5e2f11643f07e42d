"""What a prompt says of a task: the text of its question, and its labels."""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.core.records import Label, Question, Stance


def task_text(question: Question) -> str:
    """The text with what it is: "Claim: ..." or "Question: ..."."""
    return f"{question.form.capitalize()}: {question.text}"


def task_with_options(question: Question) -> str:
    """The same; where it is a choice, whose labels are not true and false, with its options below it."""
    is_choice = not {"true", "false"} <= {label.stance for label in question.labels}
    return task_text(question) + (f"\n{labels_text(question.labels)}" if is_choice else "")


def labels_text(labels: Sequence[Label]) -> str:
    """One label a line, with what it means."""
    return "\n".join(f"{label.name}: {label.meaning}" if label.meaning else label.name for label in labels)


def label_of_stance(labels: Sequence[Label], stance: Stance) -> str | None:
    """The first label of that stance; None where the task has none."""
    return next((label.name for label in labels if label.stance == stance), None)


def named_examples(examples: Sequence[tuple[str, str]], labels: Sequence[Label]) -> Sequence[tuple[str, str]]:
    """Worked examples in which <true> and <false> are labels of the task, where it has two."""
    if not examples or len(labels) < 2:
        return examples
    named = {"<true>": label_of_stance(labels, "true") or labels[0].name}
    named["<false>"] = label_of_stance(labels, "false") or labels[1].name

    def filled(text: str) -> str:
        for mark, name in named.items():
            text = text.replace(mark, name)
        return text

    return [(filled(user), filled(assistant)) for user, assistant in examples]
