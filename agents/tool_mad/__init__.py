"""Tool-MAD: fact verification by debate between agents with different tools.

Source: Jeong et al. 2026, arXiv 2601.04742.

Two agents, one over a collection of documents ("rag"), one over web search ("search"). In each of at most three rounds
each writes a query, reads three documents and answers: its reasons, then a label alone on the last line. From round 2
on it has seen the opponent's last answer, and its own last query. Each answer gets two scores, faithfulness and answer
relevance (`ragas.py`). Both say the same, and no score is below its threshold: consensus. Else, after the
last round, a judge decides from the whole debate, what was found, and each agent's mean scores. Labels come from the
task.

Budget: 14 model calls a round (of each agent: 1 query, 1 answer, 2 for faithfulness, 3 for relevance) and one for the
judge, 43 at most; one retrieval an agent and round, so 2 to 6. Without query formulation 6 calls an agent and round,
without stability scores 2, for an agent without a tool 4; with keywords, or from round 2 on with summaries, 1 more.

Where the paper disagrees with itself or its code, a setting has either way; docs/papers/tool-mad.md has the table, the
ablations and the deviations. The scorer should be frozen (`scorer: {trainable: false}`): it measures the others. The
words of the prompts are ours.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from operator import ge, gt
from typing import Literal

from pydantic import Field

from ratchet.agents.core.labels import ask_verdict, labels_of, require_label, unanimous_verdict
from ratchet.agents.core.prompts import one_line, quoted
from ratchet.agents.core.system import Calls, SystemSpec
from ratchet.agents.core.task import task_with_options
from ratchet.agents.core.tools import Answer, OutOfBudget, Tools, Unparsed
from ratchet.agents.tool_mad.debate import (
    PROMPTS,
    Agent,
    AgentTurn,
    Kind,
    Lookup,
    Quote,
    Round,
    begin_answer,
    begin_query,
    begin_ruling,
    known_scores,
    make_agents,
    mean_scores,
    other_answer,
    passages_of,
    read_query,
)
from ratchet.agents.tool_mad.ragas import F, Measurement, answer_relevance, check_support, extract_statements
from ratchet.core.config import Section, Thresholds
from ratchet.core.records import Question
from ratchet.retrieval.retriever import SourceError


class Sources(Section):
    """Where the agents search: the index, or a name under the config's `sources`."""

    rag: str = "index"
    """Where the agent "rag" searches: `index`, or a name under `sources`."""
    search: str = "search"
    """Where the agent "search" searches."""


class Settings(Section):
    """The debate's rounds, agents, sources and scores."""

    rounds: int = Field(3, gt=0)
    """Maximum number of rounds."""
    documents: int = Field(3, gt=0)
    """Number of documents that a query finds."""
    agents: tuple[Kind, Kind] = ("rag", "search")
    """The sources of the two debaters."""
    sources: Sources = Sources()
    query_formulation: bool = True
    """Let an agent write its query; else the claim itself is every query."""
    query_from: Literal["answer", "summary"] = "answer"
    """Write a query from the opponent's last answer, or from a summary of it."""
    keywords: tuple[Literal["rag", "search"], ...] = ()
    """The agents that search with keywords drawn from their query."""
    stability: bool = True
    """Score the answers."""
    without_scores: Literal["all_rounds", "agreement"] = "all_rounds"
    """`stability: false`: play every round, or end the debate on agreement."""
    thresholds: Thresholds | None = None
    """Thresholds of this system alone. Default: `embedder.thresholds`, which hold for all."""
    thresholds_of: Literal["per_round", "accumulated"] = "per_round"
    """The last round's scores are at or above the thresholds, or the sums so far are above them."""
    no_evidence: Literal["unknown", "zero"] = "unknown"
    """Faithfulness of an answer whose search found nothing. `unknown`: it counts in no mean and reaches no
    threshold."""
    noncommittal: Literal["off", "zero"] = "off"
    """Relevance of an answer that commits to nothing: as computed (`off`), or 0."""
    judge_divides_by: Literal["rounds_played", "three"] = "rounds_played"
    """Divisor of the judge's mean scores."""
    questions: int = Field(3, gt=0)
    """Number of questions that answer relevance generates."""
    quoting: Literal["lines", "none"] = "lines"
    """Mark each line of what agents said, so that none can pose as another speaker."""
    statements: int | None = Field(None, gt=0)
    """Maximum number of statements that an answer is split into; others are dropped, with a note. Default: no bound, as
    in the paper."""

    @property
    def quote(self) -> Quote:
        return quoted if self.quoting == "lines" else str.strip


