"""What a system may do: converse with models (dialogues.py), search, call tools, recall evidence, take notes.

All is recorded here; a system writes no log.

A service that gives no answer, after its own retries, is the tool's result and not the trajectory's end: `try_search`
and `call` return an error in words for the model, and the event has the state "failed". `search` is for systems with
nothing to tell a model: it raises, and the trajectory fails.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from agents.core.answer import Answer, OutOfBudget, Unparsed
from agents.core.context import RunContext
from agents.core.dialogues import Dialogues
from agents.core.labels import label_of_stance, labels_text, task_text
from agents.core.prompts.template import SHARED, TASK, Prompts, PromptSet
from agents.core.resources import INDEX, Resources
from inference.chat import Dialogue, first_tokens
from inference.engine import Engine
from ratchet.config import RoleConfig, SystemConfig, Thresholds
from ratchet.errors import UserError, did_you_mean
from ratchet.records import Event, LookupState, Note, Passage, Question, Recall, Search, ToolCall
from ratchet.text import shortened
from retrieval.encoders.dense import Embed
from retrieval.encoders.embedder import end_of
from retrieval.errors import SourceError
from retrieval.index import Retriever
from retrieval.memory.memory import Evidence
from retrieval.sources.source import Source, ToolError, ToolResult, ToolSpec

__all__ = ["Answer", "OutOfBudget", "RunContext", "Tools", "Unparsed"]


SHARE = 8
"""What a source finds at once may fill one part in so many of a context: Tool-MAD's judge reads six searches."""
UNAVAILABLE = "{name} is not available now: it gave no answer."
"""What a model is told of a service that failed; the reason, with advice for people, is in the event."""


