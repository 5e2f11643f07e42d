"""FIRE, fact-checking by iterative retrieval and verification (Xie et al. 2025, arXiv 2411.00784, and its code).

One decision, again and again: the model sees the claim and the evidence so far, and either gives its final answer or
writes the next search query. It may answer at once, from what it knows. After `steps` searches, or when searching goes
round in circles, one last call must answer.

Budget: s searches (s at most `steps`, 5; top 3 each) and s + 1 model calls, so 6 and 5 at most; one call more where
searching stopped early.

Early stop, with the published code's settings (similarity over 0.9 by all-MiniLM-L6-v2, tolerance 2): the new query is
similar to each of the `tolerance` - 1 queries before it, or what the last query found is to what each of the
`tolerance` - 1 before it found. `tolerance: null` never stops early.

Deviations. A decision that cannot be read goes to the last call, as published, but after the config's own number of
tries (published: 11). The queries tried are shown, and a document that was found before is not shown twice. A search
that gave no answer is told to the model; asking it again is no repetition. The labels are the task's (published: True
and False). The code's prompts against repetition (`diverse_prompt`, off by default) are left out. All words are ours.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from ratchet.agents.core.exploration import SearchFields
from ratchet.agents.core.labels import labels_of
from ratchet.agents.core.output import object_schema
from ratchet.agents.core.prompts import DATA, Prompt, evidence_text, one_line, unique
from ratchet.agents.core.system import Calls, SystemSpec
from ratchet.agents.core.tools import Answer, Tools, Unparsed, missing_text
from ratchet.core.config import Section
from ratchet.core.records import Label, Passage, Question
from ratchet.retrieval.sources.source import ToolResult

DECIDE = """\
Find the right label for the {{form}} with the help of the evidence. If you are sure, write one JSON object:
{"reasoning": "why, in one or two sentences", "final_answer": "one of the labels"}
If you are not sure, search for what is missing:
{"reasoning": "what is missing", "search_query": "a query that was not tried yet"}

Labels:
{{labels}}"""
ANSWER = """\
Find the right label for the {{form}} with the help of the evidence. Write one JSON object:
{"reasoning": "why, in one or two sentences", "final_answer": "one of the labels"}

Labels:
{{labels}}"""

PROMPTS = {
    "verifier.system": Prompt(DECIDE),
    "verifier.user": Prompt(f"Evidence {DATA}:\n" + "{{documents}}\n\nQueries tried:\n{{queries?}}\n\n{{task}}"),
    "last_verifier.system": Prompt(ANSWER),
    "last_verifier.user": Prompt(f"Evidence {DATA}:\n" + "{{documents}}\n\n{{task}}"),
}


class Settings(Section):
    """Where and how often it searches, and when repetition ends the search."""

    source: str = "search"
    """Where it searches: `index`, or a name under `sources`."""
    documents: int = Field(3, gt=0)
    """Number of documents that a query finds."""
    steps: int = Field(5, ge=0)
    """Maximum number of searches."""
    tolerance: int | None = Field(2, ge=2)
    """Number of similar queries or results in a row that ends the searching. `null`: none does."""
    similarity: float = Field(0.9, ge=0, le=1)
    """Value above which two texts are similar."""


@dataclass(frozen=True)
class SearchStep:
    """A query and what it found."""

    query: str
    result: ToolResult

    @property
    def text(self) -> str:
        return " ".join(one_line(passage.text) for passage in self.result.passages) or "nothing"


async def solve(question: Question, tools: Tools, settings: Settings) -> Answer:
    """Search until the model gives a label, searching repeats itself or the budget is used up."""
    labels = labels_of(question)
    past: list[SearchStep] = []
    stopped = f"answer after {settings.steps} search(es): the budget"
    for step in range(1, settings.steps + 1):
        try:
            said = await ask_verifier(tools, labels, past, last=False)
        except Unparsed as problem:
            tools.note("verifier", f"asked for the answer: {problem.error}")
            stopped = f"answer forced: no decision could be read at step {step}"
            break
        if "final_answer" in said:
            return make_answer(tools, said, past, f"answer at step {step}")
        query = one_line(said["search_query"])
        why = await repetition_reason(tools, query, past, settings)
        if why:
            tools.turn(step, "verifier", f"{said['reasoning']}\n({why})", query=query)
            stopped = f"answer forced: {why} at step {step}"
            break
        result = await tools.try_search("verifier", query, settings.documents, source=settings.source)
        past.append(SearchStep(query, result))
        tools.turn(step, "verifier", said["reasoning"], query=query, passages=result.passages)
        tools.so_far = Answer("", evidence_of(past))
    return make_answer(tools, await ask_verifier(tools, labels, past, last=True), past, stopped)


async def ask_verifier(tools: Tools, labels: Sequence[Label], past: Sequence[SearchStep], last: bool) -> dict[str, Any]:
    """A fresh conversation that sees the evidence so far; the `last` one must answer."""
    documents = evidence_text(evidence_of(past), missing_text([step.result for step in past]))
    queries = "\n".join(f"- {step.query}{' (no answer)' if step.result.error else ''}" for step in past)
    asked = tools.begin("verifier", "last_verifier" if last else "verifier", documents=documents, queries=queries)
    return await tools.ask(*asked, schema(labels, last))


def schema(labels: Sequence[Label], last: bool) -> dict[str, Any]:
    """The JSON schema of a decision; of the `last` one, of an answer alone."""
    reasoning = {"type": "string", "maxLength": 600}
    answers = object_schema(reasoning=reasoning, final_answer={"enum": [label.name for label in labels]})
    query = {"type": "string", "minLength": 1, "maxLength": 120}
    return answers if last else {"anyOf": [answers, object_schema(reasoning=reasoning, search_query=query)]}


def evidence_of(past: Sequence[SearchStep]) -> tuple[Passage, ...]:
    """All passages that were found, each once."""
    return unique(passage for step in past for passage in step.result.passages)


def make_answer(tools: Tools, said: dict[str, Any], past: Sequence[SearchStep], stopped: str) -> Answer:
    """The answer of the last decision."""
    label, reasoning = said["final_answer"], said["reasoning"].strip()
    tools.turn(len(tools.turns) + 1, "verifier", reasoning, label)
    return Answer(label, evidence_of(past), explanation=reasoning, stopped=stopped)


async def repetition_reason(tools: Tools, query: str, past: Sequence[SearchStep], settings: Settings) -> str:
    """Why there is no point in searching on; empty where there is."""
    if settings.tolerance is None:
        return ""
    past = [step for step in past if not step.result.error]
    before = settings.tolerance - 1
    if len(past) >= before and await is_similar_to_all(tools, [step.query for step in past[-before:]], query, settings):
        return "queries repeat"
    results = [step.text for step in past]
    if len(past) > before and await is_similar_to_all(tools, results[-before - 1 : -1], results[-1], settings):
        return "results repeat"
    return ""


async def is_similar_to_all(tools: Tools, texts: Sequence[str], text: str, settings: Settings) -> bool:
    """Tell whether the text is similar to each of the others."""
    vectors = await asyncio.to_thread(tools.embedder, [text, *texts])
    return bool((vectors[1:] @ vectors[0]).min() > settings.similarity)


SYSTEM = SystemSpec(
    Settings,
    solve,
    roles=("verifier",),
    embeds=True,
    prompts=PROMPTS,
    gives_verdict=True,
    searches=SearchFields(go_on={"search_query": ...}, stop={"final_answer": ...}, queries=("search_query",)),
    calls=lambda settings: {"verifier": Calls(1 + settings.steps / 2, settings.documents)},
)
