"""The verification baselines that judge a text by its claims: FacTool and Factcheck-GPT.

The claims of a text are extracted, searched for and judged one by one. A claim is found true, false, or neither (None):
that is never taken for true. True and false become labels of the task by the labels' stance, so these systems serve
every task that has labels of both. The words of the prompts are ours.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

from pydantic import Field

from ratchet.agents.core.labels import labels_of
from ratchet.agents.core.output import AnyText, JsonObject, at_most, object_schema
from ratchet.agents.core.prompts import DATA, Prompt, distinct, document_text, evidence_text, one_line, unique
from ratchet.agents.core.system import Calls, SystemSpec
from ratchet.agents.core.task import label_of_stance
from ratchet.agents.core.tools import Answer, Tools, Unparsed, missing_text
from ratchet.core.config import Section
from ratchet.core.errors import UserError
from ratchet.core.records import Passage, Question, Stance
from ratchet.retrieval.retriever import SourceError
from ratchet.retrieval.sources.source import ToolResult

EXTRACTOR = """\
Take the text apart into its factual claims. Write each claim as one short sentence that can be understood alone: put \
names in the place of words like "he" or "it". Leave out opinions and questions. Write one JSON object:
{"claims": ["first claim", "second claim"]}"""
CLAIM_PROMPTS = {
    "extractor.system": Prompt(EXTRACTOR),
    "extractor.user": Prompt("Text: {{question}}"),
    "searcher.user": Prompt("Claim: {{claim}}"),
}
"""Prompts of every system that extracts claims and writes queries for them."""


class ClaimSettings(Section):
    """Where and how much is searched, and how claims are extracted."""

    source: str = "search"
    """Where it searches: `index`, or a name under `sources`."""
    documents: int = Field(5, gt=0)
    """Number of documents that a query finds."""
    extract: bool = True
    """Split the text into claims; else it is one."""
    claims: int = Field(10, gt=0)
    """Maximum number of claims."""


@dataclass(frozen=True)
class CheckedClaim:
    """A claim and what became of it."""

    claim: str
    queries: tuple[str, ...]
    passages: tuple[Passage, ...]
    true: bool | None
    """None: neither true nor false was found; `reason` says why."""
    reason: str

    @property
    def verdict(self) -> str:
        return {True: "true", False: "false", None: "unverified"}[self.true]


def text_list_schema(max_texts: int, min_texts: int = 0, max_characters: int = 300) -> dict[str, Any]:
    """The JSON schema of a list of short texts. Upper bounds are the grammar's (agents/core/output.py)."""
    item = {"type": "string", "minLength": 1, "maxLength": max_characters}
    return {"type": "array", "items": item, "minItems": min_texts, "maxItems": max_texts}


def calls_for_claims(
    settings: ClaimSettings, extracting: tuple[str, ...], checking: Mapping[str, Calls]
) -> dict[str, Calls]:
    """The calls where each claim takes those of `checking`, a text having three claims where they are extracted."""
    if not settings.extract:
        return dict(checking)
    checked = {role: Calls(3 * calls.number, calls.passages) for role, calls in checking.items()}
    return {**dict.fromkeys(extracting, Calls()), **checked}


async def claims_of(question: Question, tools: Tools, settings: ClaimSettings) -> list[str]:
    """The claims of the task's text, or the text as one; a note says where there may be more. Raises Unparsed, and
    UserError where no label of the question says that a claim is true, or none that it is false."""
    for stance in ("true", "false"):
        if label_of_stance(labels_of(question), stance) is None:
            raise UserError(
                f"question {question.id!r}: this system finds claims true or false, and no label has the stance "
                f"{stance!r}: give the labels their stances, or use a system that chooses among labels (mermaid, fire)"
            )
    if not settings.extract:
        return [one_line(question.text)]
    max_claims = settings.claims
    said = await tools.ask(*tools.begin("extractor"), object_schema(claims=text_list_schema(max_claims)))
    if len(said["claims"]) >= max_claims:
        tools.note("extractor", f"took the first {max_claims} claims (claims); there may be more")
    return distinct(said["claims"][:max_claims])


async def write_queries(tools: Tools, claim: str, count: int) -> tuple[str, ...]:
    """So many search queries for a claim; the claim itself where none can be read."""
    schema = object_schema(queries=text_list_schema(count, min_texts=count, max_characters=120))
    try:
        said = await tools.ask(*tools.begin("searcher", claim=claim, count=str(count)), schema)
    except Unparsed as problem:
        tools.note("searcher", f"searched the claim itself: {problem.error}")
        return (claim,)
    return tuple(distinct(said["queries"])) or (claim,)


