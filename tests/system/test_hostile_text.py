"""Questions, answers and documents that command a terminal, in every command that prints them: they are text."""

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from ratchet.commands.main import run_command
from ratchet.core.config import Config
from ratchet.core.records import Question
from tests.core.test_terminal import ATTACK, check_harmless
from tests.helpers import handmade_run
from tests.helpers.commands import command_of

evaluate = command_of("evaluate")
gateway = command_of("gateway")
index = command_of("index")
init = command_of("init")
status = command_of("status")
check = command_of("questions", "check")
rows = command_of("show")
show = command_of("show")
score_and_select = command_of("score")
whatif = command_of("score", "whatif")

WORD = f"har{ATTACK}bour"


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a run all of whose questions, kinds, documents and answers are hostile."""
    folder = tmp_path_factory.mktemp("hostile")
    plain = handmade_run.questions_of

    def hostile(split: str, count: int) -> list[Question]:
        return [
            Question.model_validate(
                one.model_dump()
                | {
                    "id": one.id + WORD,
                    "text": f"{one.text} {WORD}",
                    "kind": WORD,
                    "answers": (WORD,),
                    "nuggets": (WORD,),
                    "gold_ids": (WORD,),
                }
            )
            for one in plain(split, count)
        ]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(handmade_run, "questions_of", hostile)
        made, _ = handmade_run.make_run(folder, train=3, test=3)
    return written(made, folder)


def written(config: Config, folder: Path) -> Path:
    path = folder / "config.yaml"
    values = json.loads(config.model_dump_json(exclude_unset=True))
    values["index"]["documents"] = [str(documents(folder))]
    twice = Path(config.questions.test.path)
    twice.write_bytes(
        twice.read_bytes() + twice.read_bytes().splitlines(keepends=True)[0].replace(b"test-000", b"test-9")
    )
    path.write_text(yaml.safe_dump(values))
    return path


def documents(folder: Path) -> Path:
    """A folder of a hostile name, in which one file is no document and one is broken."""
    made = folder / WORD
    made.mkdir()
    (made / f"a.x{WORD}").write_text("?")
    (made / f"b{WORD}.txt").write_text(f"The {WORD} is old.")
    (made / f"c{WORD}.jsonl").write_text("{")
    return made


def said(capfd: Any, main: Callable[[], None]) -> str:
    """All that a command prints, its error too."""
    capfd.readouterr()
    with contextlib.suppress(SystemExit):
        run_command(main)
    shown = capfd.readouterr()
    return shown.out + shown.err


COMMANDS: dict[str, Callable[[list[str]], None]] = {
    "questions check": lambda words: check(words),
    "index": lambda words: index(words),
    "status": lambda words: status(words),
    "evaluate": lambda words: evaluate([*words, "--phase", "score", "--anyway"]),
    "gateway": lambda words: gateway([*words, "--recorded", "--set", "system.name=external"]),
    "score": lambda words: score_and_select(words),
    "whatif": lambda words: whatif([*words, "--set", "rewards.weights={f1: 1.0}"]),
    "rows": lambda words: rows(words),
    "show": lambda words: show(words),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command(config: Path, capfd: Any, command: str) -> None:
    shown = said(capfd, lambda: COMMANDS[command](["--config", str(config)]))
    print(shown)
    check_harmless(shown)
    assert "Traceback" not in shown and "usage:" not in shown and shown


def test_init(tmp_path: Path, capfd: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    documents(tmp_path)
    asked = [
        {"id": f"q{WORD}{n}", "question": f"Who {WORD} {n}?", "answer": [WORD], WORD: 1} for n in (1, 1, *range(9))
    ]
    (tmp_path / "asked.jsonl").write_text("".join(json.dumps(one) + "\n" for one in asked))
    shown = said(capfd, lambda: init([WORD, "asked.jsonl"]))
    print(shown)
    check_harmless(shown)
    assert "Traceback" not in shown and "bour" in shown
