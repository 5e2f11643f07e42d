"""A plug-in is found by the name of a built-in module or a path, and is identified."""

from pathlib import Path

import pytest

from ratchet.core.errors import UserError
from ratchet.core.plugins import load_plugin

SYSTEM = "ROLES = ('answerer',)\nVALUE = {value}\n"


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "mine.py").write_text(SYSTEM.format(value=1))
    return tmp_path


def test_a_built_in_plugin_has_no_digest() -> None:
    plugin = load_plugin("systems", "awe", ("SYSTEM", "solve"), "system.name")
    assert (plugin.module.__name__, plugin.digest) == ("ratchet.agents.awe", "")
    shared = load_plugin("systems", "naive_rag", (), "system.name")
    assert shared.module.__name__ == "ratchet.agents.one_call" and shared.declared("SYSTEM").roles == ("answerer",)


def test_a_file_is_named_by_its_path_and_identified_by_its_content(mine: Path) -> None:
    first = load_plugin("systems", "./mine.py", ("ROLES",), "system.name")
    assert first.module.VALUE == 1 and len(first.digest) == 16
    assert load_plugin("systems", str(mine / "mine.py"), (), "system.name").digest == first.digest, "not by its place"
    (mine / "mine.py").write_text(SYSTEM.format(value=2))
    second = load_plugin("systems", "./mine.py", ("ROLES",), "system.name")
    assert second.module.VALUE == 2 and second.digest != first.digest


def test_a_folder_is_a_package_whose_files_all_count(mine: Path) -> None:
    (mine / "team").mkdir()
    (mine / "team" / "__init__.py").write_text("from .parts import ROLES\n")
    (mine / "team" / "parts.py").write_text("ROLES = ('a', 'b')\n")
    first = load_plugin("systems", "./team", ("ROLES",), "system.name")
    assert first.module.ROLES == ("a", "b")
    (mine / "team" / "parts.py").write_text("ROLES = ('a', 'c')\n")
    second = load_plugin("systems", "./team", ("ROLES",), "system.name")
    assert second.module.ROLES == ("a", "c") and second.digest != first.digest
    assert not list(mine.rglob("__pycache__")), "nothing is written beside the user's files"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("raise SystemExit(0)", r"\(SystemExit: 0; odd\.py, line 2\)"),
        ("raise ValueError('two\\nlines\\x1b[2J')", r"\(ValueError: two lines; odd\.py, line 2\)"),
        ("raise KeyError('x' * 100_000)", r"\(KeyError: 'x{200,300} \[cut\]; odd\.py, line 2\)"),
        ("raise type('Odd', (Exception,), {'__str__': lambda self: 1 / 0})", r"\(Odd; odd\.py, line 2\)"),
    ],
)
def test_an_import_that_fails_is_told_in_one_line_with_the_line_of_the_code(
    mine: Path, source: str, message: str
) -> None:
    (mine / "odd.py").write_text(f"ROLES = ()\n{source}\n")
    with pytest.raises(UserError, match=f"odd.py cannot be imported {message}$"):
        load_plugin("systems", "./odd.py", ("ROLES",), "system.name")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("naive_rga", r"system\.name: there is no 'naive_rga' in agents/ \(did you mean 'naive_rag'\?\)"),
        ("core", r"there is no 'core' in agents/"),
        ("./nowhere.py", r"there is no file nowhere\.py"),
        ("mylab.debate", r"there is no 'mylab\.debate' in agents/ .*; a file of your own is named by its path"),
        ("./broken.py", r"broken\.py cannot be imported \(SyntaxError"),
        ("./mine.py", r"mine\.py defines no solve, which systems must have"),
    ],
)
def test_what_is_no_plugin_is_an_error_that_names_the_key(mine: Path, name: str, message: str) -> None:
    (mine / "broken.py").write_text("def solve(:\n")
    with pytest.raises(UserError, match=message):
        load_plugin("systems", name, ("ROLES", "solve"), "system.name")