async def search_claims(
    tools: Tools, queries: Iterable[Collection[str]], k: int, source: str
) -> list[list[ToolResult]]:
    """Search all queries of all claims at once; the results by claim. Raises SourceError where none got an answer."""

    async def search(asked: Collection[str]) -> list[ToolResult]:
        return await asyncio.gather(*(tools.try_search("searcher", query, k, source=source) for query in asked))

    results = await asyncio.gather(*map(search, queries))
    if tools.outage:
        raise SourceError(tools.outage)
    return results


def joint_truth(checked: Sequence[CheckedClaim]) -> bool | None:
    """The truth of the whole text: true only where all its claims are, false where one is."""
    if any(claim.true is False for claim in checked):
        return False
    return True if checked and all(claim.true for claim in checked) else None


def label_of_claims(question: Question, checked: Sequence[CheckedClaim], role: str) -> str:
    """The label of the outcome. Raises Unparsed where it is open and the task has no label for that."""
    stances: dict[bool | None, Stance] = {True: "true", False: "false", None: "unknown"}
    label = label_of_stance(labels_of(question), stances[joint_truth(checked)])
    if label is None:
        why = "; ".join(f"{one_line(c.claim, 80)}: {c.reason}" for c in checked if c.true is None)
        raise Unparsed(role, f"no verdict, and no label that says so: {why or 'no claim to check'}")
    return label


def claims_answer(tools: Tools, checked: Sequence[CheckedClaim]) -> Answer:
    """The answer without its label, and a turn for each claim. The explanation is the claims' reasons; of one claim the
    reason alone."""
    for number, claim in enumerate(checked, 1):
        said, query = f"{claim.claim}\n{claim.reason}", " | ".join(claim.queries)
        tools.turn(1, f"claim {number}", said, claim.verdict, query, claim.passages)
    reasons = [f"{claim.claim} ({claim.verdict}) {claim.reason}" for claim in checked]
    return Answer(
        "",
        unique(passage for claim in checked for passage in claim.passages),
        explanation="\n".join(reasons) if len(checked) != 1 else checked[0].reason,
        stopped=f"{len(checked)} claim(s) checked",
    )


# FacTool

QUERIES = """\
Write two different search queries that help to find out whether the claim is true. Write one JSON object:
{"queries": ["first query", "second query"]}"""
VERIFY = """\
Find out whether the claim is true, with the help of the evidence. Evidence may be wrong, beside the point, or \
contradict other evidence. Write one JSON object:
{"reasoning": "why the claim is true or not, in one or two sentences", "error": "what is wrong with it, or nothing", \
"correction": "the claim put right, or nothing", "factuality": true or false}"""

FACTOOL_PROMPTS = {
    **CLAIM_PROMPTS,
    "searcher.system": Prompt(QUERIES),
    "verifier.system": Prompt(VERIFY),
    "verifier.user": Prompt(f"Evidence {DATA}:\n" + "{{documents}}\n\nClaim: {{claim}}"),
}


class Factuality(JsonObject):
    """The verifier's judgement of one claim."""

    reasoning: AnyText = at_most(characters=600)
    error: AnyText = at_most(characters=300)
    correction: AnyText = at_most(characters=300)
    factuality: bool


async def factool(question: Question, tools: Tools, settings: ClaimSettings) -> Answer:
    """FacTool for knowledge-based answers (Chern et al. 2023, arXiv 2307.13528, and the authors' published code).

    The claims of an answer are extracted; for each claim two search queries are written and searched; each claim is
    judged against what both found: {reasoning, error, correction, factuality}. The answer is true only if all its
    claims are.

    Budget, with n claims, n at most `claims` (10): 1 + 2n model calls and 2n searches (top 5). `extract: false`, where
    the text is a single claim: 2 model calls and 2 searches. Claims are checked at once.

    Deviations
    - A verdict that cannot be read leaves its claim unverified, and so does an answer without any claim; the published
      code counts both as true. An open outcome is the task's label of the stance "unknown"; a task without one:
      unparsed.
    - Queries that cannot be read: the claim itself is searched (published: the word "None", twice).
    - A search that gives no answer is told to the verifier; where none gave one, the trajectory failed.
    - The published code asks Google for 10 results and keeps the first 5 of a query, answer boxes first; here it is the
      top 5 of `source`. It sets no limit to claims. Extraction has no worked examples, which a config can give
      (`roles.extractor.examples`).
    """
    claims = await claims_of(question, tools, settings)
    queries = await tools.gather(*(write_queries(tools, claim, 2) for claim in claims))
    results_of_claims = await search_claims(tools, queries, settings.documents, settings.source)
    evidence = [unique(passage for result in results for passage in result.passages) for results in results_of_claims]
    checked = await tools.gather(
        *(
            verify(tools, claim, asked, read, missing_text(results))
            for claim, asked, read, results in zip(claims, queries, evidence, results_of_claims, strict=True)
        )
    )
    tools.so_far = claims_answer(tools, checked)
    return replace(tools.so_far, text=label_of_claims(question, checked, "verifier"))


