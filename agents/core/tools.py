"""The tools of a system: all that an `Episode` has, and further forms of an answer, tools, and the evidence memory.

A service that gives no answer, after its own retries, is the tool's result and not the trajectory's end: `try_search`
and `call` return an error in words for the model, and the event has the state "failed". `search` is for systems with
nothing to tell a model: it raises, and the trajectory fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, TypeVar, overload

from ratchet.agents.core.episode import Episode, free_text
from ratchet.agents.core.lookahead import Draft, check_continues
from ratchet.agents.core.output import Malformed, object_schema, read_output
from ratchet.agents.core.task import Answer, OutOfBudget, RunContext, Unparsed
from ratchet.core.config import Thresholds
from ratchet.core.config.retrieval import INDEX
from ratchet.core.errors import UserError, did_you_mean
from ratchet.core.records import LookupState, Passage, Recall, ToolCall
from ratchet.inference.chat import MAX_CHARACTERS, Dialogue
from ratchet.inference.completion import Completion, FunctionCall
from ratchet.inference.tool_calls import CallForm
from ratchet.retrieval.encoders.limits import Embed, end_of
from ratchet.retrieval.memory import EvidenceRecord
from ratchet.retrieval.retriever import SourceError
from ratchet.retrieval.sources.source import ToolError, ToolResult, ToolSpec

__all__ = ["Answer", "OutOfBudget", "RunContext", "Tools", "Unparsed"]

T = TypeVar("T")
U = TypeVar("U")
UNAVAILABLE = "{name} is not available now: it gave no answer."
"""The message to a model of a service that failed; the reason, with advice for people, is in the event."""


def missing_text(results: Collection[ToolResult]) -> str:
    """The message to a model of searches that gave no answer; "" where all gave one."""
    failed = sum(bool(result.error) for result in results)
    return f"(Evidence is missing: {failed} of {len(results)} searches gave no answer.)" if failed else ""


class Tools(Episode):
    """One trajectory's tools and its record."""

    @overload
    async def gather(self, one: Awaitable[T], other: Awaitable[U], /) -> tuple[T, U]: ...
    @overload
    async def gather(self, *work: Awaitable[T]) -> tuple[T, ...]: ...

    async def gather(self, *work: Awaitable[Any]) -> tuple[Any, ...]:
        """Run `work` at once, each call on a dialogue of its own: the results in order.

        An error is raised when all have ended, and of several the first in order: so no part of the trajectory depends
        on which call is faster, as it would with asyncio.gather.
        """
        results = await asyncio.gather(*work, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return tuple(results)

    async def read(
        self,
        dialogue: Dialogue,
        text: str,
        reader: Callable[[str], T],
    ) -> T:
        """Say `text` in the dialogue and return what `reader` makes of the model's answer, free text in some form.

        A reader raises Malformed where the text is not in its form: the action is recorded as malformed, so it is
        counted and never trained on. The config's policy may ask again; after that the error's `reading`, by the
        method's own rule for such text, counts. An answer that was cut off is malformed too, but is read if it can be.
        Raises Unparsed where there is no such rule, OutOfBudget, EngineError.
        """
        act = await self._act_again(dialogue, dialogue.role, text, reader, "reask.user")
        if not act.error:
            return act.value
        try:
            return reader(act.text)
        except Malformed as error:
            if not error.reading:
                raise Unparsed(dialogue.role, act.error) from None
            return error.reading[0]

    async def choose(self, text: str, key: str, choices: Sequence[str]) -> str | None:
        """Say `text` in the last dialogue and return one of `choices`, to which decoding is constrained: the reply is a
        JSON object with it under `key`. None without a dialogue. Raises Unparsed, OutOfBudget, EngineError."""
        if not self._dialogues:
            return None
        dialogue = self._dialogues[-1]
        schema = object_schema(**{key: {"type": "string", "enum": list(choices)}})
        held_to = None if self._speaker(dialogue.role, dialogue).format.is_text else schema
        act = await self._act(
            dialogue, dialogue.role, text, lambda said: read_output(said, schema, held_to), constrain=schema
        )
        if act.error:
            raise Unparsed(dialogue.role, act.error)
        return str(act.value[key])

    async def draft(
        self,
        dialogue: Dialogue,
        text: str,
        prefix: Sequence[int],
        max_tokens: int,
        keep: Callable[[Draft], int],
        logprobs: bool = False,
    ) -> Draft:
        """Say `text`, begin the answer with the ids `prefix`, and let the model add at most `max_tokens` tokens.

        `keep` says how many of the new ids are used: 0, all, or any number between (`Draft.tokens` counts them). The
        dialogue ends here: for the next look-ahead open another one, whose `prefix` is this one and the ids used since.
        Raises OutOfBudget, also where there is no room for one token; EngineError, also where log-probabilities are
        missing; UserError from an engine that takes no token ids.
        """
        drafts: list[Draft] = []

        def place(completion: Completion) -> tuple[int, int]:
            ended = completion.finish_reason == "stop"
            draft = Draft(completion.ids, completion.text, completion.logprobs or (), ended, dialogue.chat.decode)
            drafts.append(replace(draft, kept=keep(draft)))
            return dialogue.draft(completion, drafts[0].kept)

        role = dialogue.role
        check_continues(dialogue, f"system {self.config.name}: {role}")
        act = await self._act(
            dialogue, role, text, free_text, prefix=prefix, max_tokens=max_tokens, place=place, logprobs=logprobs
        )
        if not act.completion.ids:
            raise self._no_room(role, dialogue)
        return drafts[0]

    async def reply(
        self,
        dialogue: Dialogue,
        reader: Callable[[str], Any] | None = None,
        schema: dict[str, Any] | str | None = None,
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
    ) -> tuple[Completion, str, Any]:
        """Reply in a dialogue that a program has extended: (the completion, its text after the thoughts, the value that
        the reader made of that).

        The value is None where the completion is malformed or was cut off: it is recorded so and never trained on.
        The completion ends before the first of the texts `stop`. Raises OutOfBudget, EngineError.
        """
        act = await self._act(
            dialogue, dialogue.role, None, reader or free_text, constrain=schema, max_tokens=max_tokens, stop=stop
        )
        return act.completion, act.text, act.value

    def blank(self, role: str) -> Dialogue:
        """A role's empty conversation, which `open` makes a part of the record."""
        config = self.role(role)
        return Dialogue(role, config.model, self.chat_format(role), self.is_trained(role))

    def check_size(self, role: str, texts: Iterable[str]) -> None:
        """OutOfBudget where messages of these texts cannot fit into a role's context, however few tokens they take: a
        program may send megabytes, and to count their tokens would keep every other trajectory waiting."""
        dialogue = self.blank(role)
        if sum(1 + len(text) // MAX_CHARACTERS for text in texts) > self._engine(dialogue.model).max_context:
            raise self._no_room(role, dialogue)

    async def try_search(self, role: str, query: str, k: int, source: str = INDEX, offset: int = 0) -> ToolResult:
        """`search` whose result has an error, in words for the model, where a service cannot be reached."""
        try:
            return ToolResult(tuple(await self.search(role, query, k, offset, source)))
        except SourceError:
            return ToolResult(error=UNAVAILABLE.format(name="The search"))

    async def tool_specs(self, sources: Collection[str]) -> dict[str, ToolSpec]:
        """The tools of these sources by the name that `call` takes: a search service has one, an MCP server many."""
        specs: dict[str, ToolSpec] = {}
        for name in sources:
            for spec in await self._resources.source(name).tools():
                if spec.name in specs:
                    raise UserError(f"sources: two tools are named {spec.name!r}; leave one out of the system's tools")
                specs[spec.name] = spec
        return specs

    async def call(
        self, role: str, tool: str, arguments: Mapping[str, Any], k: int, sources: Collection[str]
    ) -> ToolResult:
        """Call a tool of one of these sources. ToolResult.error says to the model which arguments are refused, or that
        the service cannot be reached. Raises SourceError where a tool server cannot say which tools it has."""
        specs = {spec.name: name for name in sources for spec in await self._resources.source(name).tools()}
        slot, at = self._start()
        state: LookupState = "ok"
        error, cut = "", ""
        if tool not in specs:
            result, state = ToolResult(error=f"There is no tool {tool!r}{did_you_mean(tool, specs)}."), "refused"
        else:
            try:
                source = specs[tool]
                found = await self._resources.source(source).call(tool, arguments, k)
                result, cut = self._resources.fit(self._engine(self.role(role).model), source, found)
                state = "refused" if result.error else "ok"
            except ToolError as fault:
                result, state = ToolResult(error=str(fault)), "refused"
            except SourceError as problem:
                result, state, error = ToolResult(error=UNAVAILABLE.format(name=tool)), "failed", str(problem)
        self._finish(
            slot,
            ToolCall(
                role=role,
                source=specs.get(tool, ""),
                tool=tool,
                arguments=dict(arguments),
                text=result.text,
                passages=result.passages,
                error=error or result.error,
                state=state,
                at=at,
                seconds=self.seconds - at,
            ),
        )
        if cut:
            self.note(role, cut)
        return result

    async def recall(
        self, role: str, entities: Sequence[str], text: str, by_meaning: bool = False
    ) -> list[EvidenceRecord]:
        """Evidence that other questions of the same scope left under these entities, the most fitting first.
        `by_meaning`: compared by the embedder with the end of `text`, and not by name alone."""
        slot, at = self._start()
        memory, asked = self._resources.memory, self._question.id
        assert memory is not None, "a run always has a memory"
        embed, left_out = self._resources.embed if by_meaning else None, 0
        if embed is not None:
            text, left_out = await asyncio.to_thread(end_of, embed, text)
        evidence = await asyncio.to_thread(memory.recall, entities, text, self._context.scope, asked, embed)
        self._finish(
            slot,
            Recall(
                role=role,
                entities=tuple(entities),
                passages=tuple(piece.passage for piece in evidence),
                at=at,
                seconds=self.seconds - at,
            ),
        )
        if left_out:
            self.note(role, f"the embedder left out {left_out} token(s) at the beginning of the text")
        return evidence

    async def remember(self, role: str, entities: Sequence[str], passages: Sequence[Passage], text: str) -> int:
        """Leave evidence under these entities for other questions of the scope, and return the number of new pieces.
        `text`: the claim or question that it was looked up for."""
        memory, asked = self._resources.memory, self._question.id
        assert memory is not None, "a run always has a memory"
        new = await asyncio.to_thread(memory.remember, entities, passages, text, self._context.scope, asked)
        self.note(role, f"remembered {new} new piece(s) of evidence under {', '.join(entities)}")
        return new

    @property
    def embedder(self) -> Embed:
        """Gives texts as float32 [n, dimension], rows of length 1, by the config's `embedder`. It blocks."""
        return self._resources.embed

    @property
    def thresholds(self) -> Thresholds:
        return self._resources.thresholds


Actions = Literal["text", "native"]
Said = tuple[str, tuple[FunctionCall, ...]]


def function(name: str, about: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """A tool as OpenAI's API has it. `parameters`: the JSON schema of its arguments."""
    return {"type": "function", "function": {"name": name, "description": about, "parameters": dict(parameters)}}


def dialogue_with(tools: Tools, role: str, system: str, offered: Sequence[Mapping[str, Any]]) -> Dialogue:
    """Open a role's conversation in which it may call these tools. UserError where the model has no form for calls."""
    config, chat = tools.role(role), tools.chat_format(role)
    if chat.calls is None:
        raise UserError(
            f"models.{config.model}: its chat template has no form for calls of tools, which {role} makes; set "
            "system.settings.actions: text"
        )
    if config.examples:
        raise UserError(f"system.roles.{role}.examples: they are texts, and {role} calls tools (actions: native)")
    return tools.open(Dialogue(role, config.model, chat, tools.is_trained(role), system or None, offered))


def calls_of(dialogue: Dialogue) -> Callable[[str], Said]:
    """The reader of a dialogue with tools: (what is said before the calls, the calls). It raises Malformed."""
    assert dialogue.chat.calls is not None, "a dialogue with tools is opened with a form for them"
    return partial(read_calls, dialogue.chat.calls, dialogue.tools or ())


def read_calls(form: CallForm, tools: Sequence[Mapping[str, Any]], text: str) -> Said:
    """`CallForm.read`, which raises Malformed here."""
    try:
        return form.read(text, tools)
    except ValueError as error:
        raise Malformed(str(error)) from None
