"""A scripted debate: what Tool-MAD's agents, judge and scorer say, and over what."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ratchet.agents.tool_mad.debate import TOOL
from ratchet.core.config import Thresholds
from ratchet.core.records import Passage, Question, Trajectory
from ratchet.inference.scripted import ScriptedEngine
from ratchet.retrieval.sources.source import Source
from ratchet.sampling.play import resources_over
from tests.helpers.playing import CLAIM, Shelf, alike, engine, passage, play

YES, NO, OPEN = "SUPPORTS", "REFUTES", "NOT ENOUGH INFO"
Turns = Mapping[str, Sequence[str]]
"""By agent: the label of each round; the last one holds for the rest."""


class Finds(Shelf):
    """Three passages for every query, which name it."""

    def search(self, query: str, k: int, offset: int = 0) -> list[Passage]:
        self.asked.append((query, k, offset))
        found = [passage(n, f"Part {n} of what <{query}> finds.") for n in range(1, k + 1)]
        return [one.model_copy(update={"id": f"{query}#{n}"}) for n, one in enumerate(found, 1)]


class Debate:
    """`labels`, `faithful` (a share of 4 statements) and `vague` are by agent and round: "rag 1"."""

    def __init__(
        self,
        labels: Turns,
        faithful: Mapping[str, int] | None = None,
        vague: Sequence[str] = (),
        ruling: str = f"The judge's reasons.\n{NO}",
        said: Mapping[str, str] | None = None,
    ) -> None:
        self.labels, self.faithful, self.vague, self.ruling = labels, faithful or {}, vague, ruling
        self.said = said or {}
        self.rounds: dict[str, int] = {}
        self.engine: ScriptedEngine = engine(self.reply)
        self.shelf = Finds({})

    async def play(
        self,
        question: Question = CLAIM,
        roles: dict[str, Any] | None = None,
        down: Source | None = None,
        calibrated: Thresholds | None = None,
        **settings: Any,
    ) -> Trajectory:
        """`down` is a source that answers in the place of its name; `calibrated` are the embedder's thresholds."""
        config = {"name": "tool_mad", "settings": settings, "roles": roles or {}}
        with resources_over(self.shelf, alike) as resources:
            if down is not None:
                resources = replace(resources, sources={**resources.sources, down.name: down})
            resources = replace(resources, thresholds=calibrated or resources.thresholds)
            return await play(config, self.engine, self.shelf, question=question, resources=resources)

    def told(self, word: str) -> list[tuple[str, str]]:
        """(system message, user's message) of every call whose system message holds this."""
        pairs = [
            (c.messages[0]["content"], c.messages[-1]["content"]) for c in self.engine.calls if len(c.messages) > 1
        ]
        return [(system, user) for system, user in pairs if word in system]

    def reply(self, _: str, __: Any, messages: Sequence[Any]) -> str:
        system, user = messages[0]["content"], messages[-1]["content"]
        if len(messages) == 1:
            return json.dumps(self._score(user))
        if "You judge" in system:
            return self.ruling
        if "keywords for the query" in system:
            return "[aspirin, low dose, stroke]"
        if "Sum up" in system:
            return f"In short: {user.rsplit(chr(10), 1)[-1].removeprefix('> ')}."
        if "Write one query" in system:
            kind = next(kind for kind, tool in TOOL.items() if tool in system)
            return f"[{self._turn(kind)}]"
        found = re.search(r"<(\w+ \d)>", user)
        turn = found[1] if found else self._turn("claim" if "Documents" in user else "none")
        return self.said.get(turn, f"Reasons of {turn}.\n{self._label(turn)}")

    def _turn(self, kind: str) -> str:
        self.rounds[kind] = self.rounds.get(kind, 0) + 1
        return f"{kind} {self.rounds[kind]}"

    def _label(self, turn: str) -> str:
        kind, number = turn.split()
        labels = self.labels[kind]
        return labels[min(int(number), len(labels)) - 1]

    def _score(self, prompt: str) -> dict[str, Any]:
        turn = found[1] if (found := re.search(r"Reasons of (\w+ \d)", prompt)) else ""
        if '"statements": {' in prompt:
            share = self.faithful.get(turn, 4)
            return {"verdicts": [1] * share + [0] * (4 - share)}
        if '"noncommittal"' in prompt:
            return {"question": "Who built it?", "noncommittal": int(turn in self.vague)}
        return {"statements": [f"Reasons of {turn}, {n}" for n in range(4)]}
