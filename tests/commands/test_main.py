"""The table of commands: how a command is found and listed, what its help loads, and how it ends."""

import importlib
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ratchet.commands.arguments import PORTS
from ratchet.commands.main import main, run
from ratchet.commands.table import COMMANDS, GROUPS

ROOT = Path(__file__).parents[2]


def test_the_version_is_the_installed_one(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["ratchet", "--version"])
    main()
    assert capsys.readouterr().out.startswith("ratchet 0.")


def test_each_server_has_a_port_of_its_own() -> None:
    assert len(set(PORTS.values())) == len(PORTS)
    assert PORTS.keys() <= COMMANDS.keys(), "each by the name that users type"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_function_and_a_help_of_its_own(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    module, _, function = COMMANDS[name].run.partition(":")
    assert callable(getattr(importlib.import_module(f"ratchet.commands.{module}"), function))
    with pytest.raises(SystemExit) as end:
        run([*name.split(), "--help"])
    shown = capsys.readouterr().out
    assert end.value.code == 0 and shown.startswith(f"usage: ratchet {name} "), shown
    below = [each.partition(" ")[2] for each in COMMANDS if each.startswith(f"{name} ")]
    assert all(re.search(rf"^  {each} ", shown, re.MULTILINE) for each in below), shown


@pytest.mark.parametrize("group", ["", *GROUPS])
def test_commands_are_listed_and_an_unknown_one_is_an_error_with_the_closest_name(
    group: str, capsys: pytest.CaptureFixture[str]
) -> None:
    first = next(name for name in COMMANDS if name.startswith(f"{group} ".lstrip())).rpartition(" ")[2]
    for words, status in ((["--help"], 0), (["-h"], 0), ([], 2), (["--config", "X"], 2)):
        with pytest.raises(SystemExit) as end:
            run([*group.split(), *words])
        shown = capsys.readouterr()
        assert end.value.code == status
        assert (f"  {first} " in shown.out) == (status == 0)
    with pytest.raises(SystemExit) as end:
        run([*group.split(), f"{first}s"])
    said = capsys.readouterr().err
    assert end.value.code == 2 and f"there is no command '{first}s' (did you mean '{first}'?)" in said


def test_another_commands_words_stand_behind_two_dashes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("ratchet.commands.config.config_of", lambda options, plugins: None)
    given = []
    monkeypatch.setattr("ratchet.commands.models.serve", lambda config, options: given.append(options.rest))
    run(["models", "serve", "--config", "X", "--", "run", "--", "it"])
    run(["models", "serve", "--config", "X"])
    assert given == [("run", "--", "it"), ()]


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


def test_a_signal_after_the_command_ends_the_process_without_a_traceback() -> None:
    late = "import atexit, os, signal; atexit.register(os.kill, os.getpid(), signal.SIGTERM)"
    program = f"{late}; from ratchet.commands.main import run_command; run_command(lambda: print('done'))"
    ended = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (-signal.SIGTERM, "")


@pytest.mark.parametrize("words", [[], ["train"], ["index", "inspect"]])
def test_a_help_imports_nothing_heavy(words: list[str]) -> None:
    program = "import sys; from ratchet.commands.main import run; sys.stdout.write(str(run(sys.argv[1:])))"
    program = f"import atexit, sys; atexit.register(lambda: print(*sys.modules, file=sys.stderr)); {program}"
    listed = subprocess.run([sys.executable, "-c", program, *words, "--help"], cwd=ROOT, capture_output=True, text=True)
    imported = set(listed.stderr.split())
    assert "ratchet.commands.table" in imported
    assert not imported & {"numpy", "pydantic", "rich", "torch", "yaml", "ratchet.core.config"}
