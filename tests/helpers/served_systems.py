"""A real server over systems that a scripted engine plays, in a thread."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from ratchet.commands.ask import open_runner
from ratchet.core.config import Config
from ratchet.inference.scripted import ScriptedEngine
from ratchet.serve import Limits
from ratchet.serve.answering import Answerer
from ratchet.serve.app import create_app
from tests.helpers.any_system import Library, Talker
from tests.helpers.listening import listening
from tests.helpers.playing import Shelf, engine
from tests.helpers.tiny import save_tiny_tokenizer

SYSTEMS = {"verdicts": {"name": "direct"}, "no retrieval": {"name": "no_retrieval"}}
"""The baselines beside vanilla RAG: one of them takes claims."""


@dataclass(frozen=True)
class Served:
    """A server that runs, and the engine behind it."""

    url: str
    engine: ScriptedEngine
    key: str | None

    @contextlib.contextmanager
    def client(self, **options: Any) -> Iterator[OpenAI]:
        """The official client, which tries once."""
        settings = {"api_key": self.key or "any", "max_retries": 0, "timeout": 20, **options}
        with OpenAI(base_url=f"{self.url}/v1", **settings) as client:
            yield client


def make_answerer(
    folder: Path,
    agent: ScriptedEngine,
    shelf: Shelf | None = None,
    adapter: Path | None = None,
    system: str = "vanilla_rag",
    baselines: Mapping[str, Any] = SYSTEMS,
    **limits: Any,
) -> Answerer:
    """What is served, over a shelf in place of an index and a scripted engine in place of a model."""
    config = Config.model_validate(
        {
            "run": str(folder / "run"),
            "models": {"agent": {"path": str(save_tiny_tokenizer(folder / "tokenizer"))}},
            "system": {"name": system},
            "evaluation": {"baselines": dict(baselines)},
        }
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ratchet.sampling.ask.open_index", lambda _: shelf or Library())
        patch.setattr("ratchet.sampling.ask.open_engines", lambda models, names: {"agent": agent})
        runner = open_runner(config, baselines=True)
    return Answerer(runner, None if adapter is None else str(adapter), "agent", Limits(**limits))


@contextlib.contextmanager
def serving(
    folder: Path, talker: Talker | None = None, delay: float = 0.0, key: str | None = None, **options: Any
) -> Iterator[Served]:
    """The address of a server that answers until the block ends. `delay`: seconds of a model call."""
    agent = engine((talker or Talker()).reply)
    agent.delay = delay
    answerer = make_answerer(folder, agent, **options)
    with listening(create_app(answerer, key)) as url:
        yield Served(url, agent, key)
