"""Agent systems, one file or folder each, and what they share: loading them, their tools, and one episode."""

from typing import TYPE_CHECKING

from ratchet.lazy import lazy_attributes

if TYPE_CHECKING:
    from agents.core.ask import ask as ask
else:
    __getattr__ = lazy_attributes(__name__, {"ask": "agents.core.ask"})
