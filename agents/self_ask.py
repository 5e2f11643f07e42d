"""Self-Ask with a search engine (Press et al. 2023, arXiv 2210.03350): follow-up questions until the answer is known.

The model either asks a follow-up question, which is searched, or says the final answer. With the documents of a
follow-up before it, it first gives the intermediate answer, then asks again or ends. It is one conversation: what was
found and said stays in sight, and every turn extends the cached prefix.

Budget, with n follow-up questions asked, n at most `max_follow_ups` (5): n + 1 model calls, n + 1 retrievals (top 3).
After the last follow-up the model is told to end.

Deviations from the paper
- The question is searched first, as FlashRAG does; `first_search: false` is the paper's way (n retrievals).
- The search engine gives documents, which the model reads, and not an answer. FlashRAG shows the last documents only
  and counts 5 model calls, every other of which asks; the paper sets no limit.
- Two worked examples of ours in place of the paper's four, and no stop words: a turn that goes on after its follow-up
  question invents what it was to wait for. It is malformed, so never trained on, and the first follow-up is searched.

Malformed too is a turn with neither a follow-up nor a final answer, and one without a final answer after it was told
to end. Its last line is then the answer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pydantic import Field

from agents.core.output import Malformed
from agents.core.prompts.documents import DATA, DOCUMENTS_AND_QUESTION, documents_text
from agents.core.prompts.template import FillIn, Prompt
from agents.core.spec import SystemSpec
from agents.core.tools import Answer, Tools
from ratchet.config import Section
from ratchet.records import Question

INSTRUCTIONS = """\
Answer the question step by step. If you must know something else first, ask for it in one line:
Follow up: a short question
You then get documents. Write what they say about it, in one line:
Intermediate answer: a short answer
After that, ask the next follow up or end. Always end with this line:
So the final answer is: the answer in as few words as possible"""
NEEDED = "Are follow up questions needed here?"
PROMPTS = {
    "asker.system": Prompt(INSTRUCTIONS),
    "asker.user": Prompt(f"{DOCUMENTS_AND_QUESTION}\n{NEEDED}"),
    "documents.user": Prompt(f"Documents {DATA}:\n" + "{{documents}}"),
    "end.user": Prompt(
        "No more follow up questions. Write the intermediate answer and the final answer.",
        note="is put after the last message",
    ),
}


@dataclass(frozen=True)
class Exchange:
    """A worked example of a turn."""

    documents: str
    question: str
    """Empty where the documents are those of a follow-up question."""
    reply: str


EXAMPLES = (
    Exchange(
        "[1] Anna Berl: Anna Berl (1870-1931) was a painter. She was born in Orsk and painted ships.",
        "On which river does the birthplace of the painter Anna Berl lie?",
        "Yes.\nFollow up: On which river does Orsk lie?",
    ),
    Exchange(
        "[1] Orsk: Orsk is a town on the river Ural.",
        "",
        "Intermediate answer: Orsk lies on the Ural.\nSo the final answer is: the Ural",
    ),
    Exchange(
        "[1] Tin: Tin is a soft metal. Its symbol, Sn, comes from the Latin word stannum.",
        "Which symbol does tin have?",
        "No.\nSo the final answer is: Sn",
    ),
)

FINAL = re.compile(r"so the final answer is:", re.IGNORECASE)
MARK = re.compile(rf"follow[ -]?up:|{FINAL.pattern}", re.IGNORECASE)


class Settings(Section):
    """The documents of a search, and the number of follow-up questions."""

    documents: int = Field(3, gt=0)
    max_follow_ups: int = Field(5, ge=0)
    first_search: bool = True
    """False: only follow-up questions are searched, as in the paper."""


@dataclass(frozen=True)
class Step:
    """A turn of the model: a follow-up question or the final answer."""

    asks: bool
    text: str
    """The follow-up question, or the final answer."""


async def solve(question: Question, tools: Tools, settings: Settings) -> Answer:
    """Ask and search follow-up questions until the final answer."""
    dialogue = tools.dialogue("asker", tools.prompt("asker.system"), worked_exchanges(tools.prompt))
    passages = await tools.search("asker", question.text, settings.documents) if settings.first_search else []
    read = {p.id: p for p in passages}
    text = tools.prompt("asker.user", documents=documents_text(passages))
    for _ in range(settings.max_follow_ups):
        step = await tools.read(dialogue, text, read_step, read_step_leniently)
        if not step.asks:
            return Answer(step.text, tuple(read.values()))
        passages = await tools.search("asker", step.text, settings.documents)
        read |= {p.id: p for p in passages}
        text = tools.prompt("documents.user", documents=documents_text(passages) or "none")
    step = await tools.read(
        dialogue, f"{text}\n\n{tools.prompt('end.user')}", read_end, lambda said: Step(False, last_line(said))
    )
    return Answer(step.text, tuple(read.values()))


def worked_exchanges(prompt: FillIn) -> list[tuple[str, str]]:
    """The worked examples as the prompts have it."""
    return [
        (
            prompt("asker.user", documents=e.documents, question=e.question, task=f"Question: {e.question}"),
            e.reply,
        )
        if e.question
        else (prompt("documents.user", documents=e.documents), e.reply)
        for e in EXAMPLES
    ]


def read_step(text: str) -> Step:
    """One follow-up question or the final answer. Raises Malformed."""
    step = _first_marked(text, MARK)
    if step is None:
        raise Malformed('Write one line that begins with "Follow up:" or with "So the final answer is:".')
    if step.asks and not text.rstrip().endswith(step.text):
        raise Malformed("Ask one follow up question, write nothing after it, and wait for the documents.")
    return step


def read_step_leniently(text: str) -> Step:
    """The first follow-up question or final answer, else the last line as the answer."""
    return _first_marked(text, MARK) or Step(False, last_line(text))


def read_end(text: str) -> Step:
    """The final answer. Raises Malformed."""
    step = _first_marked(text, FINAL)
    if step is None:
        raise Malformed('No more follow up questions. Write one line that begins with "So the final answer is:".')
    return step


def _first_marked(text: str, mark: re.Pattern[str]) -> Step | None:
    """What stands behind the first mark that has something behind it on its line."""
    for found in mark.finditer(text):
        said = text[found.end() :].partition("\n")[0].strip()
        if said:
            return Step(asks=FINAL.match(found[0]) is None, text=said)
    return None


def last_line(text: str) -> str:
    """The last line that is not blank."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


SYSTEM = SystemSpec(Settings, solve, roles=("asker",), prompts=PROMPTS)
