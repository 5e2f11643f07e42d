"""The commands of the documentation are run, word for word, with a small experiment in the place of the demo."""

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from tests.helpers.experiment import make_experiment, preloaded
from tests.helpers.pages import PAGES, README, ROOT, blocks, commands, commands_in

TRACED = Path(__file__).parents[1] / "traced"
CONFIG = "configs/demo.yaml"
FIRST = "getting-started.md"
"""It makes the run that the other pages look at."""
ROW = re.compile(r"^\| (?P<stage>\w+) \| `(?P<file>[\w/]+\.py)` \|", re.MULTILINE)
MAIN = {
    "sampling": "sample",
    "rewards": "score",
    "train": "train.py",
    "engine": "ask",
}
"""What runs a stage of the table in docs/concepts.md; for the engine, one question with the in-process engine."""


@dataclass(frozen=True)
class Shown:
    """A folder in which the pages' commands were run."""

    folder: Path
    commands: list[list[str]]
    executed: dict[str, set[str]]
    """By the file that was started: every file of the project of which it executed a function."""


def start(folder: Path, words: list[str], trace: bool = False) -> str:
    """Run a command in the folder and return what it printed; it must end well. Tracing makes it slower."""
    launchers = {
        "ratchet": [sys.executable, "-m", "ratchet"],
        "python": [sys.executable],
        "accelerate": [sys.executable, "-m", "accelerate.commands.accelerate_cli"],
    }
    traced = {"TRACE_ROOT": str(ROOT), "TRACE_FOLDER": str(folder / "traces")} if trace else {}
    done = subprocess.run(
        [*launchers[words[0]], *words[1:]],
        cwd=folder,
        env=preloaded(PYTHONPATH=f"{TRACED}{os.pathsep}{ROOT}", **traced),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    assert done.returncode == 0, f"{' '.join(words)}\n{done.stdout}"
    return done.stdout


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Shown:
    """Every command below `<!-- test: run -->` was run, in the order of the pages."""
    folder = tmp_path_factory.mktemp("reader")
    config = yaml.safe_load(make_experiment(folder, questions=4).read_text())
    config |= {"run": "runs/demo", "index": {**config["index"], "path": "indexes/demo"}}
    for name in ("configs", "traces"):
        (folder / name).mkdir()
    (folder / CONFIG).write_text(yaml.safe_dump(config))
    for script in ("train.py", "selftrain.py"):
        (folder / script).symlink_to(ROOT / script)
    pages = sorted(PAGES, key=lambda page: page.name != FIRST)
    found = [words for page in pages for block in blocks(page, "bash", run=True) for words in commands_in(block)]
    stages = blocks(pages[0], "bash", run=True)[0]
    for words in found:
        start(folder, words, trace=words in commands_in(stages))
    start(folder, ["ratchet", "ask", "Who?", "--config", CONFIG, "--set", "models.agent.engine=local"], trace=True)
    executed: dict[str, set[str]] = {}
    for path in (folder / "traces").iterdir():
        trace = json.loads(path.read_text())
        script, *words = trace["argv"]
        main = words[0] if script.endswith("ratchet/__main__.py") else Path(script).name
        executed.setdefault(main, set()).update(trace["files"])
    return Shown(folder, found, executed)


@pytest.mark.slow
def test_the_commands_of_the_pages_run(shown: Shown) -> None:
    assert len(shown.commands) > 15
    assert (shown.folder / "runs/demo/report.html").exists()


@pytest.mark.slow
def test_what_the_readme_shows_of_the_demo_was_run(shown: Shown) -> None:
    of_demo = [
        words for words in commands(README) if CONFIG in words and words[1] != "serve" and "--follow" not in words
    ]
    assert of_demo
    assert [words for words in of_demo if words not in shown.commands] == []


@pytest.mark.slow
def test_the_python_example_of_the_readme_finds_something(
    shown: Shown, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    [example] = blocks(README, "python")
    monkeypatch.chdir(shown.folder)
    exec(example, {})
    assert "Ada Torrin" in capsys.readouterr().out


@pytest.mark.slow
def test_each_stage_executes_the_files_that_the_walk_of_one_question_names(shown: Shown) -> None:
    walk = [(row["stage"], row["file"]) for row in ROW.finditer((ROOT / "docs/concepts.md").read_text())]
    to_gradient = {file for stage, file in walk[: walk.index(("train", "training/trainer.py")) + 1]}
    assert 15 < len(to_gradient) <= 18, "a reader opens each of them to follow one question to the gradient"
    assert [(stage, file) for stage, file in walk if file not in shown.executed[MAIN[stage]]] == []
