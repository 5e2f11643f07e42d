"""Claude Code and Codex from npm, offline behind the gateway: a call, its result and an answer in one conversation."""

import json
from pathlib import Path
from typing import Any

import pytest

from ratchet.core.records import Note, Trajectory
from ratchet.inference.chat_formats import WrapperFormat
from ratchet.inference.scripted import ScriptedEngine
from tests.agents.external.test_dialects import calling
from tests.helpers.gateway import learnt, texts
from tests.helpers.pages import ROOT, blocks
from tests.helpers.playing import Shelf, play
from tests.helpers.tiny import tiny_tokenizer
from tests.inference.test_messages import HERMES

pytestmark = [pytest.mark.slow, pytest.mark.server]
PACKAGES = ROOT / ".venv-npm/node_modules"
PROGRAMS = {"claude": "@anthropic-ai/claude-code-*/claude", "codex": "@openai/codex-*/vendor/*/bin/codex"}
FOUND = "The harbour of Velm was built by Ada Torrin."


async def run(name: str, call: str, folder: Path) -> Trajectory:
    """The guide's program on one question, in a folder with one file."""
    programs = [*PACKAGES.glob(PROGRAMS[name])]
    if not programs:
        pytest.skip("needs `make npm`")
    (folder / "bin").mkdir()
    (folder / "bin" / name).symlink_to(programs[0])
    (folder / "notes.txt").write_text(FOUND)
    [script] = [block for block in blocks(ROOT / "docs/guides/own-agent.md", "sh") if f"\n{name} " in f"\n{block}"]
    (folder / "agent.sh").write_text(script)
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = HERMES
    chat = WrapperFormat.from_tokenizer(tokenizer)
    settings: dict[str, Any] = {
        "command": ["sh", "-c", 'cd "$HOME" && PATH="$HOME/bin:$PATH" sh agent.sh'],
        "timeout": 60,
        "env": {"HOME": str(folder), "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"},
    }
    engine = ScriptedEngine(chat, [f"I look.\n{call}", "Ada Torrin"], 200_000)
    return await play({"name": "external", "settings": settings}, engine, Shelf({}))


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("claude", calling("Bash", command="cat notes.txt", description="Read")),
        ("codex", calling("exec_command", cmd="cat notes.txt")),
    ],
)
async def test_an_agent_from_npm_calls_a_tool_and_answers(name: str, call: str, tmp_path: Path) -> None:
    done = await run(name, call, tmp_path)
    assert (done.status, done.answer) == ("finished", "Ada Torrin"), done.error
    assert [one.foreign_turns for one in done.conversations] == [0], json.dumps([one.text for one in notes(done)])
    assert FOUND in texts(done)[0].partition(call)[2], "its tool ran"
    assert learnt(done) == [f"I look.\n{call}<|im_end|>Ada Torrin<|im_end|>"]
    assert not [note for note in notes(done) if "refused" in note.text]


def notes(trajectory: Trajectory) -> list[Note]:
    return [event for event in trajectory.events if isinstance(event, Note)]
