"""IRCoT (Trivedi et al. 2023, arXiv 2212.10509, section 3): retrieval interleaved with chain-of-thought reasoning.

Retrieve for the question. Then, in turn: the model writes the next sentence of its reasoning with the paragraphs
gathered so far before it, and that sentence is the next query, whose paragraphs join the pool. When a sentence states
the answer, or the sentences are used up, a separate reader answers from the pool; the reasoning itself is thrown away.

Budget: 1 model call a sentence, at most 10 (AwE plays 5), and 1 for the reader; 1 retrieval for the question and 1 for
every sentence that did not end the chain, until the pool is full: then the chain goes on without searching. Without a
reader (`reader: never`) the last sentence searches for nothing.

The begun answer is continued token by token: only the first new sentence of a call is used, what the model said beyond
it stays in the log. The end of the model's turn ends the chain too, as does a call that says nothing.

Deviations from the paper: one worked example instead of fifteen; 3 paragraphs a retrieval, as AwE plays it, where the
paper tunes 2 to 8; the reader is told to answer at once, not to reason again (the paper has both kinds). When the pool
is full, what was found first stays.
The paper's code also takes question words out of the queries and makes no query of a sentence that begins like a
conclusion ("thus", "so"); FlashRAG's takes whole outputs for thoughts, shows the lowest scores first and searches with
the last thought for what nobody reads: none of it is offered here. FlashRAG's two rounds are `sentences: 2`, and its
answer from the thoughts is `reader: never`.

Needs an engine that continues a begun answer: local or vllm.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ratchet.agents.core.lookahead import ANSWER, EXAMPLE, THINK, sentence_tokens, stated_answer
from ratchet.agents.core.prompts import (
    DOCUMENTS_AND_QUESTION,
    READ_IN_FORM,
    FormSettings,
    Prompt,
    documents_text,
    final_answer,
)
from ratchet.agents.core.system import Calls, SystemSpec
from ratchet.agents.core.tools import Answer, Tools
from ratchet.core.records import Passage, Question

PROMPTS = {
    "reasoner.system": Prompt(THINK),
    "reasoner.user": Prompt(DOCUMENTS_AND_QUESTION),
    "reader.system": READ_IN_FORM,
    "reader.user": Prompt(DOCUMENTS_AND_QUESTION),
}


class Settings(FormSettings):
    """How much is retrieved, how long the reasoning may be, and who answers."""

    documents: int = Field(3, gt=0)
    """Paragraphs a retrieval."""
    pool: int = Field(15, gt=0)
    """Most paragraphs in the pool. `documents` for the question and for every sentence fit where it is at least
    documents * (1 + sentences)."""
    sentences: int = Field(10, gt=0)
    """Most sentences of reasoning."""
    thought_tokens: int = Field(64, gt=0)
    """Most tokens of a sentence; one that is cut off there is used as it is."""
    reader: Literal["always", "never"] = "always"
    """Who answers from the pool: a reader. never: the answer is what the reasoning states, or all of it where it states
    none, as FlashRAG has it."""


async def solve(question: Question, tools: Tools, settings: Settings) -> Answer:
    """Reason a sentence at a time, retrieve with each sentence, then answer from all passages."""
    pool: dict[str, Passage] = {}
    prefix: tuple[int, ...] = ()
    await _gather(question.text, pool, tools, settings)
    values, reply = EXAMPLE
    example = (tools.prompt("reasoner.user", **values), reply)
    for number in range(1, settings.sentences + 1):
        dialogue = tools.dialogue("reasoner", tools.prompt("reasoner.system"), (example,))
        message = tools.prompt("reasoner.user", documents=documents_text(pool.values()))
        thought = await tools.draft(dialogue, message, prefix, settings.thought_tokens, sentence_tokens)
        prefix += thought.used
        query = thought.decode(thought.used).strip()
        if not query or thought.finished or ANSWER.search(query):
            break
        if number < settings.sentences or settings.reader != "never":  # else nobody would read what is found
            await _gather(query, pool, tools, settings)
    else:
        tools.note("reasoner", f"no answer after {settings.sentences} sentences")
    passages = tuple(pool.values())
    stated = stated_answer(query)
    if settings.reader == "never":
        return Answer(stated or thought.decode(prefix).strip(), passages)
    tools.so_far = Answer(stated or "", passages)
    said = await tools.ask(*tools.begin("reader", answer_form=settings.form, documents=documents_text(passages)))
    return Answer(final_answer(said), passages)


async def _gather(query: str, pool: dict[str, Passage], tools: Tools, settings: Settings) -> None:
    """Search, and add to the pool what is new and still fits; a full pool searches no more."""
    if len(pool) >= settings.pool:
        return
    for passage in await tools.search("reasoner", query, settings.documents):
        if len(pool) < settings.pool:
            pool.setdefault(passage.id, passage)


SYSTEM = SystemSpec(
    Settings,
    solve,
    roles=("reasoner", "reader"),
    prompts=PROMPTS,
    calls=lambda settings: {
        "reasoner": Calls((1 + settings.sentences) / 2, settings.pool / 2),
        "reader": Calls(int(settings.reader == "always"), settings.pool),
    },
)
