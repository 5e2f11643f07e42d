"""Two agents of the OpenAI Agents SDK: one writes the search query, the other reads what was found and answers.

    make examples
    ratchet selftrain --config examples/openai_agents.yaml

It imports nothing of Ratchet. The SDK's OpenAI client finds the gateway and its key in the environment; the task is
read from the standard input. The gateway tells the two agents apart by their instructions.
"""

from __future__ import annotations

import asyncio
import json
import sys
import urllib.request
from typing import Any

from openai import AsyncOpenAI

from agents import Agent, OpenAIChatCompletionsModel, Runner, set_tracing_disabled


def search(url: str, query: str) -> list[dict[str, Any]]:
    """The three best passages."""
    body = json.dumps({"query": query, "k": 3}).encode()
    with urllib.request.urlopen(urllib.request.Request(url, body, {"Content-Type": "application/json"})) as found:
        return list(json.load(found)["passages"])


async def answer(task: dict[str, str]) -> dict[str, object]:
    """The answer to a task, with the passages that it was read from."""
    set_tracing_disabled(True)  # traces go to OpenAI's own servers
    model = OpenAIChatCompletionsModel(task["model"], AsyncOpenAI())
    searcher = Agent(
        name="searcher",
        model=model,
        instructions="Write a search query of a few words that finds the answer. Write nothing else.",
    )
    reader = Agent(
        name="reader",
        model=model,
        instructions="Answer the question from the documents, in as few words as possible.",
    )
    written = await Runner.run(searcher, task["question"])
    found = search(task["search_url"], written.final_output or task["question"])
    documents = "\n".join(passage["text"] for passage in found)
    said = await Runner.run(reader, f"{documents}\nQuestion: {task['question']}")
    return {"answer": said.final_output, "documents": [passage["id"] for passage in found]}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(answer(json.load(sys.stdin)))))