async def verify(
    tools: Tools, claim: str, queries: tuple[str, ...], evidence: tuple[Passage, ...], missing: str
) -> CheckedClaim:
    """Judge one claim by its evidence. A reply that cannot be read leaves it unverified. `missing`: the verifier's note
    of searches that gave no answer."""
    try:
        said = await tools.ask(
            *tools.begin("verifier", documents=evidence_text(evidence, missing), claim=claim), Factuality
        )
    except Unparsed as problem:
        tools.note("verifier", f"left unverified: {claim}")
        return CheckedClaim(claim, queries, evidence, None, f"unparsed: {problem.error}")
    return CheckedClaim(claim, queries, evidence, said.factuality, said.reasoning.strip())


# Factcheck-GPT

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
FACTCHECK_GPT_PROMPTS = {
    **CLAIM_PROMPTS,
    "filter.system": Prompt(WORTH),
    "filter.user": Prompt("{{claims}}"),
    "searcher.system": Prompt(QUESTIONS, optional=("count",)),
    "stance.system": Prompt(STANCE),
    "stance.user": Prompt(f"Evidence {DATA}:\n" + "{{document}}\n\nClaim: {{claim}}"),
}

STANCES = ("completely-support", "partially-support", "refute", "irrelevant")
UNREAD = "unparsed"


class StanceSettings(ClaimSettings):
    """Where and how much is searched, and how claims are extracted and judged. A single claim is worth checking."""

    queries: int = Field(5, gt=0)
    """Number of questions for each claim."""
    evidence: int = Field(5, gt=0)
    """Number of documents of a claim whose stance is asked for."""


async def factcheck_gpt(question: Question, tools: Tools, settings: StanceSettings) -> Answer:
    """Factcheck-GPT (Wang et al. 2023, arXiv 2311.09000, and the authors' published code): a stance of every document.

    The text is taken apart into claims that stand alone (decompose and decontextualise, one step); those worth checking
    are kept; for each, questions are written and searched. Its evidence are each question's first document, then each
    one's second, and so on. Every document's stance is asked for: it supports the claim completely or partially,
    refutes it, or is irrelevant. The stances decide the claim: true if one supports it, else false if one refutes it.
    The text is true only if all its claims are.

    Budget, with n claims (n at most `claims`, 10), w of them worth checking, and at most e = `evidence` (5) documents
    each: 2 + w(1 + e) model calls and 5w searches. `extract: false`, where the text is a single claim: 1 + e calls, 5
    searches.

    Deviations
    - The published code first asks a model for a verdict from all documents at once (FacTool's last call) and falls
      back on the stances; here they decide, which is what tells the two systems apart.
    - No document has a bearing on the claim: the task's label of the stance "unknown"; in a task without one it is
      false, as in the published code.
    - A stance that cannot be read is left out (published: it refutes); if none can be read the claim is unverified. If
      the check for worth cannot be read, all claims are checked; if no claim is left the text is unverified (published:
      true).
    - A claim without evidence, of which a search gave no answer, is unverified and never false; where it leaves the
      whole text undecided, the trajectory failed and is sampled again. No model sees which searches gave an answer.
    - Similar questions are not merged and passages are not ranked again by a second model: `source` ranks them.
    - Revising the text, the paper's last step, is not part of it: this system gives a verdict.
    """
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
    tools.so_far = claims_answer(tools, checked)
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
    """The stance of one document to the claim, or UNREAD."""
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
    """The number of documents of each stance, and `missing`."""
    counts = Counter(stances)
    told = [f"{counts[stance]} {stance}" for stance in (*STANCES, UNREAD) if counts[stance]]
    return f"stances of the evidence: {', '.join(told) or 'none found'} {missing}".rstrip()


SYSTEMS: dict[str, SystemSpec[Any]] = {
    "factool": SystemSpec(
        ClaimSettings,
        factool,
        roles=("extractor", "searcher", "verifier"),
        prompts=FACTOOL_PROMPTS,
        gives_verdict=True,
        calls=lambda settings: calls_for_claims(
            settings, ("extractor",), {"searcher": Calls(), "verifier": Calls(1, 4)}
        ),
    ),
    "factcheck_gpt": SystemSpec(
        StanceSettings,
        factcheck_gpt,
        roles=("extractor", "filter", "searcher", "stance"),
        prompts=FACTCHECK_GPT_PROMPTS,
        gives_verdict=True,
        calls=lambda settings: calls_for_claims(
            settings, ("extractor", "filter"), {"searcher": Calls(), "stance": Calls(settings.evidence, 1)}
        ),
    ),
}
