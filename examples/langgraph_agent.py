"""An agent in LangGraph: it reads documents, searches again where it wants to, and answers.

    make examples
    ratchet selftrain --config examples/langgraph.yaml

It imports nothing of Ratchet. LangChain's OpenAI client finds the gateway and its key in the environment; the question
and the address of the search are there too.
"""

from __future__ import annotations

import json
import operator
import os
from typing import Annotated, Any, TypedDict

import httpx
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph

SYSTEM = "Answer the question from the documents in a few words. If they do not say it, write Search: and what to find."
MAX_SEARCHES = 2

model = ChatOpenAI(model=os.environ["OPENAI_MODEL"])


class State(TypedDict):
    """The state that the nodes of the graph pass on."""

    query: str
    messages: Annotated[list[Any], operator.add]
    searches: Annotated[int, operator.add]


def search(state: State) -> dict[str, Any]:
    """Find documents, and show them to the model."""
    found = httpx.post(
        os.environ["RATCHET_SEARCH_URL"], json={"query": state["query"], "k": 2}, timeout=120
    ).raise_for_status()
    documents = "\n".join(passage["text"] for passage in found.json()["passages"])
    question = "" if state["messages"] else f"\nQuestion: {state['query']}"
    opening = [] if state["messages"] else [("system", SYSTEM)]
    return {"messages": [*opening, ("user", f"{documents}{question}")], "searches": 1}


def ask_model(state: State) -> dict[str, Any]:
    """Ask the model; a turn that begins with Search: is the next query."""
    said = model.invoke(state["messages"])
    return {"messages": [said], "query": str(said.content).partition("Search:")[2].strip()}


def follow(state: State) -> str:
    """Where to go after the model's turn."""
    return "search" if state["query"] and state["searches"] < MAX_SEARCHES else END


graph = StateGraph(State)
graph.add_node("search", search)
graph.add_node("ask_model", ask_model)
graph.add_edge(START, "search")
graph.add_edge("search", "ask_model")
graph.add_conditional_edges("ask_model", follow)

if __name__ == "__main__":
    end = graph.compile().invoke({"query": os.environ["RATCHET_QUESTION"], "messages": [], "searches": 0})
    print(json.dumps({"answer": end["messages"][-1].content}))
