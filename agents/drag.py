"""DRAG: debate-augmented retrieval, then a debated answer (arXiv 2505.18581, and the authors' published code).

Query stage, at most three rounds over a pool of queries and what each found, which begins with the question's own: a
Proponent argues that the pool is enough, an Opponent that it is not, proposing one better or one more query; a judge
who reads both either ends the stage or has the Opponent's query searched. Answer stage, always three rounds: the
debate of `mad_drag`, in which the Proponent knows the pool's documents and the Opponent nothing but what it remembers.

Budget: 3 model calls a query round and 9 in the answer stage, so 12 to 18; 1 retrieval, and one more for every round
that the Opponent wins, so 1 to 4. A query that is already in the pool is not searched again.

Deviations. The published code answers with one plain reading call where answer rounds are wanted and debates where they
are not (its condition is inverted), and goes on with no pool at all when an Opponent wins without an action; here it is
as the paper says, and an Opponent that wins with nothing to search for ends the stage. What breaks its form is
malformed, and then read as the published code does: a judge who names both sides means the first named (published: the
Proponent), one who names neither the Opponent; an optimisation without "->" is both the old and the new query; of
several actions, the first optimisation counts, else the first expansion. The query nearest to the one that the Opponent
names is difflib's, not Levenshtein's. A new query is one line. The moderators of the answer stage speak at once at the
end (see mad_drag). The words of the prompts are ours.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from typing import Literal

from pydantic import Field

from ratchet.agents.core.claims import unique
from ratchet.agents.core.output import Malformed
from ratchet.agents.core.prompts import (
    DATA,
    QUESTION,
    Prompt,
    documents_text,
    speakers_text,
)
from ratchet.agents.core.system import Calls, SystemSpec
from ratchet.agents.core.tools import Answer, Tools
from ratchet.agents.mad_drag import FORM, MODERATOR, Debater, debate, moderate, unanimous_answer
from ratchet.core.config import Section
from ratchet.core.records import Passage, Question

QUERY_PROPONENT = (
    "You debate whether a search has found enough. Argue that the documents are enough to answer the question and that "
    "nothing more has to be searched for. Be brief and give your reasons. Propose no query."
)
QUERY_OPPONENT = """\
You debate whether a search has found enough. Argue that the documents are not enough to answer the question. Be brief \
and give your reasons. Then end with exactly one of these two lines, with a short and precise new query:
Query Optimization: old query -> new query
Query Expansion: new query
Optimization puts a better query in the place of an old one, whose documents were near the point. Expansion adds a \
query for what is missing."""
JUDGE = """\
You judge a debate whether a search has found enough to answer a question. The Proponent argues that it has. The \
Opponent argues that it has not, and proposes another query. Decide who is right.
Write one word: Proponent or Opponent."""
POOL_AND_QUESTION = f"Queries and what they found {DATA}:\n\n" + "{{pool}}\n\n" + QUESTION
PROMPTS = {
    "query_proponent.system": Prompt(QUERY_PROPONENT),
    "query_proponent.user": Prompt(POOL_AND_QUESTION),
    "query_opponent.system": Prompt(QUERY_OPPONENT),
    "query_opponent.user": Prompt(POOL_AND_QUESTION),
    "judge.system": Prompt(JUDGE),
    "judge.user": Prompt(POOL_AND_QUESTION + "\n\n{{arguments}}"),
    "proponent.system": Prompt(f"Answer the question with the help of the documents, and explain your answer. {FORM}"),
    "proponent.user": Prompt(POOL_AND_QUESTION),
    "opponent.system": Prompt(f"Answer the question from what you know, and explain your answer. {FORM}"),
    "opponent.user": Prompt(QUESTION),
    "reply.user": Prompt(
        "Here is what the other side says; it may be wrong. Take it as advice, and explain your answer. "
        f"{FORM}\n\n{QUESTION}\n\n"
        "{{responses}}",
        optional=("question",),
    ),
    "moderator.system": Prompt(MODERATOR),
    "moderator.user": Prompt(POOL_AND_QUESTION + "\n\n{{responses}}"),
}

SIDE = re.compile("proponent|opponent")
DENIAL = re.compile(r"\b(?:not?|neither|never|cannot)\b|n[\u2019']t\b", re.IGNORECASE)
ACTION = re.compile(r"Query (Optimi[sz]ation|Expansion):\s*(.*)", re.IGNORECASE)
WRAPPING = " \t\"'[]*`"
"""What models put around a query."""

Pool = dict[str, list[Passage]]
"""Queries, and what each found."""
Side = Literal["proponent", "opponent"]


class Settings(Section):
    """Documents of a query, and the rounds of both debates."""

    documents: int = Field(3, gt=0)
    """Found by each query."""
    query_rounds: int = Field(3, ge=0)
    """At most."""
    answer_rounds: int = Field(3, gt=0)


@dataclass(frozen=True)
class Action:
    """What an Opponent wants of the pool."""

    new: str
    old: str = ""
    """The query to be replaced; none: the new one is added."""


@dataclass(frozen=True)
class Objection:
    """The Opponent's argument, and the action that it ends with."""

    text: str
    action: Action | None


