"""MERMAID (2026, arXiv 2601.22361): verifying claims with an evidence memory that is shared between them.

The Decomposer takes the claim apart into triplets (subject, relation, object, attributions) and topical keywords. The
memory is asked for what earlier claims left under the same entities, the subjects and objects. The Executor then works
in one growing conversation of thought, action and observation: each step is one call of a tool (a search service or any
tool of an MCP server), or the verdict. Evidence that it found is written back under the claim's entities.

Budget: 1 model call to decompose and at most `steps` (5) to execute. The verdict takes a step: the paper's summary does
not say whether it comes on top, and its loop ends with "at most 5 steps". So there are at most 4 tool calls, and the
last step allows nothing but a verdict. Every other step may give one.

The paper's ablations and open questions are settings: docs/papers/mermaid.md.

Ours. The paper's prompts are not in the summary that we worked from; all words are ours. New evidence goes under all
entities of its claim. A document is cut as its source says (`sources.X.max_tokens`); one that was shown before is named
again, not repeated. A tool's answer that is text and not documents is shown likewise and kept as a document of its own.
Thoughts and texts have a length that a grammar can keep, since small models ramble (`actions.py`). With a conversation
that has no room left there is no verdict, and nothing is remembered; nor is it where the verdict cannot be read.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import Field

from ratchet.agents.core.exploration import SearchFields
from ratchet.agents.core.labels import labels_of
from ratchet.agents.core.output import ANY, AnyText, JsonObject, at_most
from ratchet.agents.core.prompts import DATA, Prompt, distinct, document_text, one_line, unique
from ratchet.agents.core.system import Calls, SystemSpec
from ratchet.agents.core.task import label_of_stance, labels_text
from ratchet.agents.core.tools import Actions, Answer, Tools, calls_of, dialogue_with
from ratchet.agents.mermaid.actions import action_schema, offered_tools, read_call, tools_text
from ratchet.core.config import Section
from ratchet.core.errors import UserError
from ratchet.core.records import Label, Passage, Question, content_key
from ratchet.retrieval.names import entity_key, names_in
from ratchet.retrieval.sources.source import ToolResult

DECOMPOSE = """\
Take the text apart into facts to check. Each has a subject, a relation, an object, and attributions such as time, \
place, quantity or source. Write names in full. Then name the topics. Write one JSON object:
{"triplets": [{"subject": "...", "relation": "...", "object": "...", "attributions": ["..."]}], "keywords": ["..."]}"""

Short = Annotated[AnyText, at_most(characters=80)]
Shorts = Annotated[list[Short], Field(title=ANY)]
Name = Annotated[str, at_most(characters=80), Field(min_length=1)]


class Triplet(JsonObject):
    """One fact of the claim."""

    subject: Name
    relation: Short
    object: Name
    attributions: Shorts = at_most(items=3)


class Decomposition(JsonObject):
    """The Decomposer's reply: the claim's facts and topics."""

    triplets: Annotated[list[Triplet], Field(min_length=1)] = at_most(items=5)
    keywords: Shorts = at_most(items=5)


def memory_keys(parts: Decomposition, kind: Literal["entities", "facts"]) -> list[str]:
    """Keys in the memory (`Settings.memory_keys`), each once as the memory tells them apart (`entity_key`)."""
    names = [name for triplet in parts.triplets for name in (triplet.subject, triplet.object)]
    if kind == "facts":
        names += [f"{triplet.subject} {triplet.relation} {triplet.object}" for triplet in parts.triplets]
        names += parts.keywords
    kept: dict[str, str] = {}
    for name in names:
        kept.setdefault(entity_key(name), one_line(name))
    return [name for key, name in kept.items() if key]


def facts_text(parts: Decomposition) -> str:
    """One triplet a line, then the keywords."""
    lines = []
    for triplet in parts.triplets:
        more = distinct(triplet.attributions)
        fact = " | ".join(one_line(words) for words in (triplet.subject, triplet.relation, triplet.object))
        lines.append(f"- {fact}" + (f" ({'; '.join(more)})" if more else ""))
    topics = distinct(parts.keywords)
    return "\n".join([*lines, *([f"Topics: {', '.join(topics)}"] if topics else [])])


EXECUTE = """\
Find the right label for the {{form}}, step by step. Each step is one JSON object. To look something up:
{"thought": "what is missing", "action": "name of a tool", "arguments": {"name": "value"}}
When the evidence is enough:
{"thought": "the reasons, in one or two sentences", "verdict": "one of the labels"}

