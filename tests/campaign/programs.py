"""Programs that send the gateway whatever they like: right requests, odd and damaged ones, and none to their end."""

import asyncio
import contextlib
import json
import logging
import random
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import httpx

from ratchet.core.text import replace_surrogates
from tests.campaign.bad_input import change
from tests.campaign.damage import garble
from tests.campaign.replies import CONTROL, TEXTS, check
from tests.campaign.trial import Attack, Trial
from tests.helpers.gateway import learnt, record
from tests.helpers.tiny import tiny_format

CALL = '<tool_call>\n{"name": "search", "arguments": {"q": "harbour"}}\n</tool_call>'
SCHEMA = {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}
OFFERED = [{"type": "function", "function": {"name": "search", "description": "Finds.", "parameters": SCHEMA}}]
REFUSALS = {400, 401, 403, 404, 405, 408, 409, 413, 415, 431}
REQUESTS = 12
DEEP = "lists in lists"
Said = tuple[str, str]
"""A prompt, and what the model said to it."""


class Program:
    """Several dialogues, each of which goes on, branches off, is rewritten or asked for twice at once."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self._dialogues: list[list[dict[str, Any]]] = [[self._message("user")]]
        self.said: list[Said] = []

    def reply(self, prompt: str, *_: Any) -> str:
        """What the model says."""
        said = self._dice.choice([CALL, f"So:\n{CALL}{CALL}", "Ada.", "<think>Far.</think>Oslo.", *TEXTS, CALL[:-5]])
        self.said.append((prompt, replace_surrogates(said)))
        return said

    async def run(self, client: httpx.AsyncClient) -> str:
        for _ in range(REQUESTS):
            dialogue = self._dice.choice(self._dialogues)
            match self._dice.randrange(7):
                case 0:
                    dialogue = deepcopy(dialogue)
                    self._dice.choice(dialogue)["content"] = self._text()
                    await self._say(client, dialogue)
                case 1:
                    self._dialogues.append([self._message(role) for role in ("system", "user")])
                    await self._say(client, self._dialogues[-1])
                case 2:
                    await asyncio.gather(*(self._say(client, dialogue) for _ in range(3)))
                case 3:
                    asked = asyncio.ensure_future(self._say(client, dialogue))
                    await asyncio.sleep(self._dice.choice([0, 0.001, 0.003]))
                    asked.cancel()
                    await asyncio.gather(asked, return_exceptions=True)
                case 4:
                    await self._send_damaged(client, self._body(dialogue))
                case 5:
                    await self._send_odd(client, dialogue)
                case _:
                    await self._say(client, dialogue)
        return "Ada"

    def _text(self) -> str:
        return self._dice.choice(["Who?", *TEXTS, *CONTROL, "\ue000m0\ue001", "x" * 40_000])

    def _message(self, role: str) -> dict[str, Any]:
        return {"role": role, "content": self._text()}

    def _body(self, messages: list[dict[str, Any]]) -> dict[str, Any]:
        return {"model": "m", "max_tokens": self._dice.choice([5, 500]), "messages": messages, "tools": OFFERED}

    async def _say(self, client: httpx.AsyncClient, messages: list[dict[str, Any]]) -> None:
        """A right request, after which its dialogue goes on."""
        streamed = self._dice.random() < 0.2
        answer = await self._send(client, "chat/completions", self._body(messages) | {"stream": streamed})
        if answer.status_code == 200 and not streamed:
            said = answer.json()["choices"][0]["message"]
            results = [
                {"role": "tool", "tool_call_id": call["id"], "content": self._text()}
                for call in said.get("tool_calls", ())
            ]
            self._dice.shuffle(results)
            self._dialogues.append([*messages, said, *(results or [self._message("user")])])

    async def _send_odd(self, client: httpx.AsyncClient, messages: list[dict[str, Any]]) -> None:
        """One to three values are of other types or nested too deeply, in one of the three protocols."""
        path = self._dice.choice(["chat/completions", "responses", "messages"])
        body: dict[str, Any] = deepcopy({"tool_choice": "auto", "stop": ["x"], "stream": False} | self._body(messages))
        if path == "responses":
            body["input"] = body.pop("messages")
        for _ in range(self._dice.randint(1, 3)):
            inside = [body[key] for key in ("messages", "tools") if isinstance(body.get(key), list)]
            items = [item for items in inside for item in items if isinstance(item, dict)]
            changed = self._dice.choice([body, *items])
            change(self._dice, changed)
            if self._dice.random() < 0.3:
                changed[self._dice.choice([*changed, "odd"])] = DEEP
        await self._send(client, path, body)

    async def _send(self, client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> httpx.Response:
        head = {"content-type": "application/json"}
        levels = self._dice.choice([90, 150, 300, 450, 600, 750, 900, 950, 990, 5000])
        content = json.dumps(body).replace(f'"{DEEP}"', "[" * levels + "]" * levels)
        answer = await client.post(f"/v1/{path}", content=content.encode(), headers=head)
        assert answer.status_code in {200, *REFUSALS}, f"{answer.status_code}: {answer.text[:300]}"
        assert "server_error" not in answer.text
        return answer

    async def _send_damaged(self, client: httpx.AsyncClient, body: dict[str, Any]) -> None:
        """Bytes that are no HTTP any more, or another request; the client leaves without a word."""
        content = json.dumps(body).encode()
        request = client.build_request("POST", "/v1/chat/completions", content=content)
        lines = [f"POST {request.url.raw_path.decode()} HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json"]
        length = self._dice.choice(
            [f"Content-Length: {len(content) + self._dice.choice([0, 0, -1, 1, 10**20])}", "Transfer-Encoding: chunked"]
        )
        head = "\r\n".join([*lines, length, "X-Long: " + "x" * self._dice.choice([0, 70_000]), "", ""]).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", request.url.port)
        with contextlib.suppress(ConnectionError, TimeoutError):
            writer.write(
                garble(self._dice, head) + content if self._dice.random() < 0.7 else head + garble(self._dice, content)
            )
            answer = await asyncio.wait_for(reader.read(1000), 0.1)
            assert not answer or int(answer.split()[1]) in {200, *REFUSALS}, answer
        writer.close()


@contextmanager
def requests(folder: Path) -> Iterator[Trial]:
    """A program sends twelve requests; what is recorded is what the model saw and said, token for token."""
    chat = tiny_format()

    def trial(dice: random.Random) -> None:
        program = Program(dice)
        with logged_errors() as errors:
            trajectory = asyncio.run(record(program.run, program.reply, tools=True))
        assert trajectory.status == "finished" and errors == []
        check(trajectory, folder)
        learnt(trajectory)
        for call in trajectory.model_calls:
            ids = trajectory.conversations[call.conversation].ids
            prompt, said = chat.decode(ids[: call.start]), chat.decode(ids[call.start : call.end])
            assert any(prompt == seen and own.startswith(said.removesuffix("<|im_end|>")) for seen, own in program.said)

    yield trial


@contextmanager
def logged_errors() -> Iterator[list[str]]:
    """What is logged as an error in the block."""
    errors: list[str] = []
    handler = logging.Handler(logging.ERROR)
    handler.emit = lambda record: errors.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger().addHandler(handler)
    try:
        yield errors
    finally:
        logging.getLogger().removeHandler(handler)


ATTACKS = (Attack("programs at the gateway", requests, 5, 3000),)
