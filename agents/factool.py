"""FacTool for knowledge-based answers (Chern et al. 2023, arXiv 2307.13528, and the authors' published code).

The claims of an answer are extracted; for each claim two search queries are written and searched; each claim is judged
against what both found: {reasoning, error, correction, factuality}. The answer is true only if all its claims are.

Budget, with n claims, n at most `claims` (10): 1 + 2n model calls and 2n searches (top 5). `extract: false`, where the
text is a single claim: 2 model calls and 2 searches. Claims are checked at once.

Deviations
- A verdict that cannot be read leaves its claim unverified, and so does an answer without any claim; the published code
  counts both as true. An open outcome is the task's label of the stance "unknown"; a task without one: unparsed.
- Queries that cannot be read: the claim itself is searched (published: the word "None", twice).
- A search that gives no answer is told to the verifier; where none gave one, the trajectory failed.
- The published code asks Google for 10 results and keeps the first 5 of a query, answer boxes first; here it is the top
  5 of `source`. It sets no limit to claims. The words of the prompts are ours; extraction has no worked examples, which
  a config can give (`roles.extractor.examples`).
"""

from __future__ import annotations

from dataclasses import replace

from ratchet.agents.core.claims import (
    CLAIM_PROMPTS,
    CheckedClaim,
    ClaimSettings,
    calls_for_claims,
    claims_answer,
    claims_of,
    evidence_text,
    label_of_claims,
    missing_text,
    search_claims,
    unique,
    write_queries,
)
from ratchet.agents.core.output import AnyText, JsonObject, at_most
from ratchet.agents.core.prompts import DATA, Prompt
from ratchet.agents.core.system import Calls, SystemSpec
from ratchet.agents.core.tools import Answer, Tools, Unparsed
from ratchet.core.records import Passage, Question

QUERIES = """\
Write two different search queries that help to find out whether the claim is true. Write one JSON object:
{"queries": ["first query", "second query"]}"""
VERIFY = """\
Find out whether the claim is true, with the help of the evidence. Evidence may be wrong, beside the point, or \
contradict other evidence. Write one JSON object:
{"reasoning": "why the claim is true or not, in one or two sentences", "error": "what is wrong with it, or nothing", \
"correction": "the claim put right, or nothing", "factuality": true or false}"""

PROMPTS = {
    **CLAIM_PROMPTS,
    "searcher.system": Prompt(QUERIES),
    "verifier.system": Prompt(VERIFY),
    "verifier.user": Prompt(f"Evidence {DATA}:\n" + "{{documents}}\n\nClaim: {{claim}}"),
}


class Verdict(JsonObject):
    """The verifier's judgement of one claim."""

    reasoning: AnyText = at_most(characters=600)
    error: AnyText = at_most(characters=300)
    correction: AnyText = at_most(characters=300)
    factuality: bool


async def solve(question: Question, tools: Tools, settings: ClaimSettings) -> Answer:
    """Judge each claim by its evidence, and the text by its claims."""
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
    tools.so_far = claims_answer(checked)
    return replace(tools.so_far, text=label_of_claims(question, checked, "verifier"))


async def verify(
    tools: Tools, claim: str, queries: tuple[str, ...], evidence: tuple[Passage, ...], missing: str
) -> CheckedClaim:
    """Judge one claim by its evidence. A reply that cannot be read leaves it unverified.

    `missing`: what the verifier is told of searches that gave no answer.
    """
    try:
        said = await tools.ask(
            *tools.begin("verifier", documents=evidence_text(evidence, missing), claim=claim), Verdict
        )
    except Unparsed as problem:
        tools.note("verifier", f"left unverified: {claim}")
        return CheckedClaim(claim, queries, evidence, None, f"unparsed: {problem.error}")
    return CheckedClaim(claim, queries, evidence, said.factuality, said.reasoning.strip())


SYSTEM = SystemSpec(
    ClaimSettings,
    solve,
    roles=("extractor", "searcher", "verifier"),
    prompts=PROMPTS,
    gives_verdict=True,
    calls=lambda settings: calls_for_claims(settings, ("extractor",), {"searcher": Calls(), "verifier": Calls(1, 4)}),
)
