"""SuRe (Kim et al. 2024, arXiv 2404.13081): two candidate answers, a summary in favour of each, the better one wins.

One call proposes two candidates from the retrieved documents. For each of them a summary of the documents is written
that supports it. A candidate's score is its validation (1: its summary is judged to support it, 0: not) plus its
ranking (1: its summary, shown first, is judged more informative than the other; 0: the other is; 0.5: neither is
named). The candidate with the higher score is the answer, the first one on a tie.

Budget: 7 model calls (1 proposal, 2 summaries at once, then 2 validations and 2 rankings at once), one retrieval
(top 3, as in AwE's comparison; the paper reads 10).

What is not in its form is malformed, and then
- a validation that names neither or both of True and False: 0; a ranking that names neither or both passages: 0.5.
  "Not true" is neither (FlashRAG takes "true", and "passage 1", wherever they occur, then does the same);
- one candidate, or the same one twice: it is the answer, no further calls (the authors' code; FlashRAG writes and
  validates a summary of it, which cannot change the answer);
- no candidate: the whole output is the answer (FlashRAG answers with nothing).

The authors' code makes one ranking out of both orders, 1 or 0 where they agree and else 0.5 each. The difference of
the two candidates' scores, which decides, is the same as here wherever both orders name a passage.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial

from pydantic import Field

from ratchet.agents.core.output import Malformed
from ratchet.agents.core.prompts import DOCUMENTS_AND_QUESTION, QUESTION, Prompt, documents_text, final_answer, one_line
from ratchet.agents.core.system import Calls, SystemSpec
from ratchet.agents.core.tools import Answer, Tools
from ratchet.core.config import Section
from ratchet.core.records import Question

PROPOSE = (
    "Read the documents and give two different possible answers to the question, the likelier one first, each in at "
    "most three words. Write them in the form: (a) one answer (b) another answer"
)
SUMMARIZE = (
    "Write a short passage that supports the given answer to the question. Use only what the documents say. Write the "
    "passage and nothing else."
)
VALIDATE = "Does the passage support the answer to the question? Write True or False and nothing else."
RANK = "Which of the two passages helps more to answer the question? Write Passage 1 or Passage 2 and nothing else."
PROMPTS = {
    "proposer.system": Prompt(PROPOSE),
    "proposer.user": Prompt(DOCUMENTS_AND_QUESTION),
    "summarizer.system": Prompt(SUMMARIZE),
    "summarizer.user": Prompt(DOCUMENTS_AND_QUESTION + "\nAnswer: {{answer}}"),
    "validator.system": Prompt(VALIDATE),
    "validator.user": Prompt(QUESTION + "\nAnswer: {{answer}}\nPassage: {{passage}}"),
    "ranker.system": Prompt(RANK),
    "ranker.user": Prompt(QUESTION + "\nPassage 1: {{passage_1}}\nPassage 2: {{passage_2}}"),
}

VALID = ("True", "False")
BETTER = ("Passage 1", "Passage 2")
LETTER = re.compile(r"\(([a-d])\)", re.IGNORECASE)


class Settings(Section):
    """The documents that are read."""

    documents: int = Field(3, gt=0)
    """Number of documents that a query finds."""


async def solve(question: Question, tools: Tools, settings: Settings) -> Answer:
    """Propose two answers, and return the one whose summary is better supported."""
    passages = await tools.search("proposer", question.text, settings.documents)
    documents = documents_text(passages)
    proposer, message = tools.begin("proposer", documents=documents)
    candidates = await tools.read(proposer, message, read_candidates)
    named = dict(zip(("first", "second"), candidates, strict=False))
    # The first counts until they are scored: it is called the likelier one, and wins a tie.
    tools.so_far = Answer(candidates[0], tuple(passages), candidates=named)
    if len(candidates) == 1:
        return tools.so_far

    writing = [tools.begin("summarizer", documents=documents, answer=answer) for answer in candidates]
    asked = [tools.ask(writer, message) for writer, message in writing]
    summaries = [one_line(said) for said in await tools.gather(*asked)]

    judged = zip(candidates, summaries, strict=True)
    validating = [tools.begin("validator", answer=answer, passage=summary) for answer, summary in judged]
    orders = (summaries, summaries[::-1])
    ranking = [tools.begin("ranker", passage_1=first, passage_2=second) for first, second in orders]
    scores = await tools.gather(
        *(tools.read(dialogue, message, partial(read_score, VALID, 0.0)) for dialogue, message in validating),
        *(tools.read(dialogue, message, partial(read_score, BETTER, 0.5)) for dialogue, message in ranking),
    )
    first, second = scores[0] + scores[2], scores[1] + scores[3]
    tools.note("ranker", f"first candidate {first:g}, second candidate {second:g}")
    return replace(tools.so_far, text=candidates[0] if first >= second else candidates[1])


def read_candidates(text: str) -> tuple[str, ...]:
    """Two different answers: the first line behind "(a)" and behind "(b)". Out of form, the one that is there counts,
    or else the whole text."""
    _, *pieces = LETTER.split(text)
    candidates: dict[str, str] = {}
    for letter, piece in zip(pieces[::2], pieces[1::2], strict=True):
        candidate = piece.strip().partition("\n")[0].strip(" ,;")
        if letter.lower() in "ab" and candidate:
            candidates.setdefault(candidate.casefold(), candidate)
    found = tuple(candidates.values())[:2] or (final_answer(text),)
    if len(found) < 2:
        raise Malformed("Write two different answers in the form: (a) one answer (b) another answer", found)
    return found


def read_score(words: tuple[str, str], unread: float, text: str) -> float:
    """1 where the text has the first of these words, 0 where it has the second, `unread` where it has both or none."""
    said = [word for word in words if re.search(rf"(?<!not )\b{word}\b", text, re.IGNORECASE)]
    if len(said) != 1:
        raise Malformed(f"Write {words[0]} or {words[1]}.", unread)
    return float(said[0] == words[0])


SYSTEM = SystemSpec(
    Settings,
    solve,
    roles=("proposer", "summarizer", "validator", "ranker"),
    prompts=PROMPTS,
    calls=lambda settings: {
        "proposer": Calls(1, settings.documents),
        "summarizer": Calls(2, settings.documents),
        "validator": Calls(2),
        "ranker": Calls(2),
    },
)
