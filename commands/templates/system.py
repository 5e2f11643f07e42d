"""A searcher decides with JSON actions what to look up and when to stop; an answerer reads what was found."""

from typing import Annotated

from ratchet.agents.core.exploration import SearchFields
from ratchet.agents.core.output import JsonObject, at_most
from ratchet.agents.core.prompts import documents_text, unique
from ratchet.agents.core.system import Calls, SystemSpec
from ratchet.agents.core.tools import Answer, Tools
from ratchet.core.config import Section
from ratchet.core.records import Passage, Question

SEARCH = """Find documents that answer the question. Reply with one JSON object:
{"enough": whether the documents so far answer it, true or false, "query": "what to search for next"}"""
ANSWER = """Answer the question with the help of the documents, in as few words as possible. Reply with one JSON object:
{"answer": "..."}"""


class Action(JsonObject):
    enough: bool
    query: Annotated[str, at_most(characters=100)]


class Reply(JsonObject):
    answer: Annotated[str, at_most(characters=100)]


class Settings(Section):
    searches: int = 2
    documents: int = 3


async def solve(question: Question, tools: Tools, settings: Settings) -> Answer:
    found: tuple[Passage, ...] = ()
    searcher, said = tools.dialogue("searcher", SEARCH), f"Question: {question.text}"
    for _ in range(settings.searches):
        action = await tools.ask(searcher, said, Action)
        if action.enough:
            break
        passages = await tools.search("searcher", action.query, settings.documents)
        found, said = unique([*found, *passages]), f"Documents:\n{documents_text(passages)}"
    text = f"Documents:\n{documents_text(found)}\n\nQuestion: {question.text}"
    reply = await tools.ask(tools.dialogue("answerer", ANSWER), text, Reply)
    return Answer(reply.answer, found)


SYSTEM = SystemSpec(
    Settings,
    solve,
    roles=("searcher", "answerer"),
    searches=SearchFields(go_on={"enough": False}, stop={"enough": True}, queries=("query",)),
    calls=lambda settings: {"searcher": Calls(settings.searches, settings.documents), "answerer": Calls()},
)
