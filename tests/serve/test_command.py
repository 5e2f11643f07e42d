"""`ratchet serve` as a process of its own: what it announces, and how it ends."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import yaml

import ratchet.commands.serve as command
from ratchet.core.config import load_config
from ratchet.core.errors import UserError
from ratchet.core.runfolder import RunFolder
from tests.helpers.adapter_folders import save_adapter
from tests.helpers.commands import command_of
from tests.helpers.experiment import preloaded
from tests.helpers.tiny import save_tiny_tokenizer

pytestmark = pytest.mark.server

ASKED = {"model": "mad:base", "messages": [{"role": "user", "content": "Who?"}], "stream": True}


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("serve")
    rules = [{"match": "Ada Torrin", "reply": "Ada Torrin", "delay": 1}, {"default": "Ada Torrin"}]
    (folder / "script.jsonl").write_text("".join(json.dumps(rule) + "\n" for rule in rules))
    tokenizer = save_tiny_tokenizer(folder / "tokenizer")
    model = {"path": str(tokenizer), "engine": "scripted", "script": str(folder / "script.jsonl")}
    settings = {"run": str(folder / "run"), "models": {"agent": model}, "system": {"name": "mad"}}
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(settings))
    return path


def words(config: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "ratchet", "serve", "--config", str(config), *more]


@pytest.fixture
def process(config: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    started = subprocess.Popen(words(config, "--port", "0"), stderr=subprocess.PIPE, text=True, env=preloaded())
    try:
        assert started.stderr is not None
        line = started.stderr.readline()
        assert line.startswith("serving mad:base on http://127.0.0.1:"), line + started.stderr.read()
        yield started, line.split()[-1]
    finally:
        started.kill()
        started.communicate()


def test_an_answer_that_has_started_is_finished_before_the_server_ends(
    process: tuple[subprocess.Popen[str], str],
) -> None:
    server, url = process
    assert httpx.get(f"{url}/health").json()["ready"]
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=ASKED, timeout=300) as response:
        lines = response.iter_lines()
        assert "Ada Torrin" in next(lines), "the first round of the debate; the second is slow"
        server.send_signal(signal.SIGTERM)
        rest = [line for line in lines if line]
    assert json.loads(rest[-2].removeprefix("data: "))["choices"][0]["finish_reason"] == "stop"
    assert rest[-1] == "data: [DONE]" and server.wait(300) == 0
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/health")


# In this process


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--host", "0.0.0.0"], r"--host 0\.0\.0\.0: others can reach this address.*--key-file"),
        (["--key-file", "nowhere"], "--key-file nowhere: cannot read"),
        (["--port", "70000"], "a port is a number"),
        (["--adapter", "nowhere"], r"nowhere/adapter_config\.json: cannot read"),
        (["--set", "system.name=mrga"], "did you mean 'mrag'"),
    ],
)
def test_mistakes_on_the_command_line(
    config: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.delenv("RATCHET_API_KEY", raising=False)
    with pytest.raises(UserError, match=message):
        command_of("serve")(["--config", str(config), "--port", "0", *arguments])


@pytest.mark.parametrize("key", ["", "two words", "ünïcode", "line\nbreak"])
def test_a_key_that_cannot_be_sent_is_refused(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setenv("RATCHET_API_KEY", key)
    with pytest.raises(UserError, match="a key is one line"):
        command_of("serve")(["--config", str(config)])
    (tmp_path / "key").write_text(key)
    with pytest.raises(UserError, match="a key is one line"):
        command_of("serve")(["--config", str(config), "--key-file", str(tmp_path / "key")])


def test_the_adapter_is_the_last_rounds_unless_one_is_named(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunFolder(load_config(str(config)).folder)
    assert command._adapter(run, None) is None
    for number in (1, 2):
        save_adapter(config.parent / "run" / f"round-{number}" / "adapter")
    (config.parent / "run" / "round-10").mkdir()
    assert str(command._adapter(run, None)).endswith("round-2/adapter")
    assert (command._adapter(run, "none"), command._adapter(run, "mine")) == (None, "mine")
