"""Programs that a run starts, or asks over HTTP: their tasks, their answers, and what goes wrong with them."""

import asyncio
import json
import subprocess
import sys
import threading
import zlib
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from ratchet.agents.core.system import load_system
from ratchet.agents.external.program import Task, read_answer
from ratchet.core.config import SystemConfig
from ratchet.core.errors import UserError
from ratchet.core.records import Note, Question, Trajectory
from ratchet.training.rows import build_rows, check_rows
from tests.helpers.pages import ROOT
from tests.helpers.playing import CLAIM, QUESTION, Shelf, engine, passage, play
from tests.helpers.waiting import wait_for

pytestmark = pytest.mark.server
HEAD = """\
import json, os, subprocess, sys, time, urllib.request

task = json.load(sys.stdin)

def post(url, **body):
    headers = {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)) as answer:
        return json.load(answer)

def ask(text):
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    answer = post(url, model="gpt-4o", messages=[{"role": "user", "content": text}])
    return answer["choices"][0]["message"]["content"]
"""


async def run(folder: Path, source: str, question: Question = QUESTION, **settings: Any) -> Trajectory:
    """An episode of a program with this source, whose model says "Ada Torrin"."""
    (folder / "program.py").write_text(HEAD + source)
    command = [sys.executable, "-S", str(folder / "program.py")]
    shelf = Shelf({question.text: [passage(1, "Ada built it.")]})
    config = {"name": "external", "settings": {"command": command, **settings}}
    return await play(config, engine(lambda *_: "Ada Torrin"), shelf, question=question)


async def test_a_program_gets_its_task_searches_asks_and_answers(tmp_path: Path) -> None:
    done = await run(
        tmp_path,
        """
assert task["question"] == os.environ["RATCHET_QUESTION"] and os.environ["RATCHET_SAMPLE"] == "3" == os.environ["MINE"]
assert "PYTHONPATH" not in os.environ and "Torrin" not in json.dumps(task)
found = post(os.environ["RATCHET_SEARCH_URL"], query=task["question"], k=1)["passages"]
print('{"answer": "not the last line"}')
print(json.dumps({"answer": ask(found[0]["text"]), "explanation": "it is written"}))
print("done")
""",
        env={"MINE": "3"},
    )
    assert (done.status, done.answer, done.explanation) == ("finished", "Ada Torrin", "it is written"), done.error
    assert [one.id for one in done.passages] == ["c1"] and len(done.searches) == 1
    rows, _ = build_rows(done, 1000)
    assert check_rows(rows, {done.key: done}) == 1


@pytest.mark.parametrize(
    ("source", "status", "error"),
    [
        (
            "raise SystemExit('no key')",
            "failed",
            "ended with status 1: no key; no model answered it through the gateway: ",
        ),
        ("ask([{'type': 'image_url'}])", "failed", "no model answered it through the gateway"),
        ("print(json.dumps({'answer': 'Ada'}))", "failed", "set its client's base URL to OPENAI_BASE_URL"),
        ("ask('x'); raise SystemExit('cannot read that')", "unparsed", "ended with status 1: cannot read that"),
        ("ask('x'); print('Ada')", "unparsed", "no JSON object with an `answer`"),
        ("ask('x'); print(json.dumps({'reply': 'Ada'}))", "unparsed", 'its last line is: {"reply": "Ada"}'),
        (
            "ask('x'); print(json.dumps({'answer': None}))",
            "unparsed",
            "`answer`: Input should be a valid string (None)",
        ),
        ("ask('x'); print(json.dumps({'answer': 'a', 'documents': 1}))", "unparsed", "`documents`: Input should be"),
        ("ask('x'); print({'answer': 3})", "unparsed", "an `answer`; its last line is: {'answer': 3}"),
        ("ask('x'); os.kill(os.getpid(), 9)", "unparsed", "was killed by signal 9"),
        ("ask('x'); os._exit(255)", "unparsed", "ended with status 255"),
        ("ask('x ' * 90000)", "out_of_budget", "context"),
    ],
)
async def test_what_goes_wrong_is_the_trajectorys_status_in_one_line(
    tmp_path: Path, source: str, status: str, error: str
) -> None:
    done = await run(tmp_path, f"print('on the way', file=sys.stderr)\n{source}")
    assert (done.status, done.answer) == (status, "") and error in done.error and "\n" not in done.error
    if status == "unparsed":
        assert any("on the way" in event.text for event in done.events if isinstance(event, Note))


