"""The debates about an answer that AwE compares with: MAD (Du), MAD as DRAG scores it, and DRAG.

In all three, debaters with growing conversations read each other's last response and answer again (`debate`). "MAD" of
AwE's tables is `mad_drag`. The words of the prompts are ours.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from typing import Any, Literal

from pydantic import Field

from ratchet.agents.core.output import Malformed
from ratchet.agents.core.prompts import (
    DATA,
    MARK,
    QUESTION,
    Prompt,
    documents_text,
    final_answer,
    speakers_text,
    unanimous,
    unique,
)
from ratchet.agents.core.system import Calls, SystemSpec
from ratchet.agents.core.tools import Answer, Tools
from ratchet.core.config import Section
from ratchet.core.records import Passage, Question
from ratchet.core.text import normalise_answer
from ratchet.inference.chat import Dialogue

FORM = f'End with "{MARK}" and then the answer, in as few words as possible.'
MODERATOR = (
    "You moderate a debate about a question. Decide from what the debaters say which answer is right. "
    "Write that answer alone, in as few words as possible."
)


# The debate that all three play


@dataclass(frozen=True)
class Debater:
    """An agent of the debate and its conversation."""

    name: str
    dialogue: Dialogue
    first_message: str


def open_debaters(tools: Tools, agents: int) -> list[Debater]:
    """So many debaters, who all begin alike."""
    return [Debater(f"Agent {n + 1}", *tools.begin("debater")) for n in range(agents)]


def unanimous_answer(said: Mapping[str, str], passages: tuple[Passage, ...] = ()) -> Answer:
    """The answer of a round without a moderator: the one that all debaters give, or none."""
    candidates = {name: final_answer(response) for name, response in said.items()}
    return Answer(unanimous(candidates.values()), passages, candidates=candidates)


async def debate(
    tools: Tools, debaters: Sequence[Debater], rounds: int, so_far: Callable[[dict[str, str]], Answer]
) -> list[dict[str, str]]:
    """Play the rounds, and return each debater's words by its name. All of a round speak at once, having read the last.

    `so_far` makes of each round the answer in hand.
    """
    said: list[dict[str, str]] = []
    for _ in range(rounds):
        messages = [
            tools.prompt("reply.user", responses=responses_text(said[-1], debater.name))
            if said
            else debater.first_message
            for debater in debaters
        ]
        responses = await tools.gather(
            *(tools.read(d.dialogue, m, read_response) for d, m in zip(debaters, messages, strict=True))
        )
        said.append({debater.name: response for debater, response in zip(debaters, responses, strict=True)})
        tools.so_far = so_far(said[-1])
    return said


async def moderate(tools: Tools, rounds: Sequence[dict[str, str]], **shown: str) -> str:
    """The answer of the last round's moderator. Each round has one of its own, who sees that round and `shown`."""
    begun = [tools.begin("moderator", responses=responses_text(said), **shown) for said in rounds]
    answers = await tools.gather(*(tools.ask(dialogue, text) for dialogue, text in begun))
    return final_answer(answers[-1])


def responses_text(said: dict[str, str], reader: str = "") -> str:
    """The responses of a round, less the reader's own."""
    return speakers_text({name: response for name, response in said.items() if name != reader})


def read_response(text: str) -> str:
    """The whole response, which must state its answer."""
    if MARK not in text or not final_answer(text):
        raise Malformed(f'"{MARK}" is missing, or nothing follows it', text)
    return text


# MAD (Du)

MAD_PROMPTS = {
    "debater.system": Prompt(f"Answer the question. Explain your answer briefly. {FORM}"),
    "debater.user": Prompt(QUESTION),
    "reply.user": Prompt(
        f"Here is how other agents answer the question. Take it as advice and give an updated answer. {FORM}\n\n"
        f"{QUESTION}\n\n"
        "{{responses}}",
        optional=("question",),
    ),
}


class MadSettings(Section):
    """The number of agents and of rounds."""

    agents: int = Field(3, ge=2)
    """Number of debaters."""
    rounds: int = Field(2, gt=0)
    """Number of rounds."""


async def mad(question: Question, tools: Tools, settings: MadSettings) -> Answer:
    """Multi-agent debate after Du et al. (arXiv 2305.14325, section 2).

    Three agents answer alone; then each reads the others' answers and gives an updated one. The answer that most agents
    end with is the system's.

    Budget: agents x rounds = 6 model calls, no retrieval.

    Deviations. The paper votes on numbers and choices; here answers are compared as the scorers of short answers
    compare them (case, punctuation and articles do not count). A tie goes to the earliest agent, as in the authors'
    code. An agent that gives no answer has no vote, unless none gives any. One that leaves out "The answer is:" is
    malformed and votes with all it said.
    """
    await debate(tools, open_debaters(tools, settings.agents), settings.rounds, majority_answer)
    return tools.so_far


