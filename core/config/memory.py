"""The section `memory`: the evidence memory of systems that keep one."""

from __future__ import annotations

from pydantic import Field

from ratchet.core.config.section import Section


class MemoryConfig(Section):
    """In which order evidence is found, and how much. It is kept in `memory` of the run folder."""

    sequential: bool = False
    """Ask the questions of each arm and question set one after the other, in their order, so that each finds what all
    earlier ones left, and begin with an empty memory. MERMAID (2026, arXiv 2601.22361) counts its savings so. Arms and
    question sets still run side by side. Where a claim failed, those after it wait until it was asked again. Off:
    `sampling.concurrency` questions run at once, and one finds what those left that ended before it asked."""
    kept: int = Field(50, gt=0)
    """Most pieces of evidence of one entity in one scope: the newest."""
    recalled: int = Field(10, gt=0)
    """Most pieces that a question is given."""
