"""ReAct (Yao et al. 2023, arXiv 2210.03629) as Tool-MAD's single agent: think, search, look up, and finish.

Each turn is a thought and one action. search[...] shows documents, lookup[...] the next sentence with these words in
the documents that were found last, finish[...] gives the label. It is one conversation.

Budget, with n turns, n at most `steps` (7): n model calls, and 1 more for the verdict where the last turn does not
finish; a retrieval for each search, so 0 to 7.

Deviations from the paper
- Documents are ranked chunks, three a search, as Tool-MAD's agent reads them. The paper finds one Wikipedia page and
  shows its first five sentences. A search that finds nothing says so; the paper names pages with similar titles.
- Where the turns are used up, a last call asks for the verdict. The paper answers nothing.
- No worked examples: the paper shows three to six, which a config can give (`roles.actor.examples`).
- No stop words. Chat models emit several actions a turn and invent what comes back: such a turn is malformed, so never
  trained on; its first action is carried out, and the model is told so.

Malformed too is a turn without an action, or with one that cannot be carried out: it counts as a turn, and the model
is told what is wrong. With `actions: native` the actions are calls of tools in the model's own form.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pydantic import Field

from ratchet.agents.core.labels import VERDICT, ask_verdict, find_label, labels_of, names, require_label
from ratchet.agents.core.lookahead import sentences
from ratchet.agents.core.output import Malformed, object_schema
from ratchet.agents.core.prompts import DOCUMENTS, Prompt, documents_text
from ratchet.agents.core.system import Calls, SystemSpec
from ratchet.agents.core.tools import Actions, Answer, Said, Tools, calls_of, dialogue_with, function
from ratchet.core.config import Section
from ratchet.core.records import Label, Passage, Question
from ratchet.retrieval.sources.source import ToolResult

INSTRUCTIONS = """\
Find out step by step which label is right. In each turn write one thought and one action, then wait for what it shows:
Thought: what you know, and what you need next
Action: search[a short query]

The actions:
search[a short query] shows documents
lookup[a word] shows the next sentence with this word in those documents
finish[a label] ends with your answer

The labels:
{{labels}}"""
NATIVE = """\
Find out step by step which label is right. In each turn say what you know and what you need next, and call one tool.

The labels:
{{labels}}"""
OBSERVATION = DOCUMENTS + "\n\n{{result?}}\n\n{{problem?}}"
PROMPTS = {
    "actor.system": Prompt(INSTRUCTIONS),
    "native.system": Prompt(NATIVE, note="`actions: native`"),
    "actor.user": Prompt("{{task}}"),
    "observation.user": Prompt(OBSERVATION),
    "verdict.user": Prompt(f"{OBSERVATION}\n\nNo more actions. Say in a sentence or two what you found out. {VERDICT}"),
}
FORM = "Write one line that begins with Action: and holds search[...], lookup[...] or finish[...]."
ONE = "Only your first action was carried out: write one action a turn, and nothing after it."
CALL = "Call one of the tools search, lookup and finish."
ONE_CALL = "Only your first call was carried out: make one call a turn."
ACTION = re.compile(
    r"(?:\bAction\b[ \t]*\d*[\s*:`]*|^[ \t*`]*)(search|lookup|finish)[ \t]*\[((?:[^\[\]\n]|\[[^\[\]\n]*\])*)\]",
    re.IGNORECASE | re.MULTILINE,
)
"""The word Action may be left out, and an argument may hold brackets of its own."""
INVENTED = re.compile(r"^[^\w\n]*(observation|documents?)\b[ \t]*\d*[ \t*]*:", re.IGNORECASE | re.MULTILINE)
THOUGHT = re.compile(r"^\W*Thought\b[ \t]*\d*[\s*:]*", re.IGNORECASE)


class Settings(Section):
    """The steps, what a search shows, and the end."""

    steps: int = Field(7, gt=0)
    """Maximum number of steps."""
    documents: int = Field(3, gt=0)
    """Number of documents that a query finds."""
    source: str = "index"
    """Where it searches: `index`, or a name under `sources`."""
    actions: Actions = "text"
    """`native`: tools are called in the form of the model's chat template, without constraint."""


@dataclass(frozen=True)
class Step:
    """One turn of the model, read as a thought and an action."""

    text: str
    thought: str = ""
    action: str = ""
    """search, lookup or finish; empty where none can be carried out."""
    argument: str = ""
    """The argument; of finish the label, in the task's own spelling."""
    problem: str = ""
    """The fault of its turn that the model is told."""


class Workspace:
    """Carries actions out: has the documents that were found last, and how far a word was looked up in them."""

    def __init__(self, tools: Tools, settings: Settings) -> None:
        self.tools, self.settings = tools, settings
        self.read: dict[str, Passage] = {}
        self.sentences: list[str] = []
        """Sentences of the last search's documents, each in one line."""
        self.word, self.shown = "", 0

    async def search(self, query: str) -> ToolResult:
        """Search; where that fails, the documents of the last search stay to be looked up in."""
        settings = self.settings
        result = await self.tools.try_search("actor", query, settings.documents, source=settings.source)
        if not result.error:
            for passage in result.passages:
                self.read.setdefault(passage.id, passage)
            found = [one for passage in result.passages for one in sentences(passage.text)]
            self.sentences = [" ".join(one.split()) for one in found]
            self.word, self.shown = "", 0
        return result

    def lookup(self, word: str) -> str:
        if word.casefold() != self.word:
            self.word, self.shown = word.casefold(), 0
        matching = [sentence for sentence in self.sentences if self.word in sentence.casefold()]
        if self.shown >= len(matching):
            return "No more sentences." if matching else "No sentence has these words."
        self.shown += 1
        return f"(sentence {self.shown} of {len(matching)}) {matching[self.shown - 1]}"


