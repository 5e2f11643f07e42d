"""One way to find a subcommand, to list them and to say what was meant; and the one name `ratchet` for all commands."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from ratchet.commands.main import COMMANDS
from ratchet.commands.subcommands import Subcommand, Subcommands, run_subcommand, split_at_dashes

ROOT = Path(__file__).parents[2]


class Told:
    """A command with two subcommands that note what they were given."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[str], str]] = []

    def note(self, name: str, arguments: Sequence[str], prog: str) -> None:
        self.calls.append((name, list(arguments), prog))

    def run(self, *words: str, otherwise: bool = True, free_text: bool = False) -> tuple[str, list[str], str]:
        subcommands = {name: Subcommand(f"does {name}", partial(self.note, name)) for name in ("merge", "test")}
        own = partial(self.note, "own") if otherwise else None
        run_subcommand(subcommands, words, "prog", "What it does.", own, free_text)
        return self.calls[-1]


@pytest.mark.parametrize(
    ("words", "name", "left"),
    [
        (["merge", "--config", "X"], "merge", ["--config", "X"]),
        (["--config", "X", "--set", "a=merge", "test", "1"], "test", ["--config", "X", "--set", "a=merge", "1"]),
        (["--config=X", "--set=a=b", "merge"], "merge", ["--config=X", "--set=a=b"]),
        (["--config", "test", "--quick"], "own", ["--config", "test", "--quick"]),
        ([], "own", []),
    ],
)
def test_a_subcommand_is_found_before_and_behind_the_options_that_all_have(
    words: list[str], name: str, left: list[str]
) -> None:
    assert Told().run(*words) == (name, left, "prog" if name == "own" else f"prog {name}")


def test_a_text_of_the_users_is_a_subcommand_only_in_the_first_place() -> None:
    told = Told()
    assert told.run("merge", "it", free_text=True)[0] == "merge"
    for words in (["merged"], ["help"], ["--config", "X", "merge"]):
        assert told.run(*words, free_text=True) == ("own", words, "prog")


@pytest.mark.parametrize("otherwise", [True, False])
def test_an_unknown_subcommand_is_an_error_with_the_closest_name(
    otherwise: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (["merg"], ["--config", "X", "merg"], ["help", "merg"]):
        with pytest.raises(SystemExit) as end:
            Told().run(*words, otherwise=otherwise)
        said = capsys.readouterr().err
        assert end.value.code == 2
        assert "prog: error: there is no command 'merg' (did you mean 'merge'?)" in said


def test_without_a_subcommand_those_that_there_are_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    for words, status in ((["--help"], 0), (["-h"], 0), (["help"], 0), ([], 2), (["--config", "X"], 2)):
        with pytest.raises(SystemExit) as end:
            Told().run(*words, otherwise=False)
        shown = capsys.readouterr()
        assert end.value.code == status
        assert ("does merge" in shown.out) == (status == 0)
        assert "usage: prog COMMAND" in shown.out + shown.err


def test_another_commands_words_stand_behind_two_dashes() -> None:
    assert split_at_dashes(["--config", "X", "--", "run", "--", "it"]) == (["--config", "X"], ["run", "--", "it"])
    assert split_at_dashes(["--config", "X"]) == (["--config", "X"], [])


GROUPS = [
    (name, module.SUBCOMMANDS)
    for name, each in COMMANDS.items()
    if hasattr(module := importlib.import_module(f"{each.target}".partition(":")[0]), "SUBCOMMANDS")
    and f"{each.target}".endswith(":main")
]


@pytest.mark.parametrize(("name", "subcommands"), GROUPS, ids=[name for name, _ in GROUPS])
def test_every_subcommand_has_a_help_of_its_own(
    name: str, subcommands: Subcommands, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (["--help"], *([word, "--help"] for word in subcommands)):
        with pytest.raises(SystemExit) as end:
            COMMANDS[name].run(words, f"ratchet {name}")
        shown = capsys.readouterr().out
        assert end.value.code == 0
        assert shown.startswith(f"usage: ratchet {' '.join([name, *words[:-1]])}"), shown
        assert words[:-1] or all(f"  {word} " in shown for word in subcommands), shown


def ratchet(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ratchet", *words], cwd=ROOT, capture_output=True, text=True, check=False
    )


@pytest.mark.slow
def test_exit_statuses_are_those_of_the_commands() -> None:
    assert ratchet("help").returncode == 0
    unknown = ratchet("scores")
    assert unknown.returncode == 2
    assert unknown.stderr.endswith("ratchet: error: there is no command 'scores' (did you mean 'score'?)\n")
    wrong = ratchet("sample", "--config", "nowhere.yaml")
    assert wrong.returncode == 2 and wrong.stderr.startswith("error: nowhere.yaml")


def test_a_list_of_the_commands_imports_nothing_heavy() -> None:
    listed = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "ratchet", "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    imported = {line.rpartition("|")[2].strip() for line in listed.stderr.splitlines()}
    assert "ratchet.commands.subcommands" in imported
    assert not imported & {
        "numpy",
        "pydantic",
        "rich",
        "torch",
        "yaml",
        "ratchet.commands.arguments",
        "ratchet.core.config",
    }
