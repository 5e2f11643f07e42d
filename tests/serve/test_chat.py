"""The endpoint as OpenAI's own client sees it."""

import asyncio
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from ratchet.core.errors import UserError
from ratchet.core.http.openai import ApiError, Turns
from ratchet.inference.engine import EngineError
from tests.helpers.adapter_folders import save_adapter
from tests.helpers.any_system import Talker
from tests.helpers.pages import ROOT, blocks
from tests.helpers.playing import Shelf, engine
from tests.helpers.served_systems import Served, make_answerer, serving
from tests.helpers.waiting import wait_for

pytestmark = pytest.mark.server

ASKED: list[Any] = [{"role": "user", "content": "Who built the harbour?"}]
CLAIM: list[Any] = [{"role": "user", "content": "Ada built the harbour."}]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    with serving(folder, adapter=save_adapter(folder / "adapter")) as server:
        yield server


def test_every_system_is_a_model_with_and_without_the_adapter(served: Served) -> None:
    with served.client() as client:
        models = {model.id: model for model in client.models.list()}
        assert list(models) == [
            *("vanilla_rag:adapter", "vanilla_rag:base", "verdicts:adapter", "verdicts:base"),
            *("no-retrieval:adapter", "no-retrieval:base"),
        ]
        one = client.models.retrieve("verdicts:base")
        assert (one.id, one.owned_by) == ("verdicts:base", "ratchet")
        assert one.model_extra == {"ratchet": {"form": "claim", "policy": "base"}}


def test_an_answer_has_its_steps_its_documents_and_its_cost(served: Served) -> None:
    with served.client() as client:
        before = len(served.engine.calls)
        done = client.chat.completions.create(model="vanilla_rag:base", messages=ASKED, temperature=1.0)
    (choice,) = done.choices
    (call,) = served.engine.calls[before:]
    assert (choice.message.content, choice.finish_reason) == ("harbour", "stop")
    reasoning = (choice.message.model_extra or {})["reasoning_content"]
    assert "searches: Who built the harbour?  (index, ranks 1 to 2)" in reasoning
    assert reasoning.index("c1  0.00  a fact  1 a fact") < reasoning.index('"response"'), "in the order of the work"
    cited = choice.message.annotations or []
    assert [(one.url_citation.title, one.url_citation.url) for one in cited] == [
        ("a fact", "document:d1"),
        ("a fact", "document:d2"),
    ]
    assert (cited[0].model_extra or {})["passage"]["text"] == "1 a fact"
    assert done.usage is not None
    assert (done.usage.prompt_tokens, done.usage.total_tokens - done.usage.completion_tokens) == (len(call.prompt),) * 2
    facts = (done.model_extra or {})["ratchet"]
    assert (facts["system"], facts["policy"], facts["status"]) == ("vanilla_rag", "base", "finished")
    assert call.params.temperature == 0.1, "the config's, whatever the client sends"


def test_the_adapter_is_the_model_that_its_name_says(served: Served) -> None:
    policies = []
    with served.client() as client:
        for name in ("vanilla_rag:base", "vanilla_rag:adapter"):
            done = client.chat.completions.create(model=name, messages=ASKED)
            policies.append((done.model_extra or {})["ratchet"]["policy"])
    base, adapted = served.engine.calls[-2:]
    assert base.adapter is None and str(adapted.adapter).endswith("adapter")
    assert policies[0] == "base" != policies[1]


def test_a_stream_has_steps_then_the_answer_then_the_usage(served: Served) -> None:
    with served.client() as client:
        create = client.chat.completions.create
        whole = create(model="vanilla_rag:base", messages=ASKED)
        options: Any = {"include_usage": True}
        chunks = list(create(model="vanilla_rag:base", messages=ASKED, stream=True, stream_options=options))
    deltas = [(chunk.choices[0].delta, chunk.choices[0].finish_reason) for chunk in chunks if chunk.choices]
    assert len({chunk.id for chunk in chunks}) == 1 and deltas[0][0].role == "assistant"
    reasoning = "".join((delta.model_extra or {}).get("reasoning_content", "") for delta, _ in deltas)
    assert reasoning == (whole.choices[0].message.model_extra or {})["reasoning_content"]
    assert [delta.content for delta, _ in deltas] == [None, None, "harbour", None]
    assert [reason for _, reason in deltas] == [None, None, None, "stop"]
    assert len((deltas[2][0].model_extra or {})["annotations"]) == 2
    steps = [(chunk.model_extra or {})["ratchet"]["step"] for chunk in chunks[:2]]
    assert [step["kind"] for step in steps] == ["search", "model"] and steps[0]["passages"][1]["text"] == "2 a fact"
    assert chunks[-1].choices == [] and chunks[-1].usage == whole.usage