async def solve(question: Question, tools: Tools, settings: Settings) -> Answer:
    """Think and act in turn until the label is given."""
    labels, workspace = labels_of(question), Workspace(tools, settings)
    read: Callable[[str, Sequence[Label]], Step] = read_action
    if settings.actions == "native":
        dialogue = dialogue_with(tools, "actor", tools.prompt("native.system"), offered_tools(labels))
        read = partial(read_call, calls_of(dialogue))
    else:
        dialogue = tools.dialogue("actor", tools.prompt("actor.system"))
    message = tools.prompt("actor.user")
    shown = {"documents": "", "result": "", "problem": ""}
    for number in range(1, settings.steps + 1):
        step = await tools.read(dialogue, message, lambda said: strictly(read(said, labels)))
        if step.action == "finish":
            tools.turn(number, "actor", step.text, step.argument)
            return _answer(step.argument, step.thought, workspace, f"finished in step {number}")
        passages, shown = tuple[Passage, ...](), {"documents": "", "result": "", "problem": step.problem}
        if step.action == "search":
            result = await workspace.search(step.argument)
            passages = result.passages
            documents = documents_text(passages) or "none"
            shown |= {"result": result.error} if result.error else {"documents": documents}
        elif step.action == "lookup":
            shown["result"] = workspace.lookup(step.argument)
        tools.turn(number, "actor", step.text, query=step.argument, passages=passages)
        message = tools.prompt("observation.user", **shown)
        tools.so_far = _answer("", "", workspace, "")
    why = f"all {settings.steps} steps were used"
    verdict = await ask_verdict(tools, dialogue, tools.prompt("verdict.user", **shown), labels)
    tools.turn(settings.steps + 1, "actor", verdict.text, verdict.label)
    return require_label(tools, _answer(verdict.label, verdict.reasons, workspace, why), "actor")


def _answer(label: str, reasons: str, workspace: Workspace, why: str) -> Answer:
    return Answer(label, tuple(workspace.read.values()), explanation=reasons, stopped=why)


def strictly(step: Step) -> Step:
    """A step with nothing wrong; the first action of another one counts all the same."""
    if step.problem:
        raise Malformed(step.problem, step)
    return step


def offered_tools(labels: Sequence[Label]) -> list[dict[str, Any]]:
    """The actions as tools."""
    text = {"type": "string"}
    return [
        function("search", "Shows documents for a short query.", object_schema(query=text)),
        function("lookup", "Shows the next sentence with this word in those documents.", object_schema(word=text)),
        function("finish", "Ends with your answer.", object_schema(label={"enum": [label.name for label in labels]})),
    ]


def read_call(calls_in: Callable[[str], Said], text: str, labels: Sequence[Label]) -> Step:
    """The first call of a turn, and the fault of the turn."""
    try:
        thought, calls = calls_in(text)
    except Malformed as error:
        return Step(text, problem=f"{error}. {CALL}")
    if not calls:
        return Step(text, problem=CALL)
    name, arguments = calls[0].name, calls[0].value
    given = list(arguments.values()) if isinstance(arguments, dict) else []
    if name not in ("search", "lookup", "finish") or len(given) != 1 or not isinstance(given[0], str):
        return Step(text, thought, problem=CALL)
    step = _step(text, thought, name, given[0].strip(), ONE_CALL if calls[1:] else "", labels)
    return replace(step, problem=step.problem.replace("[...]", ""))


def read_action(text: str, labels: Sequence[Label]) -> Step:
    """The first action of a turn, and the fault of the turn."""
    match = ACTION.search(text)
    if match is None:
        return Step(text, problem=FORM)
    action, argument = match[1].lower(), match[2].strip()
    before, after = text[: match.start()], text[match.end() :].strip("*`. \t\n")
    problem = ONE if after or INVENTED.search(before) else ""
    return _step(text, THOUGHT.sub("", before).strip(), action, argument, problem, labels)


def _step(text: str, thought: str, action: str, argument: str, problem: str, labels: Sequence[Label]) -> Step:
    if action == "finish":
        argument = find_label(argument, labels)
        if not argument:
            problem = f"finish[...] takes one of the labels {names(labels)}"
    elif not argument:
        problem = f"Write in {action}[...] what to {action}."
    return Step(text, thought, action if argument else "", argument, problem)


SYSTEM = SystemSpec(
    Settings,
    solve,
    roles=("actor",),
    prompts=PROMPTS,
    gives_verdict=True,
    calls=lambda settings: {"actor": Calls(1 + settings.steps / 2, settings.documents, 1)},
)
