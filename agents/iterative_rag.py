"""The question-answering baselines that retrieve again while they answer: Iter-RetGen, IRCoT and FLARE.

IRCoT and FLARE reason aloud, a sentence at a time. The begun answer is continued token by token: only the first new
sentence of a call is used, and what the model said beyond it stays in the log. That needs an engine which continues a
begun answer (local or vllm), and for FLARE its log-probabilities. Both papers show the model 8 to 20 worked examples of
their benchmarks; instruct models understand a request, so here it is one, with one worked example of our own. The words
of the prompts are ours.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from itertools import groupby
from typing import Any, Literal

from pydantic import Field

from ratchet.agents.core.lookahead import Draft, first_sentence
from ratchet.agents.core.prompts import (
    DOCUMENTS_AND_QUESTION,
    READ_IN_FORM,
    Prompt,
    ReadingSettings,
    documents_text,
    final_answer,
)
from ratchet.agents.core.system import Calls, SystemSpec
from ratchet.agents.core.tools import Answer, Tools
from ratchet.core.config import Section
from ratchet.core.records import Passage, Question


class IterRetGenSettings(ReadingSettings):
    """Rounds, and documents of a retrieval."""

    rounds: int = Field(3, gt=0)
    """Number of rounds."""


async def iter_retgen(question: Question, tools: Tools, settings: IterRetGenSettings) -> Answer:
    """Iter-RetGen (Shao et al. 2023, arXiv 2305.15294): generation and retrieval take turns.

    Each round retrieves with the question and the last round's output, and answers again from the new documents alone:
    documents and output of earlier rounds are not shown. The last round's answer counts.

    Budget: `rounds` model calls and as many retrievals (top 3); 3 rounds, as AwE sets it (docs/papers/awe.md, 4.2).

    Deviations
    - The paper prompts with worked chains of thought and searches with them. Here, as in FlashRAG (which AwE compares
      with), the prompt is the plain reading one without examples, so a query is the question and a short answer. What
      is searched is the raw output, not the answer taken out of it.
    - The paper reads five documents, AwE's comparison three: `documents`.
    """
    said = ""
    for _ in range(settings.rounds):
        passages = await tools.search("answerer", f"{question.text} {said}".strip(), settings.documents)
        said = await tools.ask(*tools.begin("answerer", answer_form=settings.form, documents=settings.show(passages)))
        tools.so_far = Answer(final_answer(said), tuple(passages))
    return tools.so_far


# What IRCoT and FLARE share: the prompt, the first sentence of a look-ahead, and the answer

THINK = (
    "Answer the question step by step with the help of the documents. Write short sentences, one fact in each. "
    'End with "So the answer is:" and the answer in as few words as possible.'
)
EXAMPLE_QUESTION = "In which country was the composer of The Copper Lark born?"
EXAMPLE = (
    {
        "question": EXAMPLE_QUESTION,
        "task": f"Question: {EXAMPLE_QUESTION}",
        "documents": "[1] The Copper Lark: The Copper Lark is an opera by Odo Brenn.\n"
        "[2] Odo Brenn: Odo Brenn was born in Graz in Austria.",
    },
    "The Copper Lark was composed by Odo Brenn. Odo Brenn was born in Graz in Austria. So the answer is: Austria.",
)
"""The values of a worked example's prompt, and its reply."""
ANSWER = re.compile(r"\banswer is\b[ \t]*:?[ \t]*", re.IGNORECASE)


def sentence_tokens(draft: Draft) -> int:
    """The number of a draft's ids that its first sentence takes."""
    return draft.tokens(first_sentence(draft.text))


def stated_answer(text: str) -> str | None:
    """The text behind the last "answer is", on its line and without its full stop; None where there is none."""
    said = ANSWER.split(text)
    if len(said) == 1:
        return None
    return (said[-1].strip().splitlines() or [""])[0].strip().removesuffix(".") or None


class IRCoTSettings(ReadingSettings):
    """The amount of retrieval, the length of the reasoning, and who answers."""

    pool: int = Field(15, gt=0)
    """Maximum number of paragraphs in the pool; all fit if it is at least documents * (1 + sentences)."""
    sentences: int = Field(10, gt=0)
    """Maximum number of sentences of reasoning."""
    thought_tokens: int = Field(64, gt=0)
    """Maximum number of tokens of a sentence."""
    reader: Literal["always", "never"] = "always"
    """A reader answers from the pool; or (`never`) the answer is what the reasoning states, as FlashRAG has it."""


