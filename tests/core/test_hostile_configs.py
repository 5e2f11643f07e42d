"""Config files that no program can use: each is one error at once that names the file or the key."""

from pathlib import Path

import pytest

from ratchet.core.config import load_config
from ratchet.core.errors import UserError
from ratchet.questions.manifest import open_run
from tests.helpers.experiment import command, make_experiment

BASE = b"run: runs/x\nsystem: {name: no_retrieval}\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"run: x\xff\n", r"config\.yaml: not UTF-8 text \(byte 6\); convert the file to UTF-8"),
        (b"a: " + b"[" * 5000 + b"]" * 5000, r"config\.yaml: sections are nested too deeply"),
        (b"\n".join(b" " * i + b"a:" for i in range(3000)), r"config\.yaml: sections are nested too deeply"),
        (BASE + b"sampling: {samples: 1000000}\n", r"sampling\.samples: .*less than or equal to 100000"),
        (BASE + b"rewards: {select: {min_reward: .nan}}\n", r"rewards\.select\.min_reward: .*finite number, got nan"),
        (BASE + b"rewards: {weights: {f1: .inf}}\n", r"rewards\.weights\.f1: .*finite number"),
        (b"run: ''\n", r"run: is empty; name the folder"),
        (BASE + b"seed: !!int ''\n", r"config\.yaml: not valid YAML"),
        (BASE + b"seed: !!bool 3\n", r"config\.yaml: not valid YAML"),
        (BASE + b"seed: 2024-99-99\n", r"config\.yaml: not valid YAML"),
        (BASE + b"evaluation: {baselines: {'': {name: no_retrieval}}}\n", r"baselines: '' cannot be a name"),
        (BASE + b'models: {"a\\u202eb": {path: x}}\n', r"models: .*character 2 is .*RIGHT-TO-LEFT OVERRIDE"),
        (BASE + b"evaluation: {baselines: {" + b"n" * 300 + b": {name: no_retrieval}}}\n", r"'n+'\.\.\. cannot"),
    ],
    ids=[
        "not UTF-8", "deep lists", "deep sections", "too many samples", "NaN", "infinite weight", "no run",
        "empty number", "odd tag", "odd date", "empty name", "odd name", "long name",
    ],
)  # fmt: skip
def test_a_hostile_config_is_one_error(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_bytes(content)
    with pytest.raises(UserError, match=message):
        load_config(path)


def test_a_path_may_begin_at_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    path = tmp_path / "config.yaml"
    path.write_bytes(b"run: ~/runs/x\n")
    config = load_config(path)
    assert config.folder == tmp_path / "runs" / "x"
    assert config.model_dump(mode="json")["run"] == "~/runs/x"
    with pytest.raises(UserError, match="run: there is no such home folder"):
        load_config(path, ["run=~nobody-of-this-name/x"])


@pytest.mark.parametrize("content", [b"", b"run: [", b"\xff\xfe", b"null"], ids=["empty", "cut off", "binary", "null"])
def test_a_run_folder_with_a_garbled_config_is_named(tmp_path: Path, content: bytes) -> None:
    config = load_config(make_experiment(tmp_path, questions=2))
    run = open_run(config)
    run.config.write_bytes(content)
    with pytest.raises(UserError, match=r"(?s)config\.yaml: .*choose another run folder"):
        open_run(config)


@pytest.mark.parametrize(
    "words",
    [
        ("-m", "ratchet", "sample", "--round", "0"),
        ("selftrain.py", "--until", "-1"),
        ("-m", "ratchet", "report", "--round", "7"),
    ],
    ids=["round 0", "until -1", "a round that is not there"],
)
def test_a_round_that_cannot_be_is_refused(tmp_path: Path, words: tuple[str, ...]) -> None:
    path = make_experiment(tmp_path, questions=2)
    run = open_run(load_config(path))
    run.report.write_text("the page")
    result = command(*words[:-2], "--config", str(path), *words[-2:])
    assert result.returncode == 2 and "Traceback" not in result.stdout
    assert words[-1] in result.stdout
    assert run.report.read_text() == "the page"
