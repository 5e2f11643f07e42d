"""`ratchet models serve` on a stand-in for vLLM that dies, hangs and misbehaves as it is told."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from ratchet.core.errors import UserError
from ratchet.inference.serving.server import Server, ServingFailed, Supervisor, reserve_port
from tests.helpers.experiment import preloaded, running
from tests.helpers.fake_vllm import FakeVllm, alive, no_leftovers
from tests.helpers.model_shapes import QWEN25_7B, save_shape
from tests.helpers.waiting import wait_for

pytestmark = pytest.mark.server

ADDRESS = "RATCHET_PRELOADED"
"""The variable by which a command finds the server of tests/preloaded."""
ASK = """
import json, os, sys, urllib.request
url = os.environ["RATCHET_URL_AGENT"]
request = urllib.request.Request(url + "/models", headers={"authorization": "Bearer " + os.environ["RATCHET_API_KEY"]})
print(json.dumps([url, json.load(urllib.request.urlopen(request))["data"][0]["id"]]))
sys.exit(7)
"""


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeVllm]:
    fake = FakeVllm(tmp_path / "fake")
    with no_leftovers(fake):
        yield fake


# The servers and their supervisor


def server(fake: FakeVllm, tmp_path: Path, **settings: Any) -> Server:
    port_socket = reserve_port()
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--served-model-name", "m"]
    values: dict[str, Any] = {"ready_timeout": 20.0, "restarts": 2, "log": tmp_path / "servers" / "m-1.log"} | settings
    return Server(
        title="m-1",
        command=[*command, "--port", str(port_socket.getsockname()[1])],
        environment={**fake.environment, "VLLM_API_KEY": "sesame"},
        served_name="m",
        port_socket=port_socket,
        **values,
    )


async def run(made: Server, *command: str, **environment: str) -> int:
    with made.port_socket:
        return await Supervisor([made], {"m-1": ["cpu"]}).run(command, {**os.environ, **environment}, lambda: None)


def waiting(marker: Path) -> list[str]:
    """A command that runs until the marker is there; on SIGTERM it says so and ends with status 5."""
    code = (
        "import os, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (open(sys.argv[1] + '.term', 'w').close(), os._exit(5)))\n"
        "open(sys.argv[1] + '.running', 'w').close()\n"
        "while not os.path.exists(sys.argv[1]): time.sleep(0.02)\n"
    )
    return [sys.executable, "-c", code, str(marker)]


async def test_a_dead_server_comes_back_at_its_address(fake: FakeVllm, tmp_path: Path) -> None:
    made = server(fake, tmp_path)
    task = asyncio.create_task(run(made, *waiting(tmp_path / "done")))
    await asyncio.to_thread(wait_for, lambda: (tmp_path / "done.running").exists())
    fake.kill()
    await asyncio.to_thread(wait_for, lambda: len(fake.starts()) == 2)
    first, second = fake.starts()
    assert not any(alive(pid) for pid in first.pids), "the engine of the dead server holds its memory still"
    assert first.flag("--port") == second.flag("--port")
    log = tmp_path / "servers" / "m-1.log"
    (tmp_path / "done").touch()
    assert await task == 0
    assert made.restarts == 1
    assert log.read_text().count("== ") == 2 and "stopped in order" in log.read_text()


async def test_a_server_that_keeps_dying_ends_the_command(fake: FakeVllm, tmp_path: Path) -> None:
    fake.behave("ok", "die")
    task = asyncio.create_task(run(server(fake, tmp_path), *waiting(tmp_path / "done")))
    await asyncio.to_thread(wait_for, lambda: (tmp_path / "done.running").exists())
    fake.kill()
    with pytest.raises(ServingFailed, match=r"(?s)status 1.*weights are not there.*no restart of m-1 is left"):
        await task
    assert len(fake.starts()) == 3
    assert (tmp_path / "done.term").exists()


async def test_a_server_that_dies_at_once_shows_why(fake: FakeVllm, tmp_path: Path) -> None:
    fake.behave("die")
    with pytest.raises(UserError) as error:
        await run(server(fake, tmp_path), *waiting(tmp_path / "done"))
    assert "ValueError: the weights are not there" in str(error.value)  # not only the last lines, which say nothing
    assert "see root cause above" in str(error.value) and str(tmp_path / "servers" / "m-1.log") in str(error.value)
    assert len(fake.starts()) == 1, "what fails the first time is not tried again"
    assert not (tmp_path / "done.running").exists()


async def test_a_server_that_never_answers(fake: FakeVllm, tmp_path: Path) -> None:
    fake.behave("hang")
    with pytest.raises(UserError, match=r"not ready within 1 s"):
        await run(server(fake, tmp_path, ready_timeout=1.0), *waiting(tmp_path / "done"))


async def test_a_server_that_will_not_stop_is_killed(fake: FakeVllm, tmp_path: Path) -> None:
    fake.behave("stubborn")
    (tmp_path / "done").touch()
    assert await run(server(fake, tmp_path, grace=0.3), *waiting(tmp_path / "done")) == 0
    assert fake.starts() and not fake.alive()


# The command


@pytest.fixture
def config(fake: FakeVllm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, value in fake.environment.items():
        monkeypatch.setenv(name, value)
    serve = {"arguments": {"kv-cache-memory-bytes": 100_000_000}}
    values: dict[str, Any] = {
        "run": str(tmp_path / "run"),
        "models": {
            "agent": {"path": save_shape(tmp_path / "model", QWEN25_7B | {"num_hidden_layers": 1}), "engine": "vllm"}
        },
        "index": {"path": "unused"},
        "questions": {split: {"path": f"{split}.jsonl"} for split in ("train", "dev", "test")},
        "evaluation": {"scores": ["em"]},
        "rewards": {"weights": {"em": 1.0}},
    }
    values["models"]["agent"] |= {"device": "cpu", "max_context": 64, "serve": serve}
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


def start(config: Path, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    clean = {n: value for n, value in preloaded().items() if n == ADDRESS or not n.startswith("RATCHET_")}
    return subprocess.Popen(
        [sys.executable, "-m", "ratchet", "models", "serve", "--config", str(config), *arguments],
        env=clean | environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_a_command_beside_its_server(fake: FakeVllm, config: Path, tmp_path: Path) -> None:
    process = start(config, "--", sys.executable, "-c", ASK)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 7, err
    url, name = json.loads(out)
    [only] = fake.starts()
    assert url == f"http://127.0.0.1:{only.flag('--port')}/v1" and only.flag("--host") == "127.0.0.1"
    assert name == str(tmp_path / "model") == only.flag("--model")
    log = (tmp_path / "run" / "servers" / "agent.log").read_text()
    assert len(only.key) > 30
    assert not any(only.key in text for text in (out, err, log, " ".join(only.argv)))


def test_a_stop_reaches_the_command_first(fake: FakeVllm, config: Path, tmp_path: Path) -> None:
    # The command needs its server until its very end: it asks it once more after the signal.
    code = f"import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: exec({ASK!r}))\n"
    code += f"open({str(tmp_path / 'running')!r}, 'w').close()\nwhile True: time.sleep(0.02)"
    process = start(config, "--", sys.executable, "-c", code, RATCHET_API_KEY="mine")
    wait_for((tmp_path / "running").exists)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 7, err
    assert json.loads(out)[1] == str(tmp_path / "model")
    assert fake.starts()[0].key == "mine"


def test_without_a_command_until_a_signal(fake: FakeVllm, config: Path) -> None:
    process = start(config, RATCHET_API_KEY="mine")
    assert process.stdout
    line = process.stdout.readline()
    assert line == f"export RATCHET_URL_AGENT=http://127.0.0.1:{fake.starts()[0].flag('--port')}/v1\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert "mine" not in out + err


def test_nothing_survives_a_killed_supervisor(fake: FakeVllm, config: Path) -> None:
    process = start(config, RATCHET_API_KEY="mine")
    assert process.stdout and process.stdout.readline()
    assert len(fake.alive()) == 2
    os.kill(running(process), signal.SIGKILL)  # alone, not with its process group
    process.communicate(timeout=300)
    wait_for(lambda: not fake.alive())


def test_servers_of_an_outer_command_are_used(fake: FakeVllm, config: Path) -> None:
    show = "import os; print(os.environ['RATCHET_URL_AGENT'])"
    process = start(config, "--", sys.executable, "-c", show, RATCHET_URL_AGENT="http://elsewhere:1/v1")
    out, err = process.communicate(timeout=300)
    assert (process.returncode, out) == (0, "http://elsewhere:1/v1\n"), err
    assert not fake.starts()