Tools:
{{tools}}

Labels:
{{labels}}"""
NATIVE = """\
Find the right label for the {{form}}, step by step. In each step say what is missing and call one tool to look
it up. When the evidence is enough, say why in one or two sentences and call verdict.

Labels:
{{labels}}"""
PROMPTS = {
    "decomposer.system": Prompt(DECOMPOSE),
    "decomposer.user": Prompt("{{task}}"),
    "executor.system": Prompt(EXECUTE),
    "executor.user": Prompt(
        "{{task}}\n\nWhat it says:\n{{facts?}}\n\n"
        f"Evidence recalled from earlier claims {DATA}:\n" + "{{documents?}}"
    ),
    "observation.user": Prompt(f"Evidence found {DATA}:\n" + "{{documents}}"),
    "failure.user": Prompt(f"The call failed {DATA}: " + "{{error}}"),
    "repeat.user": Prompt(
        "You made this call before, and its result stands above. Make another one, or give your verdict.",
        note="`repeats: refuse`",
    ),
    "last.user": Prompt("No more tool calls: give your verdict now.", note="is put after the last message"),
    "native.system": Prompt(NATIVE, note="`actions: native`"),
    "native_last.user": Prompt("Look nothing up any more: call verdict now.", note="`actions: native`"),
}
UNCERTAIN = Label(name="UNCERTAIN", meaning="the evidence does not settle it", stance="unknown")


class Settings(Section):
    """The tools, the steps, the evidence memory, and the paper's open questions."""

    tools: tuple[str, ...] = Field(("search",), min_length=1)
    """Names under `sources`, all of whose tools are offered."""
    documents: int = Field(3, gt=0)
    """Number of documents that a query finds."""
    steps: int = Field(5, gt=0)
    """Maximum number of the Executor's steps, its verdict included."""
    memory: Literal["string", "meaning", "off"] = "string"
    """Recall by the entity's name, or by what the evidence is about as well; or no memory."""
    memory_keys: Literal["entities", "facts"] = "entities"
    """Keep evidence under the claim's subjects and objects, or under these, its triplets and its keywords."""
    decomposer: bool = True
    """Split the claim into triplets first."""
    repeats: Literal["allow", "refuse"] = "allow"
    """`refuse`: a call that already got an answer is not repeated, and the step is lost."""
    look_first: bool = False
    """Make the first step a tool call where nothing is recalled."""
    uncertain: bool = False
    """Offer the verdict UNCERTAIN where no label has the stance "unknown"."""
    actions: Actions = "text"
    """`native`: tools are called in the form of the model's chat template, without constraint."""


def gold_action(question: Question, settings: Settings) -> tuple[str, str]:
    """The verdict, without a reason: none is known. UserError where it is a call of a tool."""
    if settings.actions == "native":
        raise UserError(
            "--control gold is not possible here: the verdict is a call, in the form of the model's template; set "
            "system.settings.actions: text"
        )
    return "executor", json.dumps({"thought": "", "verdict": question.gold_answer})


class Evidence:
    """The documents that the Executor was shown, with one number for each."""

    def __init__(self) -> None:
        self.recalled: list[Passage] = []
        self.found: list[Passage] = []
        self._numbers: dict[tuple[str, str], int] = {}

    @property
    def passages(self) -> tuple[Passage, ...]:
        return unique([*self.recalled, *self.found])

    def shown(self, passages: Sequence[Passage]) -> str:
        lines = []
        for passage in passages:
            key = (passage.id, passage.text)
            known = self._numbers.get(key)
            number = self._numbers.setdefault(key, len(self._numbers) + 1)
            lines.append(document_text(number, passage) if known is None else f"[{known}] shown above")
        return "\n".join(lines)