def test_a_system_that_gives_verdicts_takes_a_claim(served: Served) -> None:
    with served.client() as client:
        create = client.chat.completions.create
        done = create(model="verdicts:base", messages=CLAIM)
        assert done.choices[0].message.content == "SUPPORTS"
        shown = "".join(message["content"] for message in served.engine.calls[-1].messages)
        assert "Claim: Ada built the harbour." in shown and "NOT ENOUGH INFO" in shown
        labels = [{"name": "A", "meaning": "a pier"}, {"name": "SUPPORTS", "meaning": "a harbour"}]
        extra = {"form": "question", "labels": labels}
        assert create(model="verdicts:base", messages=ASKED, extra_body=extra).choices[0].message.content == "SUPPORTS"
        shown = "".join(message["content"] for message in served.engine.calls[-1].messages)
        assert "Question: Who built" in shown and "A: a pier" in shown and "REFUTES" not in shown
        with pytest.raises(openai.BadRequestError, match="labels must differ"):
            create(model="verdicts:base", messages=CLAIM, extra_body={"labels": ["yes", "YES"]})


def test_the_last_message_is_the_question_and_may_be_parts(served: Served) -> None:
    parts: Any = [{"type": "text", "text": "And who"}, {"type": "text", "text": "paid?"}]
    history: list[Any] = [{"role": "system", "content": "Be rude."}, *ASKED, {"role": "assistant", "content": "Ada."}]
    with served.client() as client:
        client.chat.completions.create(
            model="no-retrieval:base", messages=[*history, {"role": "user", "content": parts}]
        )
    shown = "".join(message["content"] for message in served.engine.calls[-1].messages)
    assert "And who\npaid?" in shown and "rude" not in shown and "Who built" not in shown


def message(role: str, content: Any) -> dict[str, Any]:
    return {"role": role, "content": content}


