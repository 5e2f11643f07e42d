"""Factcheck-GPT (Wang et al. 2023, arXiv 2311.09000, and the authors' published code): a stance of every document.

The text is taken apart into claims that stand alone (decompose and decontextualise, one step); those worth checking
are kept; for each, questions are written and searched. Its evidence are each question's first document, then each one's
second, and so on. Every document's stance is asked for: it supports the claim completely or partially, refutes it, or
is irrelevant. The stances decide the claim: true if one supports it, else false if one refutes it. The text is true
only if all its claims are.

Budget, with n claims (n at most `claims`, 10), w of them worth checking, and at most e = `evidence` (5) documents each:
2 + w(1 + e) model calls and 5w searches. `extract: false`, where the text is a single claim: 1 + e calls, 5 searches.

Deviations
- The published code first asks a model for a verdict from all documents at once (FacTool's last call) and falls back on
  the stances; here they decide, which is what tells the two systems apart.
- No document has a bearing on the claim: the task's label of the stance "unknown"; in a task without one it is false,
  as in the published code.
- A stance that cannot be read is left out (published: it refutes); if none can be read the claim is unverified. If the
  check for worth cannot be read, all claims are checked; if no claim is left the text is unverified (published: true).
- A claim without evidence, of which a search gave no answer, is unverified and never false; where it leaves the whole
  text undecided, the trajectory failed and is sampled again. No model sees which searches gave an answer.
- Similar questions are not merged and passages are not ranked again by a second model: `source` ranks them.
- Revising the text, the paper's last step, is not part of it: this system gives a verdict. The prompts' words are ours.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any

from pydantic import Field

from ratchet.agents.core.claims import (
    CLAIM_PROMPTS,
    CheckedClaim,
    ClaimSettings,
    calls_for_claims,
    claims_answer,
    claims_of,
    document_text,
    joint_truth,
    label_of_claims,
    missing_text,
    search_claims,
    unique,
    write_queries,
)
from ratchet.agents.core.output import object_schema
from ratchet.agents.core.prompts import DATA, Prompt
from ratchet.agents.core.system import Calls, SystemSpec
from ratchet.agents.core.task import label_of_stance
from ratchet.agents.core.tools import Answer, Tools, Unparsed
from ratchet.core.records import Passage, Question
from ratchet.retrieval.retriever import SourceError

WORTH = """\
Say of each text whether it is worth checking: true for a statement of fact, false for an opinion, a question or a \
request. Write one JSON object with one value for each text, in order: {"worth": [true, false]}"""
QUESTIONS = """\
Write {{count}} different questions for a search engine whose answers tell whether the claim is true. Write one JSON \
object:
{"queries": ["first question", "second question"]}"""
STANCE = """\
Say how the evidence stands to the claim.
completely-support: it shows all of the claim
partially-support: it shows a part of the claim, and nothing against it
refute: it shows that the claim is wrong
irrelevant: it says nothing about it
Write one JSON object: {"stance": "one of the four"}"""
PROMPTS = {
    **CLAIM_PROMPTS,
    "filter.system": Prompt(WORTH),
    "filter.user": Prompt("{{claims}}"),
    "searcher.system": Prompt(QUESTIONS, optional=("count",)),
    "stance.system": Prompt(STANCE),
    "stance.user": Prompt(f"Evidence {DATA}:\n" + "{{document}}\n\nClaim: {{claim}}"),
}

STANCES = ("completely-support", "partially-support", "refute", "irrelevant")
UNREAD = "unparsed"


class Settings(ClaimSettings):
    """Where and how much is searched, and how claims are extracted and judged. A single claim is worth checking."""

    queries: int = Field(5, gt=0)
    """Questions for each claim."""
    evidence: int = Field(5, gt=0)
    """Documents of a claim whose stance is asked for."""


async def solve(question: Question, tools: Tools, settings: Settings) -> Answer:
    """Judge each claim by the stances of its evidence, and the text by its claims."""
    claims = await claims_of(question, tools, settings)
    if settings.extract:
        claims = await worth_checking(tools, claims)
    queries = await tools.gather(*(write_queries(tools, claim, settings.queries) for claim in claims))
    results_of_claims = await search_claims(tools, queries, settings.documents, settings.source)
    missing = [missing_text(results) for results in results_of_claims]
    evidence = [interleave([result.passages for result in results], settings.evidence) for results in results_of_claims]
    asked = [[stance_on(tools, claim, one) for one in read] for claim, read in zip(claims, evidence, strict=True)]
    stances = await tools.gather(*(tools.gather(*each) for each in asked))
    open_ended = label_of_stance(question.labels, "unknown") is not None
    checked = [
        CheckedClaim(claim, asked, read, outcome(held, open_ended or bool(lost)), reason(held, lost))
        for claim, asked, read, held, lost in zip(claims, queries, evidence, stances, missing, strict=True)
    ]
    tools.so_far = claims_answer(checked)
    undecided = [lost for claim, lost in zip(checked, missing, strict=True) if claim.true is None and lost]
    if joint_truth(checked) is None and undecided:
        raise SourceError(f"{undecided[0]} {tools.last_failure}")
    return replace(tools.so_far, text=label_of_claims(question, checked, "stance"))


async def worth_checking(tools: Tools, claims: list[str]) -> list[str]:
    """The claims that are worth checking; all of them where the reply cannot be read."""
    if not claims:
        return []
    flags: dict[str, Any] = {"type": "array", "items": {"type": "boolean"}}
    flags |= {"minItems": len(claims), "maxItems": len(claims)}
    text = "\n".join(f"{number}. {claim}" for number, claim in enumerate(claims, 1))
    try:
        said = await tools.ask(*tools.begin("filter", claims=text), object_schema(worth=flags))
    except Unparsed as problem:
        tools.note("filter", f"all claims are checked: {problem.error}")
        return claims
    kept = [claim for claim, worth in zip(claims, said["worth"], strict=True) if worth]
    if len(kept) < len(claims):
        tools.note("filter", "not worth checking: " + "; ".join(claim for claim in claims if claim not in kept))
    return kept


def interleave(ranked: Sequence[Sequence[Passage]], max_passages: int) -> tuple[Passage, ...]:
    """The first of every ranking, then the second of every ranking, and so on; each passage once."""
    return unique(passage for rank in zip_longest(*ranked) for passage in rank if passage is not None)[:max_passages]


async def stance_on(tools: Tools, claim: str, passage: Passage) -> str:
    """How one document stands to the claim, or UNREAD."""
    asked = tools.begin("stance", document=document_text(1, passage), claim=claim)
    try:
        said = await tools.ask(*asked, object_schema(stance={"enum": [*STANCES]}))
    except Unparsed:
        return UNREAD
    return str(said["stance"])


def outcome(stances: Sequence[str], open_ended: bool) -> bool | None:
    """True, false, or None; `open_ended`: a claim without evidence is not false."""
    if "completely-support" in stances or "partially-support" in stances:
        return True
    if "refute" in stances:
        return False
    return None if open_ended or UNREAD in stances else False


def reason(stances: Sequence[str], missing: str = "") -> str:
    """How many documents have which stance, and `missing`."""
    counts = Counter(stances)
    told = [f"{counts[stance]} {stance}" for stance in (*STANCES, UNREAD) if counts[stance]]
    return f"stances of the evidence: {', '.join(told) or 'none found'} {missing}".rstrip()


SYSTEM = SystemSpec(
    Settings,
    solve,
    roles=("extractor", "filter", "searcher", "stance"),
    prompts=PROMPTS,
    gives_verdict=True,
    calls=lambda settings: calls_for_claims(
        settings, ("extractor", "filter"), {"searcher": Calls(), "stance": Calls(settings.evidence, 1)}
    ),
)
