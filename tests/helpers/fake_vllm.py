"""A stand-in for vLLM's server that does as it is told: a package that `python -m vllm.entrypoints...` finds.

It answers what the supervisor asks, and like vLLM it is a tree: a second process does the work, ignores SIGTERM and
does not notice when the first one dies. `world.behave("die", "ok")` says what the first, second... start of it does.
"""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.helpers.waiting import wait_for

PROGRAM = """
import http.server, json, os, signal, subprocess, sys, time

folder = os.environ["FAKE_VLLM"]
flags = dict(zip(sys.argv[1:], sys.argv[2:]))
plan = json.load(open(folder + "/behaviour.json"))
starts = [name for name in os.listdir(folder) if name.startswith("start-")]
does = plan[min(len(starts), len(plan) - 1)]
engine = subprocess.Popen(["sh", "-c", "trap '' TERM; exec sleep 600"], start_new_session=True)
start = {"argv": sys.argv, "key": os.environ.get("VLLM_API_KEY"), "pids": [os.getpid(), engine.pid]}
name = folder + "/start-%02d.json" % len(starts)
json.dump(start, open(name + ".part", "w"))
os.rename(name + ".part", name)
print("starting with", does, flush=True)
if does == "die":
    print("ValueError: the weights are not there")
    print("\\n".join(["trace"] * 30) + "\\nRuntimeError: see root cause above", flush=True)
    sys.exit(1)
if does == "hang":
    time.sleep(600)
if does == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
else:
    signal.signal(signal.SIGTERM, lambda *_: (engine.kill(), print("stopped in order", flush=True), os._exit(0)))
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer({"data": [{"id": flags["--served-model-name"]}]})

    def answer(self, data):
        allowed = self.path == "/health" or self.headers["authorization"] == "Bearer " + start["key"]
        content = json.dumps(data if allowed else "who are you?").encode()
        self.send_response(200 if allowed else 401)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass

http.server.ThreadingHTTPServer(("127.0.0.1", int(flags["--port"])), Handler).serve_forever()
"""


@dataclass
class Start:
    argv: list[str]
    key: str
    pids: list[int]
    """The server's first process and its engine."""

    def flag(self, name: str) -> str:
        return self.argv[self.argv.index(name) + 1]


class FakeVllm:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        program = folder / "package" / "vllm" / "entrypoints" / "openai" / "api_server.py"
        program.parent.mkdir(parents=True)
        program.write_text(PROGRAM)
        self.environment = {"PYTHONPATH": str(folder / "package"), "FAKE_VLLM": str(folder)}
        self.behave("ok")

    def behave(self, *does: str) -> None:
        """What each start does, the last one for ever: ok, die, hang, stubborn."""
        (self.folder / "behaviour.json").write_text(json.dumps(does))

    def starts(self) -> list[Start]:
        return [Start(**json.loads(path.read_text())) for path in sorted(self.folder.glob("start-*.json"))]

    def kill(self, which: int = -1) -> None:
        """SIGKILL the first process of a start; its engine lives on unless somebody ends it."""
        os.kill(self.starts()[which].pids[0], signal.SIGKILL)

    def alive(self) -> list[int]:
        return [pid for start in self.starts() for pid in start.pids if alive(pid)]


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


@contextmanager
def no_leftovers(fake: FakeVllm) -> Iterator[None]:
    """Whatever a test finds wrong, no process of it stays behind; a process that does stay fails the test."""
    try:
        yield
        wait_for(lambda: not fake.alive())
    finally:
        for pid in fake.alive():
            os.kill(pid, signal.SIGKILL)
