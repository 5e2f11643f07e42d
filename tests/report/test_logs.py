"""Trajectories for other tools: Parquet, OpenTelemetry spans and logs of Inspect, each read by its own library."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx
import pyarrow.parquet as pq
import pytest
import yaml
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from commands.logs import main
from ratchet.config import Config
from ratchet.errors import UserError
from ratchet.records import Trajectory
from ratchet.runfolder import RoundFolder
from report.logs.otel import export_spans
from report.logs.source import PassLog
from report.stores import stored_passes
from rewards.store import stored_scores
from sampling.store import TrajectoryStore
from tests.helpers.handmade_run import SCORES, make_run, questions_of
from tests.helpers.pages import ROOT
from tests.helpers.tiny import save_tiny_tokenizer
from tests.helpers.watched import wait_for

INSPECT = ROOT / ".venv-inspect" / "bin"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Config, RoundFolder, Path]:
    """(config, the round's folder, the config's file)."""
    folder = tmp_path_factory.mktemp("run")
    config, number_one = make_run(folder, train=6, test=4)
    model = config.models["agent"].model_copy(update={"path": str(save_tiny_tokenizer(folder / "model"))})
    config = config.model_copy(update={"models": {"agent": model}})
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(json.loads(config.model_dump_json(exclude_unset=True))))
    return config, number_one, path


@pytest.fixture(scope="module")
def sampled(finished: tuple[Config, RoundFolder, Path]) -> list[Trajectory]:
    return list(TrajectoryStore(finished[1].trajectories).read())


def rewards_of(folder: RoundFolder) -> dict[str, float | None]:
    selection = folder.read_selection()
    assert selection is not None
    return {key: value for choice in selection.questions for key, value in choice.rewards.items()}


def test_parquet_holds_every_trajectory_of_every_store(
    finished: tuple[Config, RoundFolder, Path], sampled: list[Trajectory], tmp_path: Path
) -> None:
    _, folder, path = finished
    main(["--config", str(path), "--to", "parquet", "--out", str(tmp_path)])
    assert len(list(tmp_path.iterdir())) == 4
    rows = pq.read_table(tmp_path / "round-1_trajectories.parquet").to_pylist()
    assert [row["trajectory"] for row in rows] == [t.key for t in sampled]
    texts = {question.id: question.text for question in questions_of("train", 6)}
    scores = stored_scores(folder.scores, {t.key for t in sampled})
    rewards, kept = rewards_of(folder), set(folder.read_selection().kept)  # type: ignore[union-attr]
    for row, stored in zip(rows, sampled, strict=True):
        assert (row["status"], row["answer"], row["question"]) == (
            stored.status, stored.answer, texts[stored.question_id]
        )  # fmt: skip
        assert (row["reward"], row["kept"]) == (rewards[stored.key], stored.key in kept)
        assert dict(row["scores"]) == {name: scores[stored.key, name].value for name in SCORES}
        assert [talk["ids"] for talk in row["conversations"]] == [list(c.ids) for c in stored.conversations]
        assert json.loads(row["events"]) == [event.model_dump(mode="json") for event in stored.events]


def test_kept_and_round_choose_what_is_exported(finished: tuple[Config, RoundFolder, Path], tmp_path: Path) -> None:
    _, folder, path = finished
    main(["--config", str(path), "--to", "parquet", "--out", str(tmp_path), "--kept", "--round", "1"])
    [written] = tmp_path.iterdir()
    selection = folder.read_selection()
    assert selection is not None
    assert set(pq.read_table(written)["trajectory"].to_pylist()) == set(selection.kept)
    with pytest.raises(UserError, match="no such trajectories"):
        main(["--config", str(path), "--to", "parquet", "--round", "7"])


@pytest.fixture(scope="module")
def spans(finished: tuple[Config, RoundFolder, Path]) -> dict[str, list[Any]]:
    """By trajectory key its spans, in the order of their starts."""
    config = finished[0]
    exporter = InMemorySpanExporter()
    [one] = [each for each in stored_passes(config.folder) if each.title == "round 1"]
    export_spans(PassLog(config, one).read(), exporter, "run", {"agent": "the/model"}, 1_700_000_000.0)
    found: dict[str, list[Any]] = {}
    for span in exporter.get_finished_spans():
        found.setdefault(f"{span.context.trace_id:032x}", []).append(span)
    return {
        key: sorted(mine, key=lambda span: (span.parent is not None, span.start_time)) for key, mine in found.items()
    }


def test_a_trajectory_is_a_trace_named_by_the_conventions(
    spans: dict[str, list[Any]], finished: tuple[Config, RoundFolder, Path], sampled: list[Trajectory]
) -> None:
    rewards = rewards_of(finished[1])
    assert set(spans) == {t.key for t in sampled}
    for stored in sampled:
        root, *children = spans[stored.key]
        assert root.name == f"invoke_agent {stored.system}" and root.kind is SpanKind.INTERNAL
        assert root.attributes["gen_ai.operation.name"] == "invoke_agent"
        assert root.attributes["gen_ai.conversation.id"] == stored.key
        assert root.attributes.get("ratchet.reward") == rewards[stored.key]
        assert root.end_time - root.start_time == round(stored.seconds * 1e9)
        assert (root.status.status_code is StatusCode.ERROR) == (stored.status != "finished")
        assert {span.parent.span_id for span in children} == {root.context.span_id}
        chats = [span for span in children if span.attributes["gen_ai.operation.name"] == "chat"]
        assert [span.attributes["gen_ai.usage.output_tokens"] for span in chats] == [
            call.new_tokens for call in stored.model_calls
        ]
        assert {span.name for span in chats} == {"chat the/model"}
        assert [span.attributes["gen_ai.agent.name"] for span in chats] == [call.role for call in stored.model_calls]
        [looked] = [span for span in children if span.attributes["gen_ai.operation.name"] == "retrieval"]
        assert looked.attributes["gen_ai.retrieval.query.text"] == stored.searches[0].query
        results = [event for event in root.events if event.name == "gen_ai.evaluation.result"]
        assert {event.attributes["gen_ai.evaluation.name"] for event in results} == set(SCORES)
    assert len({span.context.span_id for mine in spans.values() for span in mine}) == sum(map(len, spans.values()))


def test_malformed_actions_are_errors_of_their_spans(spans: dict[str, list[Any]], sampled: list[Trajectory]) -> None:
    [stored] = [t for t in sampled if any(call.parse == "malformed" for call in t.model_calls)][:1]
    broken = [span for span in spans[stored.key] if span.attributes.get("ratchet.parse") == "malformed"]
    assert broken and all(span.status.status_code is StatusCode.ERROR for span in broken)
    assert broken[0].attributes["error.type"] == "malformed"


class Collector(HTTPServer):
    """Takes spans as a collector does, or refuses them."""

    def __init__(self, status: int) -> None:
        super().__init__(("127.0.0.1", 0), _Takes)
        self.status = status
        self.requests: list[ExportTraceServiceRequest] = []


class _Takes(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        import gzip

        assert isinstance(self.server, Collector)
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        self.server.requests.append(ExportTraceServiceRequest.FromString(body))
        self.send_response(self.server.status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def collector(request: pytest.FixtureRequest) -> Iterator[Collector]:
    with Collector(request.param) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.server
@pytest.mark.parametrize("collector", [200], indirect=True)
def test_a_collector_receives_the_spans_without_text_where_that_is_asked_for(
    collector: Collector, finished: tuple[Config, RoundFolder, Path], sampled: list[Trajectory]
) -> None:
    address = f"http://127.0.0.1:{collector.server_port}/v1/traces"
    main(["--config", str(finished[2]), "--to", "otel", "--endpoint", address, "--round", "1", "--no-text"])
    received = [
        span
        for one in collector.requests
        for resource in one.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]
    assert {span.trace_id.hex() for span in received} == {t.key for t in sampled}
    told = b"".join(one.SerializeToString() for one in collector.requests).decode(errors="replace")
    assert sampled[0].searches[0].query not in told and questions_of("train", 1)[0].text not in told


@pytest.mark.server
@pytest.mark.parametrize("collector", [400], indirect=True)
def test_a_collector_that_refuses_is_an_error(collector: Collector, finished: tuple[Config, RoundFolder, Path]) -> None:
    address = f"http://127.0.0.1:{collector.server_port}/v1/traces"
    with pytest.raises(UserError, match="--endpoint"):
        main(["--config", str(finished[2]), "--to", "otel", "--endpoint", address, "--round", "1"])


READ = """
import json, sys
from inspect_ai.log import list_eval_logs, read_eval_log, read_eval_log_sample_summaries