@pytest.mark.parametrize(
    ("source", "status", "answer"),
    [
        ("time.sleep(600)", "failed", ""),
        ("ask('x')\nwhile True: time.sleep(0.1)", "out_of_budget", ""),
        ("print(json.dumps({'answer': ask('x')}), flush=True); time.sleep(600)", "out_of_budget", "Ada Torrin"),
    ],
)
async def test_a_program_that_loops_is_out_of_budget_with_what_it_had(
    tmp_path: Path, source: str, status: str, answer: str
) -> None:
    found = "post(os.environ['RATCHET_SEARCH_URL'], query=task['question'])\n"
    done = await run(tmp_path, found + source, timeout=1.5)
    assert (done.status, done.answer) == (status, answer), done.error
    assert "in 1.5 s, which system.settings.timeout allows" in done.error
    assert len(done.searches) == 1 and len(done.model_calls) == (status != "failed")


async def test_a_claim_whose_program_loops_has_no_label(tmp_path: Path) -> None:
    done = await run(tmp_path, "ask('x'); time.sleep(600)", CLAIM, timeout=1.5)
    assert (done.status, done.answer) == ("out_of_budget", "")


async def test_no_client_of_the_program_is_led_past_the_gateway(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPENAI_API_BASE", "ANTHROPIC_API_URL", "OPENAI_PROXY", "ANTHROPIC_AUTH_TOKEN"):
        monkeypatch.setenv(name, "http://elsewhere.example")
    monkeypatch.setenv("CLAUDE_CODE_USE_BEDROCK", "1")
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "intranet.example")
    done = await run(
        tmp_path,
        """
own = os.environ["OPENAI_BASE_URL"]
assert os.environ["OPENAI_API_BASE"] == own
assert {os.environ[f"ANTHROPIC_{kind}"] + "/v1" for kind in ("BASE_URL", "API_URL", "API_BASE")} == {own}
assert not {"OPENAI_PROXY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_USE_BEDROCK"} & {*os.environ}
assert os.environ["HTTP_PROXY"] == "http://127.0.0.1:9" and os.environ["NO_PROXY"] == "mine.example,127.0.0.1"
assert os.environ["no_proxy"] == "intranet.example,127.0.0.1"
print(json.dumps({"answer": ask("x")}))
""",
        env={"NO_PROXY": "mine.example"},
    )
    assert done.status == "finished", done.error


async def test_a_document_that_no_search_found_is_named(tmp_path: Path) -> None:
    found = "post(os.environ['RATCHET_SEARCH_URL'], query=task['question'])\nask('x')\n"
    done = await run(tmp_path, found + "print(json.dumps({'answer': 3, 'documents': ['c1', 7]}))")
    assert (done.answer, [one.id for one in done.passages]) == ("3", ["c1"])
    assert any("documents that no search" in one.text and "7" in one.text for one in done.events if one.kind == "note")


def is_gone(process: int | str) -> bool:
    status = Path("/proc") / str(process) / "status"
    return not status.exists() or "zombie" in status.read_text()


async def test_a_process_that_left_the_group_ends_with_its_trajectory(tmp_path: Path) -> None:
    source = """
child = subprocess.Popen(["sleep", "600"], start_new_session=True, env={})
print(json.dumps({"answer": ask("x"), "explanation": child.pid}))
"""
    done = await run(tmp_path, source)
    assert done.status == "finished" and is_gone(done.explanation)


async def test_a_program_sees_that_a_daemon_of_its_own_has_ended(tmp_path: Path) -> None:
    source = """
started = subprocess.run(["sh", "-c", "sleep 0.2 > /dev/null & echo $!"], stdout=subprocess.PIPE)
daemon, end = f"/proc/{int(started.stdout)}", time.monotonic() + 5
while os.path.exists(daemon) and time.monotonic() < end:
    time.sleep(0.05)
print(json.dumps({"answer": ask("x"), "explanation": f"there is one: {os.path.exists(daemon)}"}))
"""
    assert (await run(tmp_path, source)).explanation == "there is one: False"


async def test_a_program_that_a_shell_waits_for_is_told_of_its_end(tmp_path: Path) -> None:
    source = f"""
import signal
def end(*_):
    open({str(tmp_path / "told")!r}, "w").close()
    os._exit(0)
signal.signal(signal.SIGTERM, end)
ask("x")
time.sleep(600)
"""
    command = ["sh", "-c", f"{sys.executable} -S {tmp_path / 'program.py'}; true"]
    done = await run(tmp_path, source, command=command, timeout=3)
    assert done.status == "out_of_budget" and (tmp_path / "told").exists()


async def test_a_program_is_ended_with_what_it_started(tmp_path: Path) -> None:
    source = f"""
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen(["sleep", "600"])
with open({str(tmp_path / "new")!r}, "w") as file:
    file.write(str(child.pid))
os.rename({str(tmp_path / "new")!r}, {str(tmp_path / "pid")!r})
time.sleep(600)
"""
    playing = asyncio.ensure_future(run(tmp_path, source))
    while not (tmp_path / "pid").exists():
        assert not playing.done()
        await asyncio.sleep(0.05)
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing
    assert is_gone((tmp_path / "pid").read_text())


