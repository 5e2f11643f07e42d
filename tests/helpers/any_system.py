"""An engine that keeps any system going to its end, so that a test can look at every prompt of every system."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ratchet.core.plugins import known_plugins
from ratchet.core.records import Passage, Question, Trajectory
from ratchet.inference.completion import Message, SamplingParams
from ratchet.inference.scripted import ScriptedEngine
from tests.helpers.playing import CLAIM, QUESTION, Shelf, engine, play

SYSTEMS = sorted({*known_plugins("systems")} - {"external"})
"""Every system that asks models by itself."""
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in SYSTEMS),
    ("awe", {"citations": "checked"}),
    ("cot", {"documents": 2}),
    ("mermaid", {"repeats": "refuse"}),
    ("mrag", {"style": "brief"}),
    ("no_retrieval", {"style": "brief"}),
    ("tool_mad", {"stability": False, "agents": ["none", "search"], "keywords": ["search"]}),
    ("tool_mad", {"query_from": "summary"}),
    ("vanilla_rag", {"style": "brief"}),
]
"""Every system, and the settings that use other prompts than its defaults do."""
ON_QUESTIONS = {"awe", "drag", "flare", "ircot", "iter_retgen", "mad", "mad_drag", "mrag", "naive_gen", "naive_rag"}
ON_QUESTIONS |= {"external", "no_retrieval", "sure", "vanilla_rag"}
WORDS = "(a) Ada (b) Bo >>> Ada did it. <<< [harbour]\nQuery Expansion: quay\nAction: search[harbour]"


class Talker:
    """Replies that suit every system: text in all the forms that they read, and JSON of any schema."""

    def __init__(self, text: str = "", blank: bool = False) -> None:
        self.text = text
        """Part of everything that is said."""
        self.string = " " if blank else f"harbour\n{text}"

    def reply(self, _: str, params: SamplingParams, messages: Sequence[Message]) -> str:
        if isinstance(params.schema, dict):
            turn = sum(message["role"] == "assistant" for message in messages)
            return json.dumps(self._value(params.schema, params.schema.get("$defs", {}), turn))
        system = messages[0]["content"]
        label = "REFUTES" if "from what you know" in system else "SUPPORTS"
        label = "NO PREFERENCE" if "NO PREFERENCE" in system else label
        return f"{WORDS}\n{self.text}\nOpponent\nThe answer is: Ada\n{label}"

    def _value(self, schema: Mapping[str, Any], parts: Mapping[str, Any], turn: int) -> Any:
        if "$ref" in schema:
            return self._value(parts[schema["$ref"].rpartition("/")[2]], parts, turn)
        if "anyOf" in schema:
            kinds = schema["anyOf"]
            acting = [kind for kind in kinds if {"action", "search_query"} & set(kind.get("properties", {}))]
            return self._value((acting or kinds)[turn % len(acting or kinds)], parts, turn)
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return schema["enum"][turn % len(schema["enum"])]
        if schema.get("type") == "object":
            return {name: self._value(part, parts, turn) for name, part in schema.get("properties", {}).items()}
        if schema.get("type") == "array":
            size = max(schema.get("minItems", 0), 1)
            return [self._value(schema["items"], parts, turn) for _ in range(size)]
        if schema.get("type") == "string":
            return self.string[: schema.get("maxLength")]
        return {"boolean": True, "integer": 1}[schema["type"]]


class Library(Shelf):
    """Has the same three passages for every query."""

    def __init__(self, text: str = "a fact") -> None:
        super().__init__({})
        self.passages = [Passage(id=f"c{n}", document_id=f"d{n}", title=text, text=f"{n} {text}") for n in (1, 2, 3)]

    def search(self, query: str, k: int, offset: int = 0) -> list[Passage]:
        return self.passages[offset : offset + k]


def task_of(name: str) -> Question:
    """A question or a claim that the system can be given."""
    return QUESTION if name in ON_QUESTIONS else CLAIM


async def play_any(
    name: str,
    settings: Mapping[str, Any],
    talker: Talker | None = None,
    shelf: Shelf | None = None,
    **config: Any,
) -> tuple[Trajectory, ScriptedEngine]:
    """An episode of a system with its settings, to its end."""
    agent = engine((talker or Talker()).reply)
    system = {"name": name, "settings": dict(settings), **config}
    return await play(system, agent, shelf or Library(), question=task_of(name)), agent


def told(agent: ScriptedEngine) -> list[list[str]]:
    """For each call, the messages that the model was given; not what it had said itself."""
    return [[m["content"] for m in call.messages if m["role"] != "assistant"] for call in agent.calls]
