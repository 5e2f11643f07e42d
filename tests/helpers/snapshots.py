"""What a system said to its model in one scripted episode, pinned word for word (see tests/helpers/pinned.py)."""

from pathlib import Path

from ratchet.inference.scripted import ScriptedEngine
from tests.helpers.pinned import check_pinned

FOLDER = Path(__file__).parents[1] / "agents" / "snapshots"


def check_snapshot(name: str, *engines: ScriptedEngine) -> None:
    """Compare every message that the engines were sent with the stored ones."""
    check_pinned(FOLDER / f"{name}.txt", "\n".join(_said(engine) for engine in engines))


def _said(engine: ScriptedEngine) -> str:
    """Call by call; what a growing dialogue had said before is not repeated."""
    seen: set[tuple[tuple[str, str], ...]] = set()
    lines = []
    for number, call in enumerate(engine.calls, 1):
        messages = tuple((message["role"], message["content"]) for message in call.messages)
        new = max((n for n in range(len(messages) + 1) if messages[:n] in seen), default=0)
        lines.append(f"=== call {number}" + (f", after {new} messages" if new else ""))
        lines += [f"[{role}] {content}" for role, content in messages[new:]]
        seen |= {messages[:n] for n in range(3, len(messages) + 1)}
    return "\n".join(lines) + "\n"
