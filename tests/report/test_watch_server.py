"""The server of `watch`, over HTTP: lists, single trajectories, the state of a run, and who may ask."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from commands.recording import record_by_hand
from commands.watch import main
from ratchet.config import Config, ModelConfig
from ratchet.errors import UserError
from ratchet.files import write_jsonl
from ratchet.runfolder import RoundFolder, RunFolder
from report.watch.engines import parse_gpus, parse_metrics, read_engines
from report.watch.index import open_database
from report.watch.state import Pace
from sampling.store import FIRST_SEGMENT, TrajectoryStore
from tests.helpers.handmade_run import add_sampling, make_config, make_run
from tests.helpers.stored import store
from tests.helpers.tiny import save_tiny_tokenizer
from tests.helpers.watched import get, indexed, wait_for, watched

pytestmark = pytest.mark.server
METRICS = """# HELP vllm:num_requests_running Number of requests
vllm:num_requests_running{engine="0",model_name="a"} 3.0
vllm:num_requests_running{engine="1",model_name="a"} 4.0
vllm:num_requests_waiting{engine="0"} 2.0
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:kv_cache_usage_perc{engine="1"} 0.5
vllm:generation_tokens_total{engine="0"} 1200.0
vllm:other 7
vllm:prompt_tokens_total{engine="0"} broken
"""


def with_tokenizer(config: Config, folder: Path) -> Config:
    model = config.models["agent"].model_copy(update={"path": str(save_tiny_tokenizer(folder / "model"))})
    return config.model_copy(update={"models": {"agent": model}})


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Config, RoundFolder]:
    folder = tmp_path_factory.mktemp("run")
    config, number_one = make_run(folder, train=6, test=6)
    return with_tokenizer(config, folder), number_one


@pytest.fixture(scope="module")
def client(finished: tuple[Config, RoundFolder], tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with watched(finished[0], tmp_path_factory.mktemp("cache")) as client:
        indexed(client)
        yield client


def test_one_trajectory_comes_with_its_question_scores_messages_and_what_was_trained(
    client: httpx.Client, finished: tuple[Config, RoundFolder]
) -> None:
    _, folder = finished
    selection = folder.read_selection()
    assert selection is not None
    key = selection.kept[0]
    [stored] = TrajectoryStore(folder.trajectories).read([key])
    found = get(client, f"/trajectories/{key}")
    [question], [run] = found["section"]["questions"], found["chunk"]["runs"]
    assert question["id"] == stored.question_id and question["runs"][0]["key"] == key and question["runs"][0]["kept"]
    assert run["answer"] == stored.answer and len(run["events"]) == len(stored.events)
    assert {score["name"] for score in run["scores"]} == {"em", "f1", "nugget_containment", "lexical_support"}
    assert any(kind == "trained" for talk in run["conversations"] for kind, _, _ in talk["spans"])
    assert all(pieces for talk in run["conversations"] for _, _, pieces in talk["spans"])
    assert found["notes"] == [] and set(run["support"]) <= set(found["passages"])
    assert [one["sample"] for one in found["siblings"]] == list(range(8))
    missing = client.get("/trajectories/nothing")
    assert missing.status_code == 404 and "nothing" in missing.json()["error"]


def test_opening_one_reads_only_its_own_line(tmp_path: Path) -> None:
    config = with_tokenizer(make_config(tmp_path, train=3), tmp_path)
    folder = RoundFolder(config.folder / "round-1")
    made = add_sampling(config, folder, samples=2)
    segment = folder.trajectories / FIRST_SEGMENT
    with watched(config, tmp_path / "cache") as client:
        indexed(client)
        lines = segment.read_bytes().splitlines(keepends=True)
        wiped = [line if n == 3 else b"#" * (len(line) - 1) + b"\n" for n, line in enumerate(lines)]
        with segment.open("r+b") as file:
            file.write(b"".join(wiped))
        assert get(client, f"/trajectories/{made[3].key}")["chunk"]["runs"][0]["answer"] == made[3].answer
        refused = client.get(f"/trajectories/{made[2].key}")
        assert refused.status_code == 500 and FIRST_SEGMENT in refused.json()["error"]


def test_a_run_that_is_sampled_is_followed_with_its_rate(tmp_path: Path) -> None:
    config = make_config(tmp_path, train=4)
    folder = RunFolder(config.folder).round(1)
    made = add_sampling(config, folder, samples=5)
    store(folder.trajectories, made[:6], samples=5, missing=len(made) - 6)
    plan = json.loads((folder.trajectories / "manifest.json").read_bytes()) | {"keys": [t.key for t in made]}
    (folder.trajectories / "manifest.json").write_text(json.dumps(plan))
    with watched(config, tmp_path / "cache") as client:
        first = wait_for(lambda: (s := get(client, "/state"))["current"]["done"] == 6 and s)
        assert first["current"] | {"rate": None} == {
            "title": "sample", "round": 1, "done": 6, "total": 20, "unit": "trajectories", "rate": None, "left": None
        }  # fmt: skip
        assert [row["state"] for row in first["stages"]][:3] == ["not recorded", "now", "to do"]
        write_jsonl(folder.trajectories / "part-1.jsonl", made[6:12])
        later = wait_for(lambda: (s := get(client, "/state"))["current"]["done"] == 12 and s)
        assert later["current"]["rate"] > 0 and later["current"]["left"] > 0
        assert later["tokens"]["new"] == sum(c.new_tokens for t in made[:12] for c in t.model_calls)
        assert indexed(client)["total"] == 12


def test_stages_of_the_ledger_are_done(tmp_path: Path) -> None:
    config = make_config(tmp_path, train=4)
    folder = RunFolder(config.folder).round(1)
    with record_by_hand(config, ["sample"], 1, None):
        add_sampling(config, folder, samples=2)
    with watched(config, tmp_path / "cache") as client:
        indexed(client)
        stages = {row["title"]: row for row in get(client, "/state")["stages"]}
    assert stages["sample"]["state"] == "done" and "trajectories 8" in stages["sample"]["note"]
    assert stages["train"]["state"] == "to do"


def test_the_run_folder_is_only_read_and_a_damaged_index_is_built_again(tmp_path: Path) -> None:
    config = make_config(tmp_path, train=3)
    made = add_sampling(config, RoundFolder(config.folder / "round-1"), samples=2)
    before = {path: path.stat().st_mtime_ns for path in config.folder.rglob("*")}
    with watched(config, tmp_path / "cache") as client:
        indexed(client)
        get(client, "/state")
        with contextlib.closing(open_database(tmp_path / "cache" / "index.sqlite")) as database:
            database.execute("pragma wal_checkpoint(truncate)")
        with (tmp_path / "cache" / "index.sqlite").open("r+b") as file:
            file.write(b"damage" * 5_000)

        def listed() -> Any:
            answer = client.get("/trajectories")
            return answer.status_code == 200 and answer.json()["total"] == len(made)

        wait_for(listed)
    (tmp_path / "cache" / "index.sqlite").write_bytes(b"no database " * 99)
    with watched(config, tmp_path / "cache") as client:
        assert indexed(client)["total"] == len(made)
    assert {path: path.stat().st_mtime_ns for path in config.folder.rglob("*")} == before


def test_only_pages_of_this_machine_may_ask_and_nothing_can_be_changed(client: httpx.Client) -> None:
    assert client.post("/trajectories", headers={"Content-Type": "application/json"}).status_code == 405
    for address in ("/", "/page.js", "/page.css", "/state", "/trajectories"):
        answer = client.get(address)
        assert "access-control-allow-origin" not in answer.headers
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
    refused = client.get("/trajectories", params={"status": "odd", "limit": 10_000})
    assert refused.status_code == 422 and refused.json()["error"].startswith("status: ")
    assert client.get("/openapi.json").status_code == 404


def test_a_rate_is_that_of_the_last_two_minutes() -> None:
    now = 0.0
    pace = Pace(lambda: now)
    assert pace.rate("a", 10) is None
    now = 10.0
    assert pace.rate("a", 30) == pytest.approx(2.0)
    for later in range(20, 400, 10):
        now = float(later)
        last = pace.rate("a", 30)
    assert last == 0.0
    assert pace.rate("b", 5) is None and pace.rate("b", 3) is None


def test_the_metrics_of_a_server_are_summed_over_its_engines(tmp_path: Path) -> None:
    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/metrics" else 404)
            self.end_headers()
            self.wfile.write(METRICS.encode())

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        base = {"path": "some/model", "engine": "vllm"}
        models = {
            "up": base | {"url": f"http://127.0.0.1:{server.server_port}/v1"},
            "gone": base | {"url": "http://127.0.0.1:9/v1"},
            "local": {"path": "some/model"},
        }
        config = make_config(tmp_path).model_copy(
            update={"models": {name: ModelConfig.model_validate(given) for name, given in models.items()}}
        )
        found = {name: (metrics, problem) for name, _, metrics, problem in read_engines(config)}
        server.shutdown()
        thread.join()
    assert found["up"] == ({"running": 7.0, "waiting": 2.0, "cache": 0.5, "new_tokens": 1200.0}, "")
    assert found["gone"][0] == {} and "does not answer" in found["gone"][1] and "local" not in found
    assert parse_metrics("") == {}


def test_gpus_are_read_as_nvidia_smi_prints_them() -> None:
    text = "NVIDIA H200, 87, 91234, 143771, 512.31, 61\nNVIDIA H200 MIG, [N/A], 12, 143771, [N/A], 40\n"
    first, second = parse_gpus(text)
    assert (first["name"], first["use"], first["memory"], first["watts"]) == ("NVIDIA H200", 87.0, 91234.0, 512.31)
    assert second["use"] is None and parse_gpus("No devices were found\n") == []


def test_the_command_names_a_run_that_is_not_there(tmp_path: Path) -> None:
    config = make_config(tmp_path)
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(json.loads(config.model_dump_json(exclude_unset=True))))
    with pytest.raises(UserError, match="there is no such run folder yet"):
        main(["--config", str(path)])
    config.folder.mkdir()
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="--cache"):
        main(["--config", str(path), "--port", "0", "--cache", str(tmp_path / "file" / "below")])
