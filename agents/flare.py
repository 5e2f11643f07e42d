"""FLARE (Jiang et al. 2023, arXiv 2305.06983, section 3.2, "FLARE direct"): retrieval when the model is unsure.

Retrieve for the question. Then, sentence by sentence: look ahead 64 tokens and take the first sentence of them. If the
model gave each of its tokens a probability of at least theta, it stays. Else the sentence, less its tokens under beta,
is a query; with the documents found, in place of the former ones, the model looks ahead again, and the first sentence
of that stays, sure or not. What stands behind "the answer is" is the answer; the whole text where those words are
missing.

Budget: 1 or 2 model calls a sentence; 1 retrieval for the question and 1 for each sentence that was unsure. With the
default of 10 sentences: 1 to 20 calls, 1 to 11 retrievals.

The text goes on token by token from what stays, so blanks between sentences are the model's own, and it ends when the
model ends its turn, or after `max_tokens` or `iterations`. The probability of ending the turn is no word's and does not
count. A query of which no letter or digit is left becomes the question (the paper does not say).

Deviations from the paper: one worked example instead of eight; 3 documents, as AwE plays it, where the paper takes 2;
a bound on the number of sentences. As in the paper's code, a look-ahead reads the documents found last (the paper's
formula has none there). FlashRAG's FLARE: `retrieve_first: false`, `carry_documents: false`, `theta: 0.2`,
`beta: 0.2`, `iterations: 5`; it also runs on past the end of the text, joins sentences without blanks, and keeps an
unsure sentence when nothing is left to search for, which is not offered.

Needs token log-probabilities: engine local or vllm.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import groupby

from pydantic import Field

from ratchet.agents.core.lookahead import EXAMPLE, THINK, Draft, sentence_tokens, stated_answer
from ratchet.agents.core.prompts import DOCUMENTS_AND_QUESTION, Prompt, documents_text
from ratchet.agents.core.system import Calls, SystemSpec
from ratchet.agents.core.tools import Answer, Tools
from ratchet.core.config import Section
from ratchet.core.records import Passage, Question

PROMPTS = {"answerer.system": Prompt(THINK), "answerer.user": Prompt(DOCUMENTS_AND_QUESTION)}


class Settings(Section):
    """When and how much is retrieved, and how long the answer may be."""

    documents: int = Field(3, gt=0)
    retrieve_first: bool = True
    """Retrieve for the question before the first sentence."""
    carry_documents: bool = True
    """A look-ahead reads the documents found last; else it reads none."""
    look_ahead: int = Field(64, gt=0)
    """Tokens of one look-ahead."""
    theta: float = Field(0.8, ge=0, le=1)
    """A sentence with a token less probable than this is searched for."""
    beta: float = Field(0.4, ge=0, le=1)
    """Tokens less probable than this are left out of the query."""
    iterations: int = Field(10, gt=0)
    """Most sentences."""
    max_tokens: int = Field(256, gt=0)
    """Most tokens of the whole text."""


async def solve(question: Question, tools: Tools, settings: Settings) -> Answer:
    """Write the answer sentence by sentence, and retrieve for each sentence that the model is unsure of."""
    passages: list[Passage] = []
    if settings.retrieve_first:
        passages = await tools.search("answerer", question.text, settings.documents)
    prefix: tuple[int, ...] = ()
    values, reply = EXAMPLE
    example = (tools.prompt("answerer.user", **values), reply)

    async def look_ahead(documents: list[Passage], keep: Callable[[Draft], int]) -> Draft:
        return await tools.draft(
            tools.dialogue("answerer", tools.prompt("answerer.system"), (example,)),
            tools.prompt("answerer.user", documents=documents_text(documents)),
            prefix,
            min(settings.look_ahead, settings.max_tokens - len(prefix)),
            keep,
            logprobs=True,
        )

    def if_sure(draft: Draft) -> int:
        return sentence_tokens(draft) if all(p >= settings.theta for _, p in probabilities(draft)) else 0

    for _ in range(settings.iterations):
        draft = await look_ahead(passages if settings.carry_documents else [], if_sure)
        if not draft.kept:
            query = sure_words(draft, settings.beta) or question.text
            passages = await tools.search("answerer", query, settings.documents)
            draft = await look_ahead(passages, sentence_tokens)
        prefix += draft.used
        text = draft.decode(prefix)
        tools.so_far = Answer(stated_answer(text) or text.strip(), tuple(passages))
        if draft.finished or len(prefix) >= settings.max_tokens:
            break
    if not draft.finished:
        tools.note("answerer", f"stopped after {len(prefix)} tokens, before the end of its turn")
    return tools.so_far


def probabilities(draft: Draft) -> list[tuple[int, float]]:
    """The tokens of the draft's first sentence, each with its probability."""
    end = sentence_tokens(draft)
    if draft.ended and end == len(draft.ids):
        end -= 1
    return [(i, math.exp(logprob)) for i, logprob in zip(draft.ids[:end], draft.logprobs[:end], strict=True)]


def sure_words(draft: Draft, beta: float) -> str:
    """The first sentence less its tokens under beta; nothing, where that leaves no letter or digit."""
    runs = groupby(probabilities(draft), lambda token: token[1] >= beta)
    # Decoded run by run: what stood apart must not grow together. A letter that lost some of its bytes goes too.
    kept = " ".join(draft.decode([i for i, _ in run]) for sure, run in runs if sure).replace("\ufffd", " ")
    return " ".join(kept.split()) if any(letter.isalnum() for letter in kept) else ""


SYSTEM = SystemSpec(
    Settings,
    solve,
    roles=("answerer",),
    prompts=PROMPTS,
    calls=lambda settings: {"answerer": Calls(settings.iterations, settings.documents)},
)
