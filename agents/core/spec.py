"""What a system is: the declaration that its module makes under the name `SYSTEM`.

A system is a module `agents/<name>.py`, a folder of that name, or code outside of agents/ (`ratchet.plugins`). Adding
one is one file and one config:

    class Settings(Section): ...

    async def solve(question: Question, tools: Tools, settings: Settings) -> Answer: ...

    SYSTEM = SystemSpec(Settings, solve, roles=("answerer",))
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from ratchet.agents.core.prompts.template import Prompts
from ratchet.agents.core.tools import Answer, Tools
from ratchet.core.config import Section
from ratchet.core.records import Question

S = TypeVar("S", bound=Section)


@dataclass(frozen=True)
class SystemSpec(Generic[S]):
    """What a system declares."""

    settings: type[S]
    """Its own part of the config, checked strictly."""
    solve: Callable[[Question, Tools, S], Awaitable[Answer]]
    """Answers a question. Where it has an answer before its last action, it sets `tools.so_far` to it."""
    roles: tuple[str, ...] | Callable[[S], tuple[str, ...]]
    """The roles that it plays, or a function of its settings that gives them."""
    prompts: Prompts = field(default_factory=dict)
    """Its prompts, which a config can replace."""
    gives_verdict: bool = False
    """Whether its answer is a label: it needs a question with labels, such as a claim."""
    gold_action: Callable[[Question, S], tuple[str, str]] | None = None
    """The role whose action is the answer, and the action that gives `Question.gold_answer`. Raises ValueError where
    the answer does not fit the action's form."""
    names_evidence: bool = False
    """Whether it is told which documents support its answer, and in which words a model saw them is not known, as of a
    program. Of other systems, an answer's passages are those that a prompt showed."""
    digest: Callable[[S], str] | None = None
    """Gives the digest of the files that its settings name, for content keys."""