def majority_answer(said: Mapping[str, str]) -> Answer:
    """The answer that most agents give, in the words of the first of them."""
    answers = {name: final_answer(response) for name, response in said.items()}
    votes = [answer for answer in answers.values() if normalise_answer(answer)] or list(answers.values())
    counts = Counter(map(normalise_answer, votes))
    return Answer(max(votes, key=lambda answer: counts[normalise_answer(answer)]), candidates=answers)


# MAD as DRAG scores it

MAD_DRAG_PROMPTS = {
    "debater.system": Prompt(f"Answer the question from what you know. {FORM}"),
    "debater.user": Prompt(QUESTION),
    "reply.user": Prompt(
        "Here is what the others say; they may be wrong. If you disagree, give your reasons and your answer; otherwise "
        f"revise your last answer. {FORM}\n\n{QUESTION}\n\n"
        "{{responses}}",
        optional=("question",),
    ),
    "moderator.system": Prompt(MODERATOR),
    "moderator.user": Prompt(QUESTION + "\n\n{{responses}}"),
}


class MadDragSettings(Section):
    """The number of agents and of rounds."""

    agents: int = Field(2, ge=2)
    """Number of debaters."""
    rounds: int = Field(3, gt=0)
    """Number of rounds."""


async def mad_drag(question: Question, tools: Tools, settings: MadDragSettings) -> Answer:
    """Multi-agent debate as DRAG scores it (its baseline "MAD"; arXiv 2505.18581, and the authors' published code).

    Two agents answer from what they know, then twice read each other's last response and answer again, each in one
    dialogue that grows. After every round a moderator, who remembers no earlier round, reads both responses and writes
    the answer; the last round's is the system's.

    Budget: rounds x (agents + 1) = 9 model calls, no retrieval.

    Deviations. No agent reads what a moderator says, so the moderators of all rounds speak at once at the end: the same
    calls, in less time. The published code asks for "The answer is:" and never looks whether it is there; here a
    response without it is counted as malformed, and the debate goes on with its text.
    """
    rounds = await debate(tools, open_debaters(tools, settings.agents), settings.rounds, unanimous_answer)
    return replace(tools.so_far, text=await moderate(tools, rounds))


