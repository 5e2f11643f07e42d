"""The agents in examples/, each in the environment of its framework: every token that they get is recorded."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from ratchet.core.config import load_config
from ratchet.core.records import Trajectory
from tests.helpers.gateway import learnt
from tests.helpers.pages import ROOT, blocks
from tests.helpers.playing import QUESTION, Shelf, engine, passage, play

pytestmark = [pytest.mark.slow, pytest.mark.server]


async def run(name: str, replies: list[str], monkeypatch: pytest.MonkeyPatch) -> Trajectory:
    """The example on one question, with these words of its model."""
    monkeypatch.chdir(ROOT)
    settings: dict[str, Any] = dict(load_config(f"examples/{name}.yaml").system.settings)
    if not Path(settings["command"][0]).exists():  # noqa: ASYNC240
        pytest.skip("needs `make examples`")
    shelf = Shelf({QUESTION.text: [passage(1, "Velm has a harbour.")], "harbour Velm": [passage(2, "Ada built it.")]})
    return await play({"name": "external", "settings": settings}, engine(replies), shelf)


async def test_the_guides_program_of_ten_lines_searches_asks_and_answers(tmp_path: Path) -> None:
    pytest.importorskip("openai")
    (source,) = blocks(ROOT / "docs/guides/own-agent.md", "python")
    (tmp_path / "my_agent.py").write_text(source)
    shelf = Shelf({QUESTION.text: [passage(1, "Ada built it.")]})
    settings = {"command": [sys.executable, str(tmp_path / "my_agent.py")]}
    done = await play({"name": "external", "settings": settings}, engine(["Ada Torrin"]), shelf)
    assert (done.status, done.answer) == ("finished", "Ada Torrin"), done.error
    assert [search.query for search in done.searches] == [QUESTION.text]
    assert learnt(done) == ["Ada Torrin<|im_end|>"]


async def test_langgraphs_agent_searches_again_in_one_conversation(monkeypatch: pytest.MonkeyPatch) -> None:
    done = await run("langgraph", ["Search: harbour Velm", "Ada Torrin"], monkeypatch)
    assert (done.status, done.answer) == ("finished", "Ada Torrin"), done.error
    assert [search.query for search in done.searches] == [QUESTION.text, "harbour Velm"]
    assert [conversation.foreign_turns for conversation in done.conversations] == [0]
    assert learnt(done) == ["Search: harbour Velm<|im_end|>Ada Torrin<|im_end|>"]


async def test_the_two_agents_of_openais_sdk_have_a_conversation_each(monkeypatch: pytest.MonkeyPatch) -> None:
    done = await run("openai_agents", ["harbour Velm", "Ada Torrin"], monkeypatch)
    assert (done.status, done.answer) == ("finished", "Ada Torrin"), done.error
    assert [one.id for one in done.passages] == ["c2"]
    assert [conversation.foreign_turns for conversation in done.conversations] == [0, 0]
    assert learnt(done) == ["harbour Velm<|im_end|>", "Ada Torrin<|im_end|>"]


def test_their_configs_differ_in_the_program_alone() -> None:
    one, other = (
        yaml.safe_load((ROOT / f"examples/{name}.yaml").read_text()) for name in ("langgraph", "openai_agents")
    )
    one.pop("run"), other.pop("run")
    one["system"]["settings"].pop("command"), other["system"]["settings"].pop("command")
    assert json.dumps(one) == json.dumps(other)
