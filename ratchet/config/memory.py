"""The section `memory`: the evidence memory of systems that keep one."""

from __future__ import annotations

from pydantic import Field, model_validator

from ratchet.config.paths import PathText
from ratchet.config.section import Section


class MemoryConfig(Section):
    """Where evidence is kept, how much of it, and what is recalled."""

    path: PathText = ""
    """Folder of the memory. Default: `memory` in the run folder. Runs and jobs may share one folder."""
    across: bool = False
    """Recall evidence from every scope, not only from the question's own. It is off because evidence that was found for
    test questions would reach training, and the reverse. Turn it on for a memory that is only read, or that was filled
    beforehand."""
    sequential: bool = False
    """Ask the questions of each arm and question set one after the other, in their order, so that each finds what all
    earlier ones left, and begin with an empty memory. MERMAID (2026, arXiv 2601.22361) counts its savings so. Arms and
    question sets still run side by side. Where a claim failed, those after it wait until it was asked again. Off:
    `sampling.concurrency` questions run at once, and one finds what those left that ended before it asked."""
    most: int = Field(10, gt=0)
    """Maximum number of pieces of evidence that are recalled at once."""
    per_entity: int = Field(50, gt=0)
    """Maximum number of pieces of one entity that are kept in one scope. The newest are kept."""
    pieces: int = Field(100_000, gt=0)
    """Maximum number of pieces that are kept in one scope. The newest are kept."""
    characters: int = Field(4000, gt=0)
    """Maximum number of characters of a piece, and of the text that it was looked up for. The rest is cut."""
    similarity: float = Field(0.5, ge=-1, le=1)
    """Recall by meaning: minimum cosine similarity of the claim and a piece."""
    name_similarity: float = Field(0.55, ge=-1, le=1)
    """Recall by meaning: minimum cosine similarity of two entities' names."""

    @model_validator(mode="after")
    def _sequence_begins_empty(self) -> MemoryConfig:
        if self.sequential and self.across:
            raise ValueError("sequential: the memory begins empty, and with across it has other scopes' evidence")
        return self
