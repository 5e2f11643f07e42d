"""The command of all commands."""

from __future__ import annotations

import pytest

from ratchet.commands.arguments import PORTS
from ratchet.commands.main import COMMANDS, main


def test_the_version_is_the_installed_one(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["ratchet", "--version"])
    main()
    assert capsys.readouterr().out.startswith("ratchet 0.")


def test_each_server_has_a_port_of_its_own() -> None:
    assert len(set(PORTS.values())) == len(PORTS)
    assert PORTS.keys() <= COMMANDS.keys(), "each by the name that users type"