class Tools(Dialogues):
    """One trajectory's tools and its record. Calls may run at once (asyncio.gather)."""

    def __init__(
        self,
        config: SystemConfig,
        engines: Mapping[str, Engine],
        retriever: Retriever,
        context: RunContext,
        seed: int,
        watch: Callable[[Event], None] | None = None,
        resources: Resources | None = None,
        question: Question | None = None,
        prompts: Prompts = SHARED,
        sample: int = 0,
    ) -> None:
        task = {}
        if question is not None:
            values = (question.text, task_text(question), question.form, labels_text(question.labels))
            task = dict(zip(TASK, values, strict=True))
        super().__init__(config, engines, context, seed, watch, PromptSet(prompts, task))
        self.sample = sample
        """The number of the attempt at the question."""
        self._retriever, self._resources, self._question = retriever, resources or Resources(), question

    def begin(self, role: str, slot: str = "", **values: str) -> tuple[Dialogue, str]:
        """A new conversation of a role, and what is said in it first: the prompts `<slot>.system` and `<slot>.user`,
        filled in with these values. `slot`: by default the role's name."""
        slot = slot or role
        return self.dialogue(role, self.prompt(f"{slot}.system", **values)), self.prompt(f"{slot}.user", **values)

    async def search(self, role: str, query: str, k: int, offset: int = 0, source: str = INDEX) -> list[Passage]:
        """The passages of ranks offset..offset+k-1; fewer, or none, where the source has no more.

        `source`: "index", or a name under `sources` in the config. Raises UserError where there is no such source,
        SourceError where a service cannot be reached.
        """
        passages, problem = await self._search(role, query, k, offset, source)
        if problem is not None:
            raise problem
        return passages

    async def try_search(self, role: str, query: str, k: int, source: str = INDEX, offset: int = 0) -> ToolResult:
        """`search` for an agent that is told where a service cannot be reached: then the result has an error, in words
        for the model, and no passages."""
        passages, problem = await self._search(role, query, k, offset, source)
        return ToolResult(tuple(passages), error="" if problem is None else UNAVAILABLE.format(name="The search"))

    async def _search(
        self, role: str, query: str, k: int, offset: int, source: str
    ) -> tuple[list[Passage], SourceError | None]:
        slot, at = self._start()
        passages, cut, problem = list[Passage](), "", None
        try:
            if source == INDEX:
                passages = await asyncio.to_thread(self._retriever.search, query, k, offset)
            else:
                result = ToolResult(tuple(await self._source(source).search(query, k, offset)))
                fitted, cut = self._fit(role, source, result)
                passages = list(fitted.passages)
        except SourceError as error:
            problem = error
        self._finish(
            slot,
            Search(
                role=role,
                source=source,
                query=query,
                k=k,
                offset=offset,
                passages=tuple(passages),
                error="" if problem is None else str(problem),
                at=at,
                seconds=time.monotonic() - self._started - at,
            ),
        )
        if cut:
            self.note(role, cut)
        return passages, problem

    def _fit(self, role: str, source: str, result: ToolResult) -> tuple[ToolResult, str]:
        """What a source found, cut to the tokens that its passages may take, and a remark on what was cut or ""."""
        engine = self._engine(self.role(role).model)
        fitting = engine.max_context // SHARE // max(1, len(result.passages))
        most = self._resources.max_tokens.get(source) or max(1, fitting)

        def fit(text: str, max_tokens: int) -> str:
            return shortened(text, max(1, len(first_tokens(engine.format, text, max_tokens))))

        passages = tuple(p.model_copy(update={"text": fit(p.text, most)}) for p in result.passages)
        fitted = replace(result, passages=passages, text=result.text if passages else fit(result.text, most))
        cut = [old.id for old, new in zip(result.passages, passages, strict=True) if new.text != old.text]
        if fitted.text != result.text:
            cut.append("its text")
        remark = f"{source}: {len(cut)} document(s) cut to {most} tokens ({', '.join(cut)})" if cut else ""
        return fitted, remark

    @property
    def outage(self) -> str:
        """Why nothing could be looked up: the last failure where no search or tool call got an answer, else ""."""
        looked_up = [event for event in self.events if isinstance(event, Search | ToolCall)]
        return self.last_failure if all(event.state == "failed" for event in looked_up) else ""

    @property
    def last_failure(self) -> str:
        """Why the last search or tool call that got no answer got none; "" where all got one."""
        lookups = [event for event in self.events if isinstance(event, Search | ToolCall)]
        return next((event.error for event in reversed(lookups) if event.state == "failed"), "")

    async def tool_specs(self, sources: Collection[str]) -> dict[str, ToolSpec]:
        """The tools of these sources by the name that `call` takes: a search service has one, an MCP server many."""
        specs: dict[str, ToolSpec] = {}
        for name in sources:
            for spec in await self._source(name).tools():
                if spec.name in specs:
                    raise UserError(f"sources: two tools are named {spec.name!r}; leave one out of the system's tools")
                specs[spec.name] = spec
        return specs

    async def call(
        self, role: str, tool: str, arguments: Mapping[str, Any], k: int, sources: Collection[str]
    ) -> ToolResult:
        """Call a tool of one of these sources. ToolResult.error has, in words for a model, what it refuses (bad
        arguments), or that the service behind it cannot be reached.

        Raises SourceError where a tool server cannot say which tools it has.
        """
        specs = {spec.name: name for name in sources for spec in await self._source(name).tools()}
        slot, at = self._start()
        state: LookupState = "ok"
        error, cut = "", ""
        if tool not in specs:
            result, state = ToolResult(error=f"There is no tool {tool!r}{did_you_mean(tool, specs)}."), "refused"
        else:
            try:
                result, cut = self._fit(role, specs[tool], await self._source(specs[tool]).call(tool, arguments, k))
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
                seconds=time.monotonic() - self._started - at,
            ),
        )
        if cut:
            self.note(role, cut)
        return result

    async def recall(self, role: str, entities: Sequence[str], text: str, by_meaning: bool = False) -> list[Evidence]:
        """Evidence that other questions of the same scope left under these entities, the most fitting first.

        `by_meaning`: by what the evidence is about and not by its name alone, against the end of `text` that the
        embedder reads.
        """
        slot, at = self._start()
        memory, asked = self._resources.memory, self._question.id if self._question else ""
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
                seconds=time.monotonic() - self._started - at,
            ),
        )
        if left_out:
            self.note(role, f"the embedder left out {left_out} token(s) at the beginning of the text")
        return evidence

    async def remember(self, role: str, entities: Sequence[str], passages: Sequence[Passage], text: str) -> int:
        """Leave evidence under these entities for other questions of the scope; how many pieces were new.

        `text`: what it was looked up for, such as the claim.
        """
        memory, asked = self._resources.memory, self._question.id if self._question else ""
        assert memory is not None, "a run always has a memory"
        new = await asyncio.to_thread(memory.remember, entities, passages, text, self._context.scope, asked)
        cut = sum(len(passage.text) > memory.limits.characters for passage in passages)
        note = f"; {cut} document(s) cut to {memory.limits.characters} characters" if cut else ""
        self.note(role, f"remembered {new} new piece(s) of evidence under {', '.join(entities)}{note}")
        return new

    async def embed(self, texts: Sequence[str]) -> np.ndarray:
        """float32 [n, dimension], rows of length 1, by the config's `embedder`."""
        return await asyncio.to_thread(self.embedder, texts)

    @property
    def embedder(self) -> Embed:
        """The function behind `embed`."""
        return self._resources.embed

    @property
    def thresholds(self) -> Thresholds:
        """The config's `embedder.thresholds`."""
        return self._resources.thresholds

    def note(self, role: str, text: str, reward: float | None = None) -> None:
        """Leave a remark in the trajectory: a decision of the system's own, for whoever reads the log. `reward`: what
        an agent makes of its own work, from 0 to 1."""
        slot, at = self._start()
        self._finish(slot, Note(role=role, text=text, reward=reward, at=at))

    def _examples(self, config: RoleConfig, examples: Sequence[tuple[str, str]]) -> Sequence[tuple[str, str]]:
        """The config's examples in place of the system's own; <true> and <false> in them become labels of the task."""
        labels = self._question.labels if self._question else ()
        if not config.examples or len(labels) < 2:
            return super()._examples(config, examples)
        named = {"<true>": label_of_stance(labels, "true") or labels[0].name}
        named["<false>"] = label_of_stance(labels, "false") or labels[1].name

        def filled(text: str) -> str:
            for mark, name in named.items():
                text = text.replace(mark, name)
            return text

        return [(filled(user), filled(assistant)) for user, assistant in config.examples]

    def _source(self, name: str) -> Source:
        try:
            return self._resources.sources[name]
        except KeyError:
            known = did_you_mean(name, self._resources.sources)
            raise UserError(
                f"sources: the system searches {name!r}, which the config has not{known}; offline, for example: "
                f"sources: {{{name}: {{service: tavily, mode: local}}}}"
            ) from None