# DRAG

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
DRAG_PROMPTS = {
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
"""Characters that models put around a query."""

Pool = dict[str, list[Passage]]
"""Queries, and what each found."""
Side = Literal["proponent", "opponent"]


class DragSettings(Section):
    """Documents of a query, and the rounds of both debates."""

    documents: int = Field(3, gt=0)
    """Number of documents that a query finds."""
    query_rounds: int = Field(3, ge=0)
    """Maximum number of rounds of the debate on queries."""
    answer_rounds: int = Field(3, gt=0)
    """Number of rounds of the debate on answers."""


@dataclass(frozen=True)
class Action:
    """The change of the pool that an Opponent wants."""

    new: str
    old: str = ""
    """The query to be replaced; none: the new one is added."""


Objection = tuple[str, Action | None]
"""The Opponent's argument, and the action that it ends with."""


async def drag(question: Question, tools: Tools, settings: DragSettings) -> Answer:
    """DRAG: debate-augmented retrieval, then a debated answer (arXiv 2505.18581, and the authors' published code).

    Query stage, at most three rounds over a pool of queries and what each found, which begins with the question's own:
    a Proponent argues that the pool is enough, an Opponent that it is not, proposing one better or one more query; a
    judge who reads both either ends the stage or has the Opponent's query searched. Answer stage, always three rounds:
    the debate of `mad_drag`, in which the Proponent knows the pool's documents and the Opponent nothing but what it
    remembers.

    Budget: 3 model calls a query round and 9 in the answer stage, so 12 to 18; 1 retrieval, and one more for every
    round that the Opponent wins, so 1 to 4. A query that is already in the pool is not searched again.

    Deviations. The published code answers with one plain reading call where answer rounds are wanted and debates where
    they are not (its condition is inverted), and goes on with no pool at all when an Opponent wins without an action;
    here it is as the paper says, and an Opponent that wins with nothing to search for ends the stage. What breaks its
    form is malformed, and then read as the published code does: a judge who names both sides means the first named
    (published: the Proponent), one who names neither the Opponent; an optimisation without "->" is both the old and the
    new query; of several actions, the first optimisation counts, else the first expansion. The query nearest to the one
    that the Opponent names is difflib's, not Levenshtein's. A new query is one line. The moderators of the answer stage
    speak at once at the end (see `mad_drag`).
    """
    pool = await query_stage(question.text, tools, settings)
    passages = unique(passage for passages_of_query in pool.values() for passage in passages_of_query)
    tools.so_far = Answer("", passages)
    shown = pool_text(pool)
    debaters = [Debater(side.capitalize(), *tools.begin(side, pool=shown)) for side in ("proponent", "opponent")]
    rounds = await debate(tools, debaters, settings.answer_rounds, lambda said: unanimous_answer(said, passages))
    return replace(tools.so_far, text=await moderate(tools, rounds, pool=shown))


async def query_stage(question: str, tools: Tools, settings: DragSettings) -> Pool:
    """The pool of queries and passages after the debate about it."""
    pool = {question: await tools.search("query_proponent", question, settings.documents)}
    for _ in range(settings.query_rounds):
        shown = pool_text(pool)
        argument, (objection, action) = await tools.gather(
            tools.ask(*tools.begin("query_proponent", pool=shown)),
            tools.read(*tools.begin("query_opponent", pool=shown), read_objection),
        )
        arguments = speakers_text({"Proponent": argument, "Opponent": objection})
        judge, debated = tools.begin("judge", pool=shown, arguments=arguments)
        winner = await tools.read(judge, debated, read_winner)
        if winner == "proponent":
            break
        if action is None:
            tools.note("judge", "the Opponent won without a query: the pool stays as it is")
            break
        replaced = nearest_query(pool, action.old) if action.old else None
        found = pool.get(action.new)  # a query that the pool has is not searched again
        if found is None:
            found = await tools.search("query_opponent", action.new, settings.documents)
        pool = {query: passages for query, passages in pool.items() if query != replaced} | {action.new: found}
    return pool


def nearest_query(pool: Pool, query: str) -> str:
    """The pool's query that is most like this one."""
    return max(pool, key=lambda known: SequenceMatcher(None, known.lower(), query.lower()).ratio())


def pool_text(pool: Pool) -> str:
    """Each query of the pool with its documents."""
    return "\n\n".join(
        f"Query: {query}\nDocuments:\n{documents_text(passages) or 'none'}" for query, passages in pool.items()
    )


def read_objection(text: str) -> Objection:
    """An argument that ends with one action in its form. Out of form, the first optimisation counts, else the first
    expansion."""
    said = ACTION.findall(text)
    action = _action(*said[0]) if len(said) == 1 else None
    if action is None or "->" in action.new or action.old == action.new:
        said.sort(key=lambda action_line: action_line[0].lower().startswith("expansion"))
        actions = (_action(*action_line) for action_line in said)
        raise Malformed(
            "End with exactly one action: Query Optimization: old query -> new query, or Query Expansion: new query",
            (text, next(filter(None, actions), None)),
        )
    return text, action


def _action(kind: str, words: str) -> Action | None:
    if kind.lower() == "expansion":
        new = words.strip(WRAPPING)
        return Action(new) if new else None
    old, arrow, new = (part.strip(WRAPPING) for part in words.partition("->"))
    new = new if arrow else old
    return Action(new, old or new) if new else None


def read_winner(text: str) -> Side:
    """The only side that is named, and not with a denial ("not the Opponent"). Out of form, the side that is named
    first counts, and the Opponent where none is."""
    named = SIDE.findall(text.lower())
    first: Side = "proponent" if named[:1] == ["proponent"] else "opponent"
    if len(set(named)) != 1 or DENIAL.search(text):
        raise Malformed("Name exactly one side: Proponent or Opponent", first)
    return first


def drag_calls(settings: DragSettings) -> dict[str, Calls]:
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


SYSTEMS: dict[str, SystemSpec[Any]] = {
    "mad": SystemSpec(
        MadSettings,
        mad,
        roles=("debater",),
        prompts=MAD_PROMPTS,
        calls=lambda settings: {"debater": Calls(settings.agents * settings.rounds, 0, settings.agents)},
    ),
    "mad_drag": SystemSpec(
        MadDragSettings,
        mad_drag,
        roles=("debater", "moderator"),
        prompts=MAD_DRAG_PROMPTS,
        calls=lambda settings: {
            "debater": Calls(settings.agents * settings.rounds, 0, settings.agents),
            "moderator": Calls(settings.rounds),
        },
    ),
    "drag": SystemSpec(
        DragSettings,
        drag,
        roles=("query_proponent", "query_opponent", "judge", "proponent", "opponent", "moderator"),
        prompts=DRAG_PROMPTS,
        calls=drag_calls,
    ),
}
