"""`ratchet memory`: looking into a run's evidence memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ratchet.commands.memory import main
from ratchet.core.errors import UserError
from tests.helpers.configs import write_config
from tests.helpers.remembering import leave, opened

Command = Callable[..., str]


@pytest.fixture
def command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    config = write_config(tmp_path)

    def run(*arguments: str) -> str:
        capsys.readouterr()
        main([*arguments, "--config", str(config)])
        return capsys.readouterr().out

    return run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    memory = opened(tmp_path / "run" / "memory")
    leave(memory, "Velm", "fact 1", "fact 2", "fact 3", question="q1", claim="Velm is\x1b[2J old.")
    leave(memory, "Velm", "fact 1", question="q2", claim="Velm is new.")
    leave(memory, "Ada Torrin", "She was\x1b]0;x an engineer.", question="q2")
    leave(memory, "Velm", "a test's", question="q3", scope="test/base/base")
    memory.close()
    return tmp_path / "run" / "memory"


def test_an_empty_memory(command: Command, tmp_path: Path) -> None:
    assert command() == f"{tmp_path / 'run' / 'memory'}: 0 segment(s), 0 bytes\n"
    assert command("list") == "0 entities\n"
    with pytest.raises(UserError, match="no such entity"):
        command("show", "Velm")
    assert not (tmp_path / "run").exists()


def test_stats_by_scope(command: Command, folder: Path) -> None:
    out = command("stats")
    size = sum(path.stat().st_size for path in folder.glob("*.jsonl"))
    assert out.startswith(f"{folder}: 1 segment(s), {size} bytes\n")
    rows = {cells[0]: cells[1:6] for row in out.splitlines() if (cells := row.replace("│", " ").split())}
    # entities, pieces, left out, questions, characters
    assert rows["train"] == ["2", "4", "0", "2", str(18 + len("She was an engineer.") + len("\x1b]0;x"))]
    assert rows["test/base/base"] == ["1", "1", "0", "1", "8"]


def test_list_by_pieces(command: Command, folder: Path) -> None:
    assert command("list") == (
        "     3  velm  (train)\n     1  ada torrin  (train)\n     1  velm  (test/base/base)\n3 entities\n"
    )


def test_show_says_where_pieces_came_from_and_passes_no_control_characters_on(command: Command, folder: Path) -> None:
    out = command("show", "the velm")
    assert out.index("fact 1") < out.index("fact 2") < out.index("fact 3") and "a test's" in out
    [writer] = [path.stem for path in folder.glob("*.jsonl")]
    assert out.count("question q1  for: Velm is old.") == 3 and f"question q2  for: Velm is new.  ({writer})" in out
    assert "document document of fact 1" in out and out.endswith("4 piece(s)\n")
    assert "She was0;x an engineer." in command("show", "Ada Torrin")
