"""Hints: what a prompt says of the right answer while a trajectory is sampled, and which no training row may hold.

Where sampling never succeeds, the model is told the answer or a document that has it, and what it then does is learnt
as if it had not been told: rationalization (Zelikman et al. 2022, STaR, arXiv 2203.14465, section 3.1).

The hint stands behind the question. The system is then run once more on the question alone, its searches included,
with the completions that were sampled in place of a model, so every prompt is the one that this system writes without a
hint, and every action has the token ids that were sampled. Only that second run is recorded. Where it needs another
completion, leaves one unused or comes to another answer, or an action speaks of a hint, the trajectory is unparsed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Literal

from agents.core.context import RunContext
from agents.core.prompts.documents import one_line
from agents.core.resources import Resources
from agents.core.system import System, run_episode
from inference.completion import Completion, Message, SamplingParams
from inference.engine import Engine, EngineError
from ratchet.records import Question, Trajectory
from retrieval.index import Retriever

HintKind = Literal["answer", "document"]
OPENINGS: dict[HintKind, str] = {
    "answer": "(Hint: the right answer is",
    "document": "(Hint: this has the answer:",
}
WORD = re.compile(r"\bhint", re.IGNORECASE)


def hint_of(question: Question, kind: HintKind, retriever: Retriever) -> str:
    """The hint of a question, in one line; empty where its answer, or its gold document in the index, is not known."""
    told = question.gold_answer
    if kind == "document":
        store = getattr(retriever, "store", None)
        chunks = [number for name in question.gold_ids for number in store.chunks_of(name)] if store else []
        passages = [store.passage(number, 0.0) for number in chunks] if store else []
        told = " ".join(f"{passage.title}: {passage.text}" for passage in passages)
    return f"{OPENINGS[kind]} {one_line(told)})" if told else ""


def holds_hint(text: str) -> bool:
    """Whether a prompt or an action has a hint in it, however its blanks were changed."""
    flat = " ".join(text.split())
    return any(opening in flat for opening in OPENINGS.values())


class _Tape:
    """An engine that keeps the completions of another one, by seed; or, as a player, returns them once each."""

    def __init__(self, engine: Engine, kept: dict[int, Completion], plays: bool) -> None:
        self.format, self.max_context, self.fingerprint = engine.format, engine.max_context, engine.fingerprint
        self._engine, self._kept, self._plays = engine, kept, plays
        self.missed = False

    async def generate(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        adapter: str | None = None,
        messages: Sequence[Message] = (),
    ) -> Completion:
        if not self._plays:
            self._kept[params.seed] = await self._engine.generate(prompt, params, adapter, messages)
            return self._kept[params.seed]
        if params.seed not in self._kept:
            self.missed = True
            raise EngineError("there is no sampled completion for this prompt")
        return self._kept.pop(params.seed)

    async def close(self) -> None:
        """Do nothing: the engine itself is closed by who opened it."""


async def run_hinted_episode(
    question: Question,
    system: System,
    engines: Mapping[str, Engine],
    retriever: Retriever,
    context: RunContext,
    *,
    hint: str,
    key: str,
    sample: int,
    seed: int,
    resources: Resources | None = None,
) -> Trajectory:
    """`run_episode` with a hint in the question, and the record of it without; see the top of this file."""
    completions: dict[int, Completion] = {}

    async def run(asked: Question, plays: bool) -> tuple[Trajectory, bool]:
        tapes = {name: _Tape(engine, completions, plays) for name, engine in engines.items()}
        done = await run_episode(
            asked, system, tapes, retriever, context, key=key, sample=sample, seed=seed, resources=resources
        )
        return done.model_copy(update={"hint": hint}), any(tape.missed for tape in tapes.values())

    hinted, _ = await run(question.model_copy(update={"text": f"{question.text} {hint}"}), plays=False)
    if hinted.status == "failed":
        return hinted
    said = " ".join(completion.text for completion in completions.values())
    made, missed = await run(question, plays=True)
    made = made.model_copy(update={"seconds": hinted.seconds + made.seconds})
    problem = ""
    if WORD.search(said) and not WORD.search(question.text):
        problem = "an action speaks of the hint"
    elif missed or (made.status != "failed" and completions):
        problem = "without the hint, its actions do not fit their prompts"
    elif made.status != "failed" and (made.status, made.answer) != (hinted.status, hinted.answer):
        problem = "without the hint, its actions come to another answer"
    if not problem:
        return made
    # Nothing of it may be learnt, by objectives that learn from attempts that did not finish either.
    conversations = tuple(
        one.model_copy(update={"spans": tuple(span.model_copy(update={"parsed": False}) for span in one.spans)})
        for one in made.conversations
    )
    changes = {"status": "unparsed", "answer": "", "error": problem, "conversations": conversations}
    return made.model_copy(update=changes)