told = {}
for info in list_eval_logs(sys.argv[1]):
    log = read_eval_log(info, resolve_attachments="full")
    told[log.eval.metadata["store"]] = {
        "status": log.status,
        "means": {s.name: s.metrics["mean"].value for s in log.results.scores if s.metrics},
        "summaries": len(read_eval_log_sample_summaries(info)),
        "samples": [{
            "key": s.uuid, "id": s.id, "epoch": s.epoch, "input": s.input, "target": s.target,
            "output": s.output.completion, "error": s.error.message if s.error else "", "limit": bool(s.limit),
            "reward": s.metadata["reward"], "scores": sorted(s.scores), "messages": [m.text for m in s.messages],
            "calls": [e.output.completion for e in s.events if e.event == "model"],
            "inputs": [len(e.input) for e in s.events if e.event == "model"],
            "tools": [e.arguments["query"] for e in s.events if e.event == "tool"],
        } for s in log.samples],
    }
print(json.dumps(told))
"""


def in_inspect(*words: str) -> str:
    """What a program of Inspect's environment prints."""
    done = subprocess.run(
        [str(INSPECT / words[0]), *words[1:]], cwd=ROOT, text=True, capture_output=True, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def logs(finished: tuple[Config, RoundFolder, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("logs")
    in_inspect("python", "-m", "report", "logs", "--config", str(finished[2]), "--to", "inspect", "--out", str(folder))
    return folder


@pytest.mark.inspect
@pytest.mark.slow
def test_inspect_reads_its_logs(
    logs: Path, finished: tuple[Config, RoundFolder, Path], sampled: list[Trajectory]
) -> None:
    told = json.loads(in_inspect("python", "-c", READ, str(logs)))
    assert len(told) == 4
    one = told["round-1/trajectories"]
    assert one["status"] == "success" and one["summaries"] == len(sampled)
    scores = stored_scores(finished[1].scores, {t.key for t in sampled})
    f1 = [score.value for (_, name), score in scores.items() if name == "f1" and score.value is not None]
    assert one["means"]["f1"] == pytest.approx(sum(f1) / len(f1))
    rewards = rewards_of(finished[1])
    found = {sample["key"]: sample for sample in one["samples"]}
    assert set(found) == {t.key for t in sampled}
    for stored in sampled:
        sample = found[stored.key]
        assert (sample["id"], sample["epoch"]) == (stored.question_id, stored.sample + 1)
        assert sample["output"] == stored.answer and sample["reward"] == rewards[stored.key]
        assert sample["calls"] == [call.text for call in stored.model_calls]
        assert sample["tools"] == [search.query for search in stored.searches]
        assert bool(sample["error"]) == (stored.status in ("failed", "unparsed"))
        assert sample["limit"] == (stored.status == "out_of_budget")
        assert sample["inputs"][0] == 2 and sample["messages"] and sample["scores"] == sorted(SCORES)


@pytest.mark.inspect
@pytest.mark.slow
@pytest.mark.server
def test_inspect_view_shows_its_logs(logs: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = [str(INSPECT / "inspect"), "view", "start", "--log-dir", str(logs), "--port", str(port)]
    log = (tmp_path / "view.log").open("w")
    with (
        log,
        subprocess.Popen(
            words, stdout=log, stderr=log, cwd=tmp_path, env={**os.environ, "HOME": str(tmp_path)}
        ) as view,
    ):
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=30) as client:

                def listed() -> Any:
                    try:
                        return client.get("/api/logs").json()["files"]
                    except httpx.TransportError:
                        return None

                assert len(wait_for(listed, 180)) == 4
                assert client.get("/").status_code == 200
        finally:
            view.terminate()
