"""What the question-answering systems of the RAG literature share: two prompts, documents as text, and the answer.

AwE and its baselines (docs/papers/awe.md, section 4.2) play these two calls alike, so that what differs between two
methods is the method. The words are ours; the answer is read as the published scorers do.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Literal

from ratchet.records import Passage

ALONE = "Write the answer alone, in as few words as possible."
KNOW = f"Answer the question from what you know. {ALONE}"
READ = f"Answer the question with the help of the documents. {ALONE}"
MARK = "The answer is:"
MARKED = f'You may explain in a few sentences. End with "{MARK}" and the answer in as few words as possible.'
AnswerForm = Literal["alone", "marked"]
"""alone: the output is the answer. marked: it stands behind "The answer is:", as DRAG's evaluation script reads it."""


def question_text(question: str, passages: Iterable[Passage] = ()) -> str:
    """The user's message: the documents where there are any, then the question."""
    documents = documents_text(passages)
    return (f"Documents:\n{documents}\n\n" if documents else "") + f"Question: {question}"


def documents_text(passages: Iterable[Passage]) -> str:
    """One document a line: its number, its title and its text."""
    return "\n".join(
        f"[{number}] " + " ".join(f"{p.title}: {p.text}".split() if p.title else p.text.split())
        for number, p in enumerate(passages, 1)
    )


def final_answer(text: str) -> str:
    """What stands behind the first "The answer is:"; the whole output where those words are missing."""
    _, mark, answer = text.partition(MARK)
    return (answer if mark else text).strip()


def in_form(instructions: str, form: AnswerForm) -> str:
    """Instructions to answer, KNOW or READ, that ask for the answer in this form."""
    return instructions if form == "alone" else instructions.replace(ALONE, MARKED)


def unanimous(answers: Collection[str]) -> str:
    """The answer that all of them give, in the words of the first; "" where they differ or one gives none."""
    return next(iter(answers)) if len({answer.strip().casefold() for answer in answers}) == 1 else ""
