"""What the tests of the evidence memory share."""

import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ratchet.core.config import MemoryConfig
from ratchet.core.records import Passage
from ratchet.retrieval.memory import EvidenceRecord, Memory, MemoryLimits


def passage(text: str, title: str = "") -> Passage:
    return Passage(id=f"id of {text}", document_id=f"document of {text}", text=text, title=title, score=1.0)


def opened(folder: Path, **limits: Any) -> Memory:
    """A memory that closes its files when the test drops it. `limits`: of its `MemoryLimits`."""
    memory = Memory(MemoryConfig(), folder, MemoryLimits(**limits))
    weakref.finalize(memory, memory.files.close)
    return memory


def leave(
    memory: Memory,
    entity: str,
    *texts: str,
    question: str = "q1",
    scope: str = "train",
    claim: str = "a claim",
) -> int:
    return memory.remember([entity], [passage(text) for text in texts], claim, scope, question)


def texts(found: Sequence[EvidenceRecord]) -> list[str]:
    return [evidence.passage.text for evidence in found]


def recalled(memory: Memory, *entities: str, question: str = "another", scope: str = "train") -> list[str]:
    return texts(memory.recall(entities, "a claim", scope, question))