async def solve(question: Question, tools: Tools, settings: Settings) -> Answer:
    """Debate which queries to search, then debate the answer."""
    pool = await query_stage(question.text, tools, settings)
    passages = unique(passage for passages_of_query in pool.values() for passage in passages_of_query)
    tools.so_far = Answer("", passages)
    shown = pool_text(pool)
    debaters = [Debater(side.capitalize(), *tools.begin(side, pool=shown)) for side in ("proponent", "opponent")]
    rounds = await debate(tools, debaters, settings.answer_rounds, lambda said: unanimous_answer(said, passages))
    return replace(tools.so_far, text=await moderate(tools, rounds, pool=shown))


async def query_stage(question: str, tools: Tools, settings: Settings) -> Pool:
    """The pool of queries and passages after the debate about it."""
    pool = {question: await tools.search("query_proponent", question, settings.documents)}
    for _ in range(settings.query_rounds):
        shown = pool_text(pool)
        argument, objection = await tools.gather(
            tools.ask(*tools.begin("query_proponent", pool=shown)),
            tools.read(*tools.begin("query_opponent", pool=shown), read_objection, read_objection_leniently),
        )
        arguments = speakers_text({"Proponent": argument, "Opponent": objection.text})
        judge, debated = tools.begin("judge", pool=shown, arguments=arguments)
        winner = await tools.read(judge, debated, read_winner, read_winner_leniently)
        if winner == "proponent":
            break
        if objection.action is None:
            tools.note("judge", "the Opponent won without a query: the pool stays as it is")
            break
        pool = await apply_action(pool, objection.action, tools, settings.documents)
    return pool


async def apply_action(pool: Pool, action: Action, tools: Tools, documents: int) -> Pool:
    """The pool after the action. What it knows already is not searched again."""
    replaced = nearest_query(pool, action.old) if action.old else None
    updated = {query: passages for query, passages in pool.items() if query != replaced}
    updated[action.new] = (
        pool[action.new] if action.new in pool else await tools.search("query_opponent", action.new, documents)
    )
    return updated


def nearest_query(pool: Pool, query: str) -> str:
    """The pool's query that is most like this one."""
    return max(pool, key=lambda known: SequenceMatcher(None, known.lower(), query.lower()).ratio())


def pool_text(pool: Pool) -> str:
    """Each query of the pool with its documents."""
    return "\n\n".join(
        f"Query: {query}\nDocuments:\n{documents_text(passages) or 'none'}" for query, passages in pool.items()
    )


def read_objection(text: str) -> Objection:
    """An argument that ends with one action in its form."""
    said = ACTION.findall(text)
    action = _action(*said[0]) if len(said) == 1 else None
    if action is None or "->" in action.new or action.old == action.new:
        raise Malformed(
            "End with exactly one action: Query Optimization: old query -> new query, or Query Expansion: new query"
        )
    return Objection(text, action)


def read_objection_leniently(text: str) -> Objection:
    """An argument whatever its form; optimisations come before expansions."""
    said = sorted(ACTION.findall(text), key=lambda action_line: action_line[0].lower().startswith("expansion"))
    return Objection(text, next((action for action_line in said if (action := _action(*action_line))), None))


def _action(kind: str, words: str) -> Action | None:
    if kind.lower() == "expansion":
        new = words.strip(WRAPPING)
        return Action(new) if new else None
    old, arrow, new = (part.strip(WRAPPING) for part in words.partition("->"))
    new = new if arrow else old
    return Action(new, old or new) if new else None


def read_winner(text: str) -> Side:
    """The only side that is named, and not with a denial ("not the Opponent")."""
    if len(set(SIDE.findall(text.lower()))) != 1 or DENIAL.search(text):
        raise Malformed("Name exactly one side: Proponent or Opponent")
    return read_winner_leniently(text)


def read_winner_leniently(text: str) -> Side:
    """Whoever a judge who names both, or neither, names first; the Opponent where there is no name."""
    named = SIDE.search(text.lower())
    return "proponent" if named and named.group() == "proponent" else "opponent"


def calls_of(settings: Settings) -> dict[str, Calls]:
    """Between no round of queries and all of them."""
    queries, answers = (1 + settings.query_rounds) / 2, settings.answer_rounds
    search = Calls(queries, settings.documents)
    return {
        "query_proponent": search,
        "query_opponent": search,
        "judge": Calls(queries),
        "proponent": Calls(answers, settings.documents, 1),
        "opponent": Calls(answers, 0, 1),
        "moderator": Calls(answers),
    }


SYSTEM = SystemSpec(
    Settings,
    solve,
    roles=("query_proponent", "query_opponent", "judge", "proponent", "opponent", "moderator"),
    prompts=PROMPTS,
    calls=calls_of,
)