async def solve(question: Question, tools: Tools, settings: Settings) -> Answer:
    """Decompose the claim, recall evidence, verify it with tools, and remember what was found."""
    labels = labels_of(question)
    if settings.uncertain and label_of_stance(labels, "unknown") is None:
        labels = (*labels, UNCERTAIN)
    facts, entities = "", names_in(question.text)
    if settings.decomposer:
        parts = await tools.ask(*tools.begin("decomposer"), Decomposition)
        facts = facts_text(parts)
        entities = memory_keys(parts, settings.memory_keys)
    remembers = settings.memory != "off" and bool(entities)
    evidence = Evidence()
    if remembers:
        pieces = await tools.recall("executor", entities, question.text, by_meaning=settings.memory == "meaning")
        evidence.recalled = [piece.passage for piece in pieces]
    if evidence.recalled:
        summary = f"recalled {len(evidence.recalled)} document(s)"
        tools.turn(1, "memory", summary, query=", ".join(entities), passages=evidence.recalled)
    first_message = tools.prompt("executor.user", facts=facts, documents=evidence.shown(evidence.recalled))
    answer = await execute(tools, settings, labels, first_message, evidence)
    if remembers and evidence.found:
        await tools.remember("executor", entities, unique(evidence.found), question.text)
    return answer


async def execute(tools: Tools, settings: Settings, labels: Sequence[Label], text: str, evidence: Evidence) -> Answer:
    """Thought, action, observation, up to the verdict."""
    specs = await tools.tool_specs(settings.tools)
    native = settings.actions == "native"
    if native:
        system = tools.prompt("native.system", labels=labels_text(labels))
        dialogue = dialogue_with(tools, "executor", system, offered_tools(specs, labels))
    else:
        system = tools.prompt("executor.system", tools=tools_text(specs), labels=labels_text(labels))
        dialogue = tools.dialogue("executor", system)
    answered: set[str] = set()
    step = 0
    while True:
        step += 1
        last = step == settings.steps
        require_call = settings.look_first and step == 1 and not evidence.recalled
        schema = action_schema(specs, labels, last, require_call)
        if last:
            text = f"{text}\n\n{tools.prompt('native_last.user' if native else 'last.user')}"
        if native:
            said = await tools.read(dialogue, text, partial(read_call, calls_of(dialogue), schema))
        else:
            said = await tools.ask(dialogue, text, schema)
        thought = said["thought"].strip()
        if "verdict" in said:
            tools.turn(step, "executor", thought, said["verdict"])
            stopped = f"verdict at step {step}" + (", the last of the budget" if last else "")
            return Answer(said["verdict"], evidence.passages, explanation=thought, stopped=stopped)
        tool, arguments = said["action"], said["arguments"]
        call = f"{tool} {json.dumps(arguments, ensure_ascii=False)}"
        passages: tuple[Passage, ...] = ()
        if settings.repeats == "refuse" and signature(tool, arguments) in answered:
            tools.note("executor", f"refused a repeated call: {call}")
            text = tools.prompt("repeat.user")
        else:
            result = await tools.call("executor", tool, arguments, settings.documents, settings.tools)
            passages = documents_of(result, call, tool)
            if result.error:
                text = tools.prompt("failure.user", error=one_line(result.error, 300))
            else:
                text = tools.prompt("observation.user", documents=evidence.shown(passages) or "nothing")
                answered.add(signature(tool, arguments))
            evidence.found += passages
        tools.turn(step, "executor", thought, query=call, passages=passages)
        tools.so_far = Answer("", evidence.passages)


def documents_of(result: ToolResult, call: str, tool: str) -> tuple[Passage, ...]:
    """The documents of a call; text that is no document becomes one."""
    if result.error or result.passages or not result.text.strip():
        return result.passages
    name = f"{tool}-{content_key(call, result.text)[:12]}"
    return (Passage(id=name, document_id=name, title=tool, text=result.text),)


def signature(tool: str, arguments: dict[str, Any]) -> str:
    """Equal for calls that differ in letter case and blanks alone."""
    return "".join(f"{tool} {json.dumps(arguments, sort_keys=True)}".casefold().split())


SYSTEM = SystemSpec(
    Settings,
    solve,
    roles=("decomposer", "executor"),
    embeds=True,
    prompts=PROMPTS,
    gives_verdict=True,
    gold_action=gold_action,
    searches=SearchFields(go_on={"action": ...}, stop={"verdict": ...}, queries=("query",)),
    calls=lambda settings: {
        "decomposer": Calls(int(settings.decomposer)),
        "executor": Calls((1 + settings.steps) / 2, settings.documents, 1),
    },
)