@pytest.mark.slow
def test_a_killed_run_leaves_nothing_of_its_programs(tmp_path: Path) -> None:
    source = f"""
child = subprocess.Popen(["sleep", "600"], start_new_session=True)
print(os.getpid(), child.pid, file=open({str(tmp_path / "new")!r}, "w"))
os.rename({str(tmp_path / "new")!r}, {str(tmp_path / "pids")!r})
time.sleep(600)
"""
    code = f"asyncio.run(run(pathlib.Path({str(tmp_path)!r}), {source!r}))"
    code = f"import asyncio, pathlib; from {__name__} import run; {code}"
    ratchet = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT)
    wait_for((tmp_path / "pids").exists, 60, ratchet)
    ratchet.kill()
    ratchet.wait()
    pids = (tmp_path / "pids").read_text().split()
    wait_for(lambda: all(map(is_gone, pids)), 30)


async def test_a_command_that_does_not_exist_stops_the_run() -> None:
    with pytest.raises(UserError, match=r"system.settings.command: ./nothing cannot be started \(No such file"):
        await play({"name": "external", "settings": {"command": ["./nothing"]}}, engine([]))


async def test_the_answer_to_a_claim_is_one_of_its_labels(tmp_path: Path) -> None:
    done = await run(tmp_path, 'ask(task["labels"]); print(\'{"answer": "The verdict is: supports."}\')', CLAIM)
    assert (done.status, done.answer, done.explanation) == ("finished", "SUPPORTS", "The verdict is: supports.")
    done = await run(tmp_path, "ask('x'); print('{\"answer\": \"who knows\"}')", CLAIM)
    assert done.status == "unparsed"


async def test_a_running_program_is_asked_over_http() -> None:
    class Running(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            task = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            ask = {"model": Task(**task).model, "messages": [{"role": "user", "content": "Who?"}]}
            httpx.post(f"{task['base_url']}/chat/completions", json=ask, trust_env=False).raise_for_status()
            self.send_response(200 if task["sample"] == 3 else 500)
            body = b'{"answer": "Ada"}'
            if "deflate" in self.headers["Accept-Encoding"]:  # aiohttp takes it before gzip
                self.send_header("Content-Encoding", "deflate")
                body = zlib.compress(body)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Running)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}/answer"
    try:
        done = await play({"name": "external", "settings": {"url": url}}, engine(["Ada"]))
        assert (done.status, done.answer) == ("finished", "Ada")
    finally:
        await asyncio.to_thread(server.shutdown)
        thread.join()
        server.server_close()
    done = await play({"name": "external", "settings": {"url": url}}, engine([]))
    assert done.status == "failed" and "is the program running?" in done.error


def test_an_answer_is_read_from_json_alone() -> None:
    assert read_answer('{"answer": "Ada", "documents": ["c1"], "more": 1}').documents == ("c1",)
    assert read_answer('{"answer": "<think>Bo</think>Ada"}').answer == "Ada"
    assert read_answer("[" * 5000).answer is None
    read = read_answer('{"answer": 1867.5, "explanation": null, "documents": [7, "c1"]}')
    assert (read.answer, read.explanation, read.documents) == ("1867.5", "", ("7", "c1"))
    assert read_answer('{"answer": "Ada", "documents": null}').documents is None
    for refused in ('{"answer": true}', '{"answer": ["Ada"]}', '{"answer": "Ada", "documents": [["c1"]]}'):
        assert read_answer(refused).answer is None


def test_the_answer_is_found_among_what_else_a_program_prints() -> None:
    logged = '{"level": "info", "message": {"answer": "no"}}'
    for output in (
        f'{logged}\n{{"answer": "Ada"}}\n{logged}\n',
        "50%\r100%\r" + json.dumps({"answer": "Ada"}) + " done",
        "on the way {\n" + json.dumps({"answer": "Ada", "steps": [{"answer": "no"}]}, indent=2) + "\n{bye}",
        '{"answer": "no"}\n  {"answer": "Ada"}',
    ):
        assert read_answer(output).answer == "Ada", output
    assert "no JSON object with an `answer`" in read_answer("").problem


def test_a_change_of_the_programs_files_is_another_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text("one")
    Path("more.py").write_text("one")

    def identity(**settings: Any) -> str:
        return load_system(SystemConfig(name="external", settings=settings)).identity.name

    started = {"command": [sys.executable, "mine.py"]}
    first, other = identity(**started), identity(**started, files=["more.py"])
    assert first.startswith("external-") and first != other
    Path("more.py").write_text("two")
    assert identity(**started) == first and identity(**started, files=["more.py"]) != other
    Path("mine.py").write_text("two")
    assert identity(**started) != first
    with pytest.raises(UserError, match=r"system.settings.files: there is no file gone.py"):
        identity(files=["gone.py"])
    with pytest.raises(UserError, match="a command or a url"):
        identity(command=["x"], url="http://127.0.0.1:1")
