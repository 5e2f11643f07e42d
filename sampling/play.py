"""A system played by replies that were written beforehand, without a model, an index or a config: `ratchet.play`.

For tests of a system of one's own: each of its branches is a list of replies. The episode is a real one, with the
reader of actions, the limits and the record that sampling has.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from ratchet.agents.core.resources import Resources, no_embedder
from ratchet.agents.core.system import load_system
from ratchet.agents.core.task import Job, RunContext
from ratchet.core.config import MemoryConfig, SystemConfig, parse
from ratchet.core.records import Passage, Question, Trajectory, content_key
from ratchet.core.tasks import run_outside_event_loop
from ratchet.inference.chat_formats import WrapperFormat
from ratchet.inference.scripted import Replies, ScriptedEngine
from ratchet.retrieval.encoders.limits import Embed
from ratchet.retrieval.memory import Memory
from ratchet.retrieval.retriever import Retriever
from ratchet.retrieval.sources.source import SearchSource, Source
from ratchet.sampling.pool import run_episode

CONTEXT = RunContext(temperature=0.7, frozen_temperature=0.1, top_p=0.95, adapter=None, policy="base")
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def play(
    system: str | Path,
    replies: Replies,
    question: str | Question,
    found: Sequence[str] | Mapping[str, Sequence[str]] = (),
    **config: Any,
) -> Trajectory:
    """Let a system answer a question with these replies of its models, and return the trajectory.

    `system`: a built-in name or the path of a file, as in a config. `replies`: texts, or objects that are written as
    JSON, in the order of the calls; or a function of (prompt, parameters, messages) where calls are made at once. A
    reply has a token for each byte, and is cut at its role's `max_tokens`. `found`: the texts that every search finds,
    or those of each query; the index and every source find the same. `config`: further keys of a config's section
    `system`, such as settings={"votes": 3} or roles={"default": {"max_tokens": 64}}.

    Raises UserError for a wrong system or settings. Where the replies run out, the trajectory's status is "failed".
    """
    asked = Question(id="played", text=question) if isinstance(question, str) else question
    loaded = load_system(parse(SystemConfig, {"name": str(system), **config}, "system"))
    engine, retriever = ScriptedEngine(byte_format(), replies), ScriptedSearch(found)
    with resources_over(retriever) as resources:
        job = Job(asked, sample=0, key="played", seed=0)
        engines = dict.fromkeys(loaded.models, engine)
        episode = run_episode(job, loaded, engines, retriever, CONTEXT, resources)
        return run_outside_event_loop(lambda: asyncio.run(episode))


class ScriptedSearch:
    """A retriever that finds what was written beforehand."""

    digest = "scripted"

    def __init__(self, found: Sequence[str] | Mapping[str, Sequence[str]]) -> None:
        """`found`: of every query, or by query, of which one that is not there finds nothing."""
        self._found = found

    def search(self, query: str, k: int, offset: int = 0) -> list[Passage]:
        texts = self._found.get(query, ()) if isinstance(self._found, Mapping) else self._found
        ids = [(content_key(text)[:8], text) for text in texts[offset : offset + k]]
        return [Passage(id=id, document_id=id, text=text) for id, text in ids]


class RetrieverSource(SearchSource):
    """A source that searches a retriever."""

    def __init__(self, name: str, retriever: Retriever) -> None:
        self.name, self.about, self.retriever, self.digest = name, f"searches {name}", retriever, retriever.digest

    async def search(self, query: str, k: int, offset: int = 0) -> list[Passage]:
        return self.retriever.search(query, k, offset)


class EverySource(dict[str, Source]):
    """Sources of any name, all over one retriever."""

    def __init__(self, retriever: Retriever) -> None:
        super().__init__()
        self.retriever = retriever

    def __missing__(self, name: str) -> Source:
        return self.setdefault(name, RetrieverSource(name, self.retriever))


@contextmanager
def resources_over(retriever: Retriever, embed: Embed = no_embedder) -> Iterator[Resources]:
    """Every source there could be, over one retriever, and an empty memory that ends with the block."""
    with tempfile.TemporaryDirectory() as folder:
        memory = Memory(MemoryConfig(), Path(folder))
        try:
            yield Resources(EverySource(retriever), memory, embed)
        finally:
            memory.close()


@cache
def byte_format() -> WrapperFormat:
    """A chat format in the manner of ChatML whose tokens are bytes."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers  # late: an import does no work
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: number for number, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<|im_start|>", eos_token="<|im_end|>")
    wrapped.chat_template = CHATML
    return WrapperFormat.from_tokenizer(wrapped, "the scripted engine")
