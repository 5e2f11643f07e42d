"""What a user gets wrong: each a clear message and exit status 2, with nothing lost."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.helpers.experiment import command, make_experiment, write_lines
from tests.helpers.unprivileged import unprivileged


@pytest.fixture(scope="module")
def indexed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A config whose index is built."""
    config = make_experiment(tmp_path_factory.mktemp("bad"), questions=2)
    built = command("-m", "ratchet", "index", "--config", str(config))
    assert built.returncode == 0, built.stdout
    return config


def fails(*arguments: str) -> str:
    """The message of a command that must fail as a user's mistake: no traceback, status 2."""
    result = command(*arguments)
    assert result.returncode == 2, result.stdout
    assert "Traceback" not in result.stdout
    return result.stdout


def changed(config: Path, folder: Path, **changes: object) -> str:
    data = yaml.safe_load(config.read_text())
    data["run"] = str(folder / "run")
    for key, value in changes.items():
        section, _, name = key.partition("__")
        data[section] = {**data[section], name: value} if name else value
    path = folder / "changed.yaml"
    path.write_text(yaml.safe_dump(data))
    return str(path)


def test_a_missing_question_file(indexed: Path, tmp_path: Path) -> None:
    path = changed(indexed, tmp_path, questions__train={"path": str(tmp_path / "none.jsonl")})
    assert "none.jsonl: cannot read (No such file or directory)" in fails("-m", "ratchet", "sample", "--config", path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"id": "a", "text": "x"}\n{"id": ', ":2: not valid JSON"),
        ('{"id": "a", "text": "x"}\n{"id": "a", "text": "y"}\n', "'a'"),
        ("", "no documents"),
    ],
    ids=["broken line", "duplicate id", "empty corpus"],
)
def test_a_bad_corpus(indexed: Path, tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "corpus.jsonl").write_text(text)
    index = {"path": str(tmp_path / "index"), "documents": [str(tmp_path / "corpus.jsonl")]}
    output = fails("-m", "ratchet", "index", "--config", changed(indexed, tmp_path, index=index))
    assert "corpus.jsonl" in output and message in output
    assert not (tmp_path / "index" / "plan.json").exists()


def test_a_model_without_a_chat_template(indexed: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    for file in (indexed.parent / "model").iterdir():
        if file.name != "chat_template.jinja":
            (model / file.name).write_bytes(file.read_bytes())
    agent = {"path": str(model), "dtype": "float32", "device": "cpu"}
    path = changed(indexed, tmp_path, models={"agent": agent})
    assert f"{model} has no chat template" in fails("-m", "ratchet", "sample", "--config", path)


def test_no_selected_trajectories_at_all(indexed: Path, tmp_path: Path) -> None:
    rewards = {"weights": {"f1": 1.0}}
    path = changed(indexed, tmp_path, models__agent=wrong_answers(indexed, tmp_path), rewards=rewards)
    sampled = command("-m", "ratchet", "sample", "--config", path)
    assert sampled.returncode == 0, sampled.stdout
    assert "no trajectory was selected" in fails("-m", "ratchet", "score", "--config", path).casefold()
    selection = json.loads((tmp_path / "run" / "round-1" / "selection.json").read_text())
    assert all(choice["reason"].startswith("dropped") for choice in selection["questions"])
    fails("train.py", "--config", path)
    assert list((tmp_path / "run" / "round-1" / "trajectories").glob("*.jsonl")), "what was sampled is kept"


def wrong_answers(config: Path, folder: Path) -> dict[str, object]:
    rules = [json.loads(line) for line in (config.parent / "script.jsonl").read_text().splitlines()]
    for rule in rules:
        if rule.get("prompt") == "Answer the question":
            rule["replies"] = ['{"answer": "nobody"}']
    write_lines(folder / "script.jsonl", *rules)
    agent = yaml.safe_load(config.read_text())["models"]["agent"]
    return {**agent, "script": str(folder / "script.jsonl")}


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount a small disk")
def test_a_full_disk_and_going_on_when_there_is_room(indexed: Path, tmp_path: Path) -> None:
    path = changed(indexed, tmp_path)
    disk = tmp_path / "run"
    disk.mkdir()
    segment = disk / "round-1" / "trajectories" / "part-0.jsonl"
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12k", "tmpfs", str(disk)], check=True)
    try:
        before, size = b"", 12  # KiB; it grows by pages until a trajectory was kept before the disk was full
        while not before:
            size += 4
            subprocess.run(["mount", "-o", f"remount,size={size}k", str(disk)], check=True)
            output = fails("-m", "ratchet", "sample", "--config", path)
            assert "No space left on device" in output and "run the same command again" in output
            before = segment.read_bytes() if segment.exists() else b""
        subprocess.run(["mount", "-o", "remount,size=8m", str(disk)], check=True)
        again = command("-m", "ratchet", "sample", "--config", path)
        assert again.returncode == 0, again.stdout
        assert segment.read_bytes().startswith(before) and before.endswith(b"\n"), "what was finished is kept"
        assert len(segment.read_bytes().splitlines()) == 8
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.parametrize("denied", ["round-1/trajectories/part-0.jsonl", "round-1"])
def test_a_file_of_a_run_without_permission(indexed: Path, tmp_path: Path, denied: str) -> None:
    path = changed(indexed, tmp_path)
    assert command("-m", "ratchet", "sample", "--config", path).returncode == 0
    file = tmp_path / "run" / denied
    file.chmod(0)
    try:
        with unprivileged():
            said = fails("-m", "ratchet", "score", "--config", path)
    finally:
        file.chmod(0o755)
    assert str(file) in said and "Permission denied" in said


def test_another_config_on_the_same_run(indexed: Path) -> None:
    assert command("-m", "ratchet", "sample", "--config", str(indexed)).returncode == 0
    output = fails("-m", "ratchet", "sample", "--config", str(indexed), "--set", "sampling.samples=5")
    assert "sampling.samples: 4 there, 5 now" in output
