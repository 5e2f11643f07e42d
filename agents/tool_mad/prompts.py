"""What Tool-MAD's agents are told (figures 4 to 6 of the paper say what belongs in it), and how a query is read.

Each prompt is (instructions, text): the system's message and the user's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from agents.core.labels import task_text, verdict_instructions
from agents.core.output import Malformed
from agents.core.prompts.documents import documents_text
from agents.core.prompts.few_shot import task_with_options
from agents.tool_mad.debate import Agent, Lookup, Round, Scores, passages_of
from ratchet.records import Label, Question

TOOL = {"rag": "a collection of documents", "search": "a web search engine"}
QUERY = (
    "You take part in a debate about a {form} and look for evidence in {tool}. Write one query that finds it.{again} "
    "Write the query alone, in [square brackets]."
)
AGAIN = " Consider what the other side says, and keep your last query or write a better one."
KEYWORDS = (
    "You search a database of scientific papers. It finds only papers that have all of your words. Write one to five "
    "keywords for the query, the most important one first, with commas between them. Write the keywords alone, in "
    "[square brackets]."
)
ANSWER = (
    "You take part in a debate about a {form}; its aim is to agree on the right label. Decide {sources}.{other} First "
    "give your reasons in a few sentences. "
)
FROM_DOCUMENTS, FROM_MEMORY = "with the help of your documents", "from what you know"
OTHER = " Consider what the other side says; it may be wrong."
JUDGE = (
    "You judge a debate about a {form} that has ended without agreement. Read the documents that the agents found and "
    "what they said, and decide which label is right.{scores} First give your reasons in a few sentences. "
)
SCORED = (
    " Each agent has two mean scores: faithfulness, how far its answers keep to its documents, and relevance, how far "
    "they are to the point. Both go from 0 to 1; higher is more reliable."
)

BRACKETS = re.compile(r"\[([^\[\]\n]*[^\[\]\s][^\[\]\n]*)\]")


def query_prompt(question: Question, agent: Agent, last: Round) -> tuple[str, str]:
    """`last`: the round before, empty in the first."""
    instructions = QUERY.format(form=question.form, tool=TOOL[agent.kind], again=AGAIN if last else "")
    parts = [task_with_options(question)]
    if last:
        parts += [f"Your last query: {_one_line(last[agent.name].lookup.query)}", _other_side_text(agent, last)]
    return instructions, "\n\n".join(parts)


def keywords_prompt(question: Question, query: str) -> tuple[str, str]:
    """The prompt that turns an agent's query into keywords."""
    return KEYWORDS, f"{task_with_options(question)}\n\nQuery: {_one_line(query)}"


def answer_prompt(
    question: Question, labels: Sequence[Label], agent: Agent, lookup: Lookup, last: Round
) -> tuple[str, str]:
    """The prompt for an agent's answer."""
    sources = FROM_MEMORY if agent.kind == "none" else FROM_DOCUMENTS
    instructions = ANSWER.format(form=question.form, sources=sources, other=OTHER if last else "")
    found = documents_text(lookup.passages) or f"({lookup.failure or 'none were found'})"
    parts = [] if agent.kind == "none" else [f"Documents:\n{found}"]
    parts.append(task_text(question))
    if last:
        parts.append(_other_side_text(agent, last))
    return instructions + verdict_instructions(labels), "\n\n".join(parts)


def judge_prompt(
    question: Question, labels: Sequence[Label], history: Sequence[Round], scores: Mapping[str, Scores]
) -> tuple[str, str]:
    """`scores`: each agent's means, empty where none are kept."""
    instructions = JUDGE.format(form=question.form, scores=SCORED if scores else "")
    parts = [debate_text(history)]
    if scores:
        parts.append("\n".join(f"Agent {name}: {_scores_text(means)}" for name, means in scores.items()))
    parts.append(task_text(question))
    return instructions + verdict_instructions(labels), "\n\n".join(parts)


def debate_text(history: Sequence[Round]) -> str:
    """Every document once, by number; then who searched for what, read which of them, and said what."""
    passages = passages_of(history)
    number = {passage.id: n for n, passage in enumerate(passages, 1)}
    parts = [f"Documents:\n{documents_text(passages)}"] if passages else []
    for n, moves in enumerate(history, 1):
        for name, move in moves.items():
            lines = [f"Round {n}, agent {name}"]
            if move.lookup.query:
                read = " ".join(f"[{number[passage.id]}]" for passage in move.lookup.passages)
                found = read or f"({move.lookup.failure or 'nothing'})"
                lines += [f"Query: {_one_line(move.lookup.query)}", f"Found: {found}"]
            parts.append("\n".join([*lines, quoted(move.verdict.text)]))
    return "\n\n".join(parts)


def _scores_text(means: Scores) -> str:
    return ", ".join(f"{name} {'unknown' if mean is None else f'{mean:.2f}'}" for name, mean in means.items())


def _other_side_text(agent: Agent, last: Round) -> str:
    [said] = [move.verdict.text for name, move in last.items() if name != agent.name]
    return f"The other side's last answer:\n{quoted(said)}"


def _one_line(text: str) -> str:
    return " ".join(text.split())


def quoted(text: str) -> str:
    """With a mark before every line, so that it cannot pose as another part of a prompt."""
    return "\n".join(f"> {line}" for line in text.strip().splitlines()) or "> (nothing)"


def read_query(text: str) -> str:
    """What stands in square brackets and alone. Raises Malformed."""
    found = BRACKETS.fullmatch(text.strip())
    if not found:
        raise Malformed("Write one query and nothing else, in square brackets.")
    return found[1].strip()


def read_keywords(text: str) -> str:
    """The keywords in square brackets, as one query in their order. Raises Malformed."""
    return _without_commas(read_query(text))


def read_keywords_leniently(text: str, query: str) -> str:
    """The first thing in brackets, else the first line, else the query."""
    return _without_commas(read_query_leniently(text, query))


def _without_commas(text: str) -> str:
    return " ".join(word for part in re.split(r"[,;]", text) for word in part.split())


def read_query_leniently(text: str, claim: str) -> str:
    """The first thing in brackets, else the first line, else the claim."""
    found = BRACKETS.search(text)
    lines = [found[1]] if found else text.splitlines()
    return next((line.strip(" \t[]") for line in lines if line.strip(" \t[]")), claim)
