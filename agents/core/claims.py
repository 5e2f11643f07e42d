"""What the systems that check claims share: evidence as text, the claims of a longer answer, and their outcome.

A claim is found true, false, or neither (None): that is never taken for true. True and false become labels of the task
by the labels' stance, so these systems serve every task that has labels of both.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from ratchet.agents.core.labels import labels_of
from ratchet.agents.core.output import object_schema
from ratchet.agents.core.prompts import Prompt, one_line
from ratchet.agents.core.system import Calls
from ratchet.agents.core.task import label_of_stance
from ratchet.agents.core.tools import Answer, Tools, Unparsed
from ratchet.core.config import Section
from ratchet.core.errors import UserError
from ratchet.core.records import Passage, Question, Stance, Turn
from ratchet.retrieval.retriever import SourceError
from ratchet.retrieval.sources.source import ToolResult

TITLE_CHARACTERS = 200
"""Of a document's title, that a model sees. Its text is cut where it is found (`Resources.fit`)."""
EXTRACTOR = """\
Take the text apart into its factual claims. Write each claim as one short sentence that can be understood alone: put \
names in the place of words like "he" or "it". Leave out opinions and questions. Write one JSON object:
{"claims": ["first claim", "second claim"]}"""
CLAIM_PROMPTS = {
    "extractor.system": Prompt(EXTRACTOR),
    "extractor.user": Prompt("Text: {{question}}"),
    "searcher.user": Prompt("Claim: {{claim}}"),
}
"""Of every system that extracts claims and writes queries for them."""


class ClaimSettings(Section):
    """Where and how much is searched, and how claims are extracted."""

    source: str = "search"
    """A name under `sources`, or index."""
    documents: int = Field(5, gt=0)
    """Found by each query."""
    extract: bool = True
    """False: the text is one claim."""
    claims: int = Field(10, gt=0)
    """At most."""


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


def evidence_text(passages: Iterable[Passage], missing: str = "") -> str:
    """One document a line: its number, its title and its text; then `missing`. "none" where there is nothing."""
    lines = [document_text(number, passage) for number, passage in enumerate(passages, 1)]
    return "\n".join([*lines, *filter(None, [missing])]) or "none"


def document_text(number: int, passage: Passage) -> str:
    """A document in one line: its number, its title and its text."""
    title = f"{one_line(passage.title, TITLE_CHARACTERS)}: " if passage.title.strip() else ""
    return f"[{number}] {title}{one_line(passage.text)}"


def missing_text(results: Sequence[ToolResult]) -> str:
    """What a model is told of searches that gave no answer; "" where all gave one."""
    failed = sum(bool(result.error) for result in results)
    return f"(Evidence is missing: {failed} of {len(results)} searches gave no answer.)" if failed else ""


def unique(passages: Iterable[Passage]) -> tuple[Passage, ...]:
    """Each passage once, where it first came: one id with two texts, as a service may give it, is two passages."""
    kept: dict[tuple[str, str], Passage] = {}
    for passage in passages:
        kept.setdefault((passage.id, passage.text), passage)
    return tuple(kept.values())


def distinct(texts: Iterable[str]) -> list[str]:
    """The texts in one line each, less blank ones and repetitions."""
    kept: dict[str, str] = {}
    for text in texts:
        if line := one_line(text):
            kept.setdefault(line.casefold(), line)
    return list(kept.values())


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
    """What each query of each claim found; all are searched at once. Raises SourceError where none got an answer."""

    async def search(asked: Collection[str]) -> list[ToolResult]:
        return await asyncio.gather(*(tools.try_search("searcher", query, k, source=source) for query in asked))

    results = await asyncio.gather(*map(search, queries))
    if tools.outage:
        raise SourceError(tools.outage)
    return results


def joint_truth(checked: Sequence[CheckedClaim]) -> bool | None:
    """Of the whole text: true only where all its claims are, false where one is."""
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


def claim_turns(checked: Sequence[CheckedClaim]) -> tuple[Turn, ...]:
    """One turn for each claim that was checked."""
    return tuple(
        Turn(
            round=1,
            speaker=f"claim {number}",
            query=" | ".join(claim.queries),
            passages=tuple(passage.id for passage in claim.passages),
            said=f"{claim.claim}\n{claim.reason}",
            verdict=claim.verdict,
        )
        for number, claim in enumerate(checked, 1)
    )


def claims_answer(checked: Sequence[CheckedClaim]) -> Answer:
    """All that was found out of the claims, without the label that they come to. Its explanation are the reasons, claim
    by claim; of one claim the reason alone."""
    reasons = [f"{claim.claim} ({claim.verdict}) {claim.reason}" for claim in checked]
    return Answer(
        "",
        unique(passage for claim in checked for passage in claim.passages),
        explanation="\n".join(reasons) if len(checked) != 1 else checked[0].reason,
        turns=claim_turns(checked),
        stopped=f"{len(checked)} claim(s) checked",
    )