async def solve(question: Question, tools: Tools, settings: Settings) -> Answer:
    """Let two agents debate until they agree or the judge decides."""
    labels = labels_of(question)
    agents = make_agents(settings.agents)
    history: list[Round] = []
    for number in range(1, settings.rounds + 1):
        # Step by step for both at once, so that which dialogue is which does not depend on who is faster.
        last = history[-1] if history else {}
        lookups = await look_up(tools, settings, question, agents, last)
        if tools.outage:
            raise SourceError(tools.outage)
        verdicts = await tools.gather(
            *(
                ask_verdict(tools, *begin_answer(tools, agent, here, last, settings.quote), labels)
                for agent, here in zip(agents, lookups, strict=True)
            )
        )
        moves = [AgentTurn(here, verdict) for here, verdict in zip(lookups, verdicts, strict=True)]
        if settings.stability:
            moves = await score_turns(tools, settings, question, agents, moves)
        history.append(dict(zip([agent.name for agent in agents], moves, strict=True)))
        for name, move in history[-1].items():
            found, said = move.lookup, move.verdict
            tools.turn(number, name, said.text, said.label, found.query, found.passages, move.scores)
        reply = unanimous_verdict({name: move.verdict for name, move in history[-1].items()})
        tools.so_far = _answer(history, reply.text, reply.explanation, history[-1:] if reply.text else history)
        if agreed(agents, history, settings, settings.thresholds or tools.thresholds):
            return replace(tools.so_far, stopped=f"consensus in round {number}")
    scores = {a.name: mean_scores(history, a.name, settings.judge_divides_by) for a in agents if settings.stability}
    ruling = await ask_verdict(tools, *begin_ruling(tools, history, scores, settings.quote), labels)
    answer = _answer(history, ruling.label, ruling.reasons, history, f"judge after round {len(history)}")
    return require_label(tools, answer, "judge")


async def look_up(
    tools: Tools, settings: Settings, question: Question, agents: Sequence[Agent], last: Round
) -> list[Lookup]:
    """The agents' queries and what these find; nothing for an agent without a tool."""
    searching, task = [agent for agent in agents if agent.kind != "none"], task_with_options(question)

    async def summary(agent: Agent) -> str:
        other = other_answer(agent, last) if last else ""
        if not last or settings.query_from == "answer":
            return other
        return await tools.ask(*tools.begin("summariser", "summary", task=task, other_answer=settings.quote(other)))

    async def formulate(agent: Agent, other: str) -> str:
        dialogue, text = begin_query(tools, question, agent, last, settings.quote(other))
        return await tools.read(dialogue, text, lambda reply: read_query(reply, question.text))

    async def keywords(agent: Agent, query: str) -> str:
        if agent.kind not in settings.keywords:
            return query
        dialogue, text = tools.begin("keywords", task=task, query=one_line(query))
        said = await tools.read(dialogue, text, lambda reply: read_query(reply, query))
        return " ".join(re.sub("[,;]", " ", said).split())

    async def search(agent: Agent, query: str, words: str) -> Lookup:
        source = settings.sources.rag if agent.kind == "rag" else settings.sources.search
        result = await tools.try_search(agent.kind, words, settings.documents, source=source)
        return Lookup(query, result.passages, result.error)

    queries: Sequence[str] = [question.text] * len(searching)
    if settings.query_formulation:
        others = await tools.gather(*map(summary, searching))
        queries = await tools.gather(*map(formulate, searching, others))
    words = await tools.gather(*map(keywords, searching, queries))
    found = dict(zip(searching, await tools.gather(*map(search, searching, queries, words)), strict=True))
    return [found.get(agent, Lookup()) for agent in agents]


