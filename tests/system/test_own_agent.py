"""A whole round with a program: sampled, killed, resumed, scored and trained, and the gateway's own command."""

import contextlib
import json
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml

from ratchet.core.records import Selection, Trajectory
from ratchet.sampling.store import TrajectoryStore
from ratchet.training.rows import build_rows, check_rows
from tests.agents.external.test_program import HEAD
from tests.helpers.experiment import ROOT, command, kill, make_experiment, preloaded, write_lines
from tests.helpers.gateway import free_port
from tests.helpers.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.server]
PROGRAM = """
found = post(task["search_url"], query=task["question"], k=1)["passages"]
text = found[0]["text"] + " " + task["question"]
said = ask(text)
while os.environ.get("LOOPS") == task["question_id"] and task["sample"] == 1:
    text += text
    said = ask(text)
print(json.dumps({"answer": said}))
"""


LOOPING = {"env": {"LOOPS": "train-0"}}
"""One of the twelve trajectories asks the model until the context has no room: a time limit would hang on the load."""


def experiment(folder: Path, delay: float = 0.0, **settings: Any) -> Path:
    """An experiment whose system is a program, and whose model says one of two things."""
    path = make_experiment(folder, questions=3)
    (folder / "program.py").write_text(HEAD + PROGRAM)
    write_lines(folder / "script.jsonl", {"match": "harbour", "replies": ["Ada Torrin", "nobody"], "delay": delay})
    config = yaml.safe_load(path.read_text())
    if "port" not in settings:
        settings["command"] = [sys.executable, "-S", str(folder / "program.py")]
    config["system"] = {"name": "external", "settings": settings, "roles": {"default": {"max_tokens": 32}}}
    path.write_text(yaml.safe_dump(config))
    done = command("-m", "ratchet", "index", "--config", str(path))
    assert done.returncode == 0, done.stdout
    return path


def stored(folder: Path) -> list[Trajectory]:
    return list(TrajectoryStore(folder / "run/round-1/trajectories").read())


def test_a_killed_run_of_programs_resumes_and_its_rows_are_what_was_sampled(tmp_path: Path) -> None:
    config = experiment(tmp_path, delay=0.3, **LOOPING)
    part = tmp_path / "run/round-1/trajectories/part-0.jsonl"
    words = [sys.executable, "-m", "ratchet", "sample", "--config", str(config), "--set", "sampling.concurrency=2"]
    first = subprocess.Popen(words, cwd=ROOT, env=preloaded(), stderr=subprocess.DEVNULL)
    wait_for(lambda: part.exists() and len(part.read_bytes().splitlines()) >= 2, 240, first)
    kill(first)
    before = part.read_bytes().splitlines()
    done = command(*words[1:])
    assert done.returncode == 0, done.stdout
    assert part.read_bytes().splitlines()[: len(before) - 1] == before[:-1], "what was finished was not sampled again"
    trajectories = stored(tmp_path)
    [looping] = [one for one in trajectories if (one.question_id, one.sample) == ("train-0", 1)]
    assert looping.status == "out_of_budget" and len(looping.model_calls) > 2, looping.error
    ended = {one.error or one.status for one in trajectories if one != looping}
    assert len(trajectories) == 12 and ended == {"finished"}
    assert {one.answer for one in trajectories if one != looping} == {"Ada Torrin", "nobody"}
    kept_bytes = part.read_bytes()
    again = command(*words[1:])
    assert again.returncode == 0 and part.read_bytes() == kept_bytes, "a program that loops is not sampled again"

    scored = command("-m", "ratchet", "score", "--config", str(config))
    assert scored.returncode == 0, scored.stdout
    selection = Selection.model_validate_json((tmp_path / "run/round-1/selection.json").read_text())
    [choice] = [one for one in selection.questions if one.question_id == "train-0"]
    assert choice.rewards[looping.key] == 0, "it counts as the worst, and is not left out of the mean"
    rows = [row for one in trajectories if one.key in selection.kept for row in build_rows(one, 1000)[0]]
    assert rows and check_rows(rows, {one.key: one for one in trajectories}) == len(rows)
    counted = command("-m", "ratchet", "gateway", "--config", str(config), "--recorded")
    assert "12 trajectories: 11 finished, 1 out_of_budget\n" in counted.stdout
    assert "0 conversations have 0 assistant turns that the model did not say there" in counted.stdout


def test_programs_that_never_reach_the_gateway_stop_the_run_and_the_evaluation(tmp_path: Path) -> None:
    config = experiment(tmp_path)
    said = tmp_path / "said.txt"
    (tmp_path / "program.py").write_text(f"print(open({str(said)!r}).read())")
    for stage, text in ((["sample"], "Ada"), (["sample"], '{"answer": "Ada"}'), (["evaluate", "--base-only"], "Ada")):
        said.write_text(text)
        done = command("-m", "ratchet", *stage, "--config", str(config))
        assert done.returncode == 2 and "trajectories failed" in done.stdout, done.stdout
        assert "set its client's base URL to OPENAI_BASE_URL" in done.stdout
        assert ("no JSON object" in done.stdout) == (text == "Ada"), "the reason is that of this command"


def test_programs_that_come_by_themselves_find_the_open_trajectories(tmp_path: Path) -> None:
    port = free_port()
    config = experiment(tmp_path, port=port)
    address = f"http://127.0.0.1:{port}"

    def post(url: str, body: dict[str, Any]) -> Any:
        request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)

    def drive() -> None:
        tasks: list[dict[str, Any]] = []
        while len(tasks) < 12:
            time.sleep(0.1)
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{address}/trajectories") as answer:
                tasks = json.load(answer)["trajectories"]
        for task in tasks:
            messages = [{"role": "user", "content": f"harbour? {task['question']}"}]
            said = post(f"{task['base_url']}/chat/completions", {"model": "agent", "messages": messages})
            text = said["choices"][0]["message"]["content"]
            post(f"{address}/t/{task['api_key']}/finish", {"answer": text})

    driver = threading.Thread(target=drive, daemon=True)
    driver.start()
    done = command("-m", "ratchet", "gateway", "--config", str(config))
    driver.join()
    assert done.returncode == 0 and "12 trajectories: 12 finished" in done.stdout, done.stdout
    assert {one.answer for one in stored(tmp_path)} == {"Ada Torrin", "nobody"}
    refused = command("-m", "ratchet", "gateway", "--config", str(config), "--set", "system.settings.command=[x]")
    assert "system.settings.command: `ratchet sample` starts the programs" in refused.stdout