@pytest.mark.parametrize(
    ("change", "param", "words"),
    [
        ({"model": "vanila_rag:base"}, "model", "did you mean 'vanilla_rag:base'"),
        ({"messages": []}, "messages", "at least 1"),
        ({"messages": [message("user", "  ")]}, "messages", "empty"),
        ({"messages": [message("user", "x" * 21_000)]}, "messages", "20000"),
        ({"messages": [message("king", "x")]}, "messages.0.role", "'user'"),
        ({"messages": [*ASKED, message("assistant", "x")]}, "messages.1.role", "user"),
        ({"messages": [message("user", [{"type": "image_url"}])]}, "messages.0.content", "image_url"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools", "its own tools"),
        ({"n": 2}, "n", "n must be 1"),
        ({"response_format": {"type": "json_object"}}, "response_format", "text"),
        ({"logprobs": True}, "logprobs", "log-prob"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_cannot_be_answered_is_refused_in_openais_form(
    served: Served, change: dict[str, Any], param: str, words: str, stream: bool
) -> None:
    asked: dict[str, Any] = {"model": "vanilla_rag:base", "messages": ASKED, "stream": stream, **change}
    calls = len(served.engine.calls)
    error = openai.NotFoundError if "model" in change else openai.BadRequestError
    with served.client() as client, pytest.raises(error, match=words) as refused:
        client.chat.completions.create(**asked)
    assert (refused.value.param, refused.value.type) == (param, "invalid_request_error")
    assert len(served.engine.calls) == calls


def test_a_system_without_an_answer_says_so_and_invents_none(tmp_path: Path) -> None:
    with serving(tmp_path, Talker(blank=True)) as server, server.client() as client:
        server.engine._reply = lambda *_: "no JSON"
        done = client.chat.completions.create(model="vanilla_rag:base", messages=ASKED)
        chunks = list(client.chat.completions.create(model="vanilla_rag:base", messages=ASKED, stream=True))
    message = done.choices[0].message
    assert message.content == "" and "no answer (unparsed). answerer:" in (message.refusal or "")
    assert chunks[-2].choices[0].delta.refusal == message.refusal
    assert (done.model_extra or {})["ratchet"]["status"] == "unparsed"


def test_work_that_failed_is_an_error_and_no_answer(tmp_path: Path) -> None:
    with serving(tmp_path) as server, server.client() as client:

        def fail(*_: Any) -> str:
            raise EngineError("the model's server is gone")

        server.engine._reply = fail
        with pytest.raises(openai.InternalServerError, match="server is gone") as failed:
            client.chat.completions.create(model="vanilla_rag:base", messages=ASKED)
        assert failed.value.status_code == 502 and failed.value.response.headers["x-should-retry"] == "false"
        stream = client.chat.completions.create(model="vanilla_rag:base", messages=ASKED, stream=True)
        assert (next(stream).model_extra or {})["ratchet"]["step"]["kind"] == "search", "one step was done"
        with pytest.raises(openai.APIError, match="server is gone"):
            next(stream)


def test_a_bug_is_an_error_without_its_details(tmp_path: Path) -> None:
    class Broken(Shelf):
        def search(self, query: str, k: int, offset: int = 0) -> Any:
            raise RuntimeError("secret details")

    with serving(tmp_path, shelf=Broken({})) as server, server.client() as client:
        for stream in (False, True):
            with pytest.raises(openai.InternalServerError, match="its log says why") as failed:
                client.chat.completions.create(model="vanilla_rag:base", messages=ASKED, stream=stream)
            assert "secret" not in str(failed.value)


def test_the_program_of_the_guide_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = blocks(ROOT / "docs/guides/use.md", "python")[0]
    with serving(tmp_path, system="mrag", baselines={}) as server:
        exec(program.replace("http://127.0.0.1:8090", server.url), {})
    out = capsys.readouterr().out
    assert out.startswith("['mrag:base']\n") and "coordinator: {" in out and "searcher: searches: harbour" in out


# Time and turns


@pytest.mark.parametrize("stream", [False, True])
def test_work_is_cancelled_when_its_client_leaves(tmp_path: Path, stream: bool) -> None:
    body = {"model": "vanilla_rag:base", "messages": ASKED, "stream": stream}
    with serving(tmp_path, delay=60) as server, httpx.Client() as client:
        if stream:
            with client.stream("POST", f"{server.url}/v1/chat/completions", json=body) as response:
                lines = response.iter_lines()  # held: an iterator of httpx closes the stream when it is collected
                assert "searches" in next(lines), "a step comes before the answer is there"
                wait_for(lambda: server.engine.running == 1)
        else:
            with pytest.raises(httpx.ReadTimeout):
                client.post(f"{server.url}/v1/chat/completions", json=body, timeout=0.5)
        wait_for(lambda: server.engine.running == 0)
        assert len(server.engine.calls) == 1


def test_a_stream_without_events_stays_alive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ratchet.core.http.openai.KEEP_ALIVE_SECONDS", 0.05)
    body = {"model": "no-retrieval:base", "messages": ASKED, "stream": True}
    with serving(tmp_path, delay=0.3) as server:
        lines = httpx.post(f"{server.url}/v1/chat/completions", json=body).text.split("\n\n")
        assert lines[0] == ": keep-alive" and lines[-2] == "data: [DONE]"
        with server.client() as client:
            stream = client.chat.completions.create(model="no-retrieval:base", messages=ASKED, stream=True)
            assert "".join(chunk.choices[0].delta.content or "" for chunk in stream).strip(), "clients skip it"


def test_what_takes_too_long_ends_with_a_timeout(tmp_path: Path) -> None:
    with serving(tmp_path, delay=60, seconds=0.3) as server, server.client() as client:
        with pytest.raises(openai.InternalServerError, match=r"no answer within 0\.3 s") as late:
            client.chat.completions.create(model="no-retrieval:base", messages=ASKED)
        assert late.value.status_code == 504 and server.engine.running == 0
        assert late.value.response.headers["x-should-retry"] == "false"
        stream = client.chat.completions.create(model="vanilla_rag:base", messages=ASKED, stream=True)
        with pytest.raises(openai.APIError, match=r"no answer within 0\.3 s"):
            list(stream)


def asking(server: Served) -> socket.socket:
    """A client that has asked, and leaves when it is closed."""
    address = httpx.URL(server.url)
    connection = socket.create_connection((address.host, address.port))
    body = json.dumps({"model": "no-retrieval:base", "messages": ASKED, "stream": True})
    head = f"Host: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    connection.sendall(f"POST /v1/chat/completions HTTP/1.1\r\n{head}\r\n\r\n{body}".encode())
    return connection


def test_only_so_many_are_answered_at_once_and_only_so_many_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ratchet.core.http.openai.ASSUMED_SECONDS", 30.0)
    with serving(tmp_path, delay=600, concurrent=1, waiting=1) as server, server.client() as client:
        for _ in range(2):  # both places are free once their clients have left, also that of the one that waited
            with asking(server):
                wait_for(lambda: server.engine.running == 1)
                with asking(server):
                    time.sleep(0.3)
                    with pytest.raises(openai.RateLimitError, match="busy with 2") as refused:
                        client.chat.completions.create(model="no-retrieval:base", messages=ASKED)
            assert refused.value.response.headers["retry-after"] == "60", "two requests of 30 s, as none has ended"
            wait_for(lambda: server.engine.running == 0)
        assert server.engine.max_running == 1


async def test_how_long_a_request_waits_follows_from_what_is_queued_and_measured() -> None:
    turns = Turns(2, 10)
    assert turns.wait == 0
    async with turns.turn(None), turns.turn(None):
        assert turns.wait == pytest.approx(30), "one of the two ends first, 60 s being assumed"
        await asyncio.sleep(0.1)
    async with turns.turn(None), turns.turn(None):
        assert 0.05 <= turns.wait < 25, "0.1 s were measured"


async def test_a_request_that_would_be_answered_too_late_is_refused_unless_a_place_is_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the slowest of those that are worked on and of those that ended last."""
    monkeypatch.setattr("ratchet.core.http.openai.ASSUMED_SECONDS", 0.01)
    monkeypatch.setattr("ratchet.core.http.openai.MAX_SECONDS", 0.2)
    turns = Turns(2, 10)
    async with turns.turn(None), turns.turn(None):
        assert turns.wait + turns.each < 0.2
        await asyncio.sleep(0.15)
        with pytest.raises(ApiError, match="busy with 2"):  # 0.15 s so far, and half of that before a place is free
            async with turns.turn(None):
                pass
    async with turns.turn(None):
        pass
    async with turns.turn(None), turns.turn(None):
        with pytest.raises(ApiError, match="busy with 2"):  # one of the last ones took 0.15 s
            async with turns.turn(None):
                pass


# Who may ask


def test_a_server_with_a_key_answers_only_those_who_send_it(tmp_path: Path) -> None:
    with serving(tmp_path, key="open-sesame") as server:
        with server.client() as client:
            assert client.chat.completions.create(model="no-retrieval:base", messages=ASKED).choices
        with (
            server.client(api_key="open-sesamf") as client,
            pytest.raises(openai.AuthenticationError, match="no valid key"),
        ):
            client.models.list()
        for path, status in (("/", 200), ("/page.js", 200), ("/health", 200), ("/v1/models", 401)):
            assert httpx.get(server.url + path).status_code == status
        elsewhere = {"host": "lab.example", "authorization": "Bearer open-sesame"}
        assert httpx.get(f"{server.url}/v1/models", headers=elsewhere).status_code == 200


def test_a_large_body_and_bad_json_are_refused(tmp_path: Path) -> None:
    with serving(tmp_path, body_bytes=1000) as server:
        url = f"{server.url}/v1/chat/completions"
        json_type = {"content-type": "application/json"}
        parts = (b"x" * 600 for _ in range(3))
        for content, status in ((b"x" * 2000, 413), (parts, 413), (b"{", 400), (b'"\\ud800"', 400), (b"[" * 900, 400)):
            answer = httpx.post(url, content=content, headers=json_type)
            assert answer.status_code == status and set(answer.json()["error"]) == {"message", "type", "param", "code"}
        assert httpx.get(f"{server.url}/nowhere").json()["error"]["type"] == "invalid_request_error"


def test_two_systems_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="rename one"):
        make_answerer(tmp_path, engine([]), baselines={"a b": {"name": "direct"}, "a-b": {"name": "direct"}})