async def score_turns(
    tools: Tools, settings: Settings, question: Question, agents: Sequence[Agent], moves: Sequence[AgentTurn]
) -> list[AgentTurn]:
    """The moves with the faithfulness and the relevance of what was said."""

    async def ask(prompt: str, form: type[F]) -> F | None:
        try:
            return await tools.ask(tools.dialogue("scorer"), prompt, form)
        except (Unparsed, OutOfBudget):
            return None

    extracting = [
        extract_statements(ask, question, m.verdict.text, m.lookup.passages, settings.statements, tools.prompt)
        for m in moves
    ]
    flags = settings.noncommittal == "zero"
    scoring_relevance = [
        answer_relevance(ask, tools.embedder, question, m.verdict.text, settings.questions, flags, tools.prompt)
        for m in moves
    ]
    extracted, relevance = await tools.gather(tools.gather(*extracting), tools.gather(*scoring_relevance))
    faithfulness = await tools.gather(
        *(check_support(ask, e, m.lookup.passages, tools.prompt) for e, m in zip(extracted, moves, strict=True))
    )
    for agent, statements in zip(agents, extracted, strict=True):
        if statements.dropped:
            tools.note("scorer", f"{agent.name}: {statements.dropped} statement(s) beyond `statements` are dropped")
    scored = []
    for agent, move, faithful, relevant in zip(agents, moves, faithfulness, relevance, strict=True):
        found = agent.kind == "none" or any(passage.text.strip() for passage in move.lookup.passages)
        if settings.no_evidence == "zero" and not found:
            faithful = Measurement(0.0)
        measurements = {"faithfulness": faithful, "relevance": relevant}
        for name, measurement in measurements.items():
            if measurement.value is None:
                tools.note("scorer", f"{agent.name}: {name} unknown: {measurement.reason}")
            if measurement.left_out:
                told = f"{name} without the first {measurement.left_out} tokens of the {question.form}"
                tools.note("scorer", f"{agent.name}: {told}")
        scored.append(replace(move, scores={name: measurement.value for name, measurement in measurements.items()}))
    return scored


def agreed(agents: Sequence[Agent], history: Sequence[Round], settings: Settings, thresholds: Thresholds) -> bool:
    """Tell whether the last round ends the debate: it has one label, and scores that reach their thresholds (section
    III-C) or sums of scores above them (algorithm 1)."""
    labels = {move.verdict.label for move in history[-1].values()}
    if len(labels) > 1 or labels == {""}:
        return False
    if not settings.stability:
        return settings.without_scores == "agreement" or len(history) == settings.rounds
    counted, passes = (history, gt) if settings.thresholds_of == "accumulated" else (history[-1:], ge)
    return all(
        (known := known_scores(counted, agent.name, name)) and passes(sum(known), threshold)
        for agent in agents
        for name, threshold in thresholds.model_dump().items()
        if agent.kind != "none" or name != "faithfulness"
    )


def _answer(history: Sequence[Round], label: str, reasons: str, read: Sequence[Round], stopped: str = "") -> Answer:
    return Answer(
        label,
        passages=passages_of(read),
        explanation=reasons,
        candidates={name: move.verdict.label for name, move in history[-1].items()},
        stopped=stopped,
    )


def calls_of(settings: Settings) -> dict[str, Calls]:
    """Between one round and all of them, where the debate may end early."""
    ends_early = settings.stability or settings.without_scores == "agreement"
    rounds = (1 + settings.rounds) / 2 if ends_early else settings.rounds
    calls = {"judge": 1.0}

    def add(role: str, number: float) -> None:
        calls[role] = calls.get(role, 0) + number

    for kind in settings.agents:
        add(kind, rounds)
        if settings.query_formulation and kind != "none":
            add(f"{kind}_query", rounds)
        if kind in settings.keywords:
            add("keywords", rounds)
        if settings.stability:  # statements, their verdicts, and questions; an agent without documents has the last
            add("scorer", rounds * (settings.questions + 2 * (kind != "none")))
    return {role: Calls(each, settings.documents * (role in ("rag", "search"))) for role, each in calls.items()}


SYSTEM = SystemSpec(
    Settings,
    solve,
    roles=("rag", "search", "none", "rag_query", "search_query", "keywords", "summariser", "judge", "scorer"),
    embeds=True,
    prompts=PROMPTS,
    gives_verdict=True,
    calls=calls_of,
)