async def ircot(question: Question, tools: Tools, settings: IRCoTSettings) -> Answer:
    """IRCoT (Trivedi et al. 2023, arXiv 2212.10509, section 3): retrieval interleaved with chain-of-thought reasoning.

    Retrieve for the question. Then, in turn: the model writes the next sentence of its reasoning with the paragraphs
    gathered so far before it, and that sentence is the next query, whose paragraphs join the pool. When a sentence
    states the answer, or the sentences are used up, a separate reader answers from the pool; the reasoning itself is
    thrown away. The end of the model's turn ends the chain too, as does a call that says nothing.

    Budget: 1 model call a sentence, at most 10 (AwE plays 5), and 1 for the reader; 1 retrieval for the question and 1
    for every sentence that did not end the chain, until the pool is full: then the chain goes on without searching.
    Without a reader (`reader: never`) the last sentence searches for nothing.

    Deviations from the paper: one worked example instead of fifteen; 3 paragraphs a retrieval, as AwE plays it, where
    the paper tunes 2 to 8; the reader is told to answer at once, not to reason again (the paper has both kinds). When
    the pool is full, what was found first stays. The paper's code also takes question words out of the queries and
    makes no query of a sentence that begins like a conclusion ("thus", "so"); FlashRAG's takes whole outputs for
    thoughts, shows the lowest scores first and searches with the last thought for what nobody reads: none of it is
    offered here. FlashRAG's two rounds are `sentences: 2`, and its answer from the thoughts is `reader: never`.
    """
    pool: dict[str, Passage] = {}

    async def gather(query: str) -> None:
        if len(pool) >= settings.pool:
            return
        for passage in await tools.search("reasoner", query, settings.documents):
            if len(pool) < settings.pool:
                pool.setdefault(passage.id, passage)

    prefix: tuple[int, ...] = ()
    await gather(question.text)
    values, reply = EXAMPLE
    example = (tools.prompt("reasoner.user", **values), reply)
    for number in range(1, settings.sentences + 1):
        dialogue = tools.dialogue("reasoner", tools.prompt("reasoner.system"), (example,))
        message = tools.prompt("reasoner.user", documents=settings.show(pool.values()))
        thought = await tools.draft(dialogue, message, prefix, settings.thought_tokens, sentence_tokens)
        prefix += thought.used
        query = thought.decode(thought.used).strip()
        if not query or thought.finished or ANSWER.search(query):
            break
        if number < settings.sentences or settings.reader != "never":  # else nobody would read what is found
            await gather(query)
    else:
        tools.note("reasoner", f"no answer after {settings.sentences} sentences")
    passages = tuple(pool.values())
    stated = stated_answer(query)
    if settings.reader == "never":
        return Answer(stated or thought.decode(prefix).strip(), passages)
    tools.so_far = Answer(stated or "", passages)
    said = await tools.ask(*tools.begin("reader", answer_form=settings.form, documents=settings.show(passages)))
    return Answer(final_answer(said), passages)


class FlareSettings(Section):
    """When and how much is retrieved, and how long the answer may be."""

    documents: int = Field(3, gt=0)
    """Number of documents that a query finds."""
    retrieve_first: bool = True
    """Retrieve for the question before the first sentence."""
    carry_documents: bool = True
    """Let a look-ahead read the documents found last."""
    look_ahead: int = Field(64, gt=0)
    """Number of tokens of one look-ahead."""
    theta: float = Field(0.8, ge=0, le=1)
    """Probability of a token below which its sentence is searched for."""
    beta: float = Field(0.4, ge=0, le=1)
    """Probability below which a token is left out of the query."""
    iterations: int = Field(10, gt=0)
    """Maximum number of sentences."""
    max_tokens: int = Field(256, gt=0)
    """Maximum number of tokens of the whole text."""


async def flare(question: Question, tools: Tools, settings: FlareSettings) -> Answer:
    """FLARE (Jiang et al. 2023, arXiv 2305.06983, section 3.2, "FLARE direct"): retrieval when the model is unsure.

    Retrieve for the question. Then, sentence by sentence: look ahead 64 tokens and take the first sentence of them. If
    the model gave each of its tokens a probability of at least theta, it stays. Else the sentence, less its tokens
    under beta, is a query; with the documents found, in place of the former ones, the model looks ahead again, and the
    first sentence of that stays, sure or not. What stands behind "the answer is" is the answer; the whole text where
    those words are missing.

    Budget: 1 or 2 model calls a sentence; 1 retrieval for the question and 1 for each sentence that was unsure. With
    the default of 10 sentences: 1 to 20 calls, 1 to 11 retrievals.

    The text goes on token by token from what stays, so blanks between sentences are the model's own, and it ends when
    the model ends its turn, or after `max_tokens` or `iterations`. The probability of ending the turn is no word's and
    does not count. A query of which no letter or digit is left becomes the question (the paper does not say).

    Deviations from the paper: one worked example instead of eight; 3 documents, as AwE plays it, where the paper takes
    2; a bound on the number of sentences. As in the paper's code, a look-ahead reads the documents found last (the
    paper's formula has none there). FlashRAG's FLARE: `retrieve_first: false`, `carry_documents: false`, `theta: 0.2`,
    `beta: 0.2`, `iterations: 5`; it also runs on past the end of the text, joins sentences without blanks, and keeps an
    unsure sentence when nothing is left to search for, which is not offered.
    """
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


SYSTEMS: dict[str, SystemSpec[Any]] = {
    "iter_retgen": SystemSpec(
        IterRetGenSettings,
        iter_retgen,
        roles=("answerer",),
        prompts={"answerer.system": READ_IN_FORM, "answerer.user": Prompt(DOCUMENTS_AND_QUESTION)},
        calls=lambda settings: {"answerer": Calls(settings.rounds, settings.documents)},
    ),
    "ircot": SystemSpec(
        IRCoTSettings,
        ircot,
        roles=("reasoner", "reader"),
        prompts={
            "reasoner.system": Prompt(THINK),
            "reasoner.user": Prompt(DOCUMENTS_AND_QUESTION),
            "reader.system": READ_IN_FORM,
            "reader.user": Prompt(DOCUMENTS_AND_QUESTION),
        },
        calls=lambda settings: {
            "reasoner": Calls((1 + settings.sentences) / 2, settings.pool / 2),
            "reader": Calls(int(settings.reader == "always"), settings.pool),
        },
    ),
    "flare": SystemSpec(
        FlareSettings,
        flare,
        roles=("answerer",),
        prompts={"answerer.system": Prompt(THINK), "answerer.user": Prompt(DOCUMENTS_AND_QUESTION)},
        calls=lambda settings: {"answerer": Calls(settings.iterations, settings.documents)},
    ),
}
