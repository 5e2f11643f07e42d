"""The command of all commands."""

from __future__ import annotations

import pytest

from commands.main import main


def test_the_version_is_the_installed_one(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["ratchet", "--version"])
    main()
    assert capsys.readouterr().out.startswith("ratchet 0.")
