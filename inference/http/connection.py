"""One server over HTTP: retries, riding over a restart, and errors in the server's own words without our key.

Whatever the server sends in answer to one request is that request's EngineError at worst.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
from collections.abc import Callable, Collection
from typing import Any
from urllib.request import getproxies

import httpx

from inference.engine import EngineError
from ratchet.config import ModelConfig
from ratchet.errors import UserError
from ratchet.http.responses import HEADERS, Answer, BadAnswer, ask, no_cookies
from ratchet.http.retry import AWAY, TRANSIENT, Backoff, parse_retry_after
from ratchet.progress import duration
from ratchet.text import read_json

CONNECT_TIMEOUT = 10.0
"""Seconds to open a connection; answers may take the model's whole `timeout`."""
MOST_BYTES = 32 << 20
"""Of one answer. A completion of 131,072 tokens with their log-probabilities takes 12 MB."""
LOOK_AGAIN = 5.0
"""Most seconds between two tries while a server is away, so that it is not idle for long when it is back."""
TRIES_BEFORE_FIRST = 3
HOW_TO_START = (
    "start one with `python -m inference serve`, or with: vllm serve MODEL --host 127.0.0.1 "
    "--enable-prompt-tokens-details --structured-outputs-config.backend xgrammar"
)

logger = logging.getLogger(__name__)


class Refused(EngineError):
    """The server's answer was an error status, after retrying what is transient."""

    def __init__(self, message: str, status: int, codes: Collection[str] = (), words: str = "") -> None:
        super().__init__(message)
        self.status, self.codes, self.words = status, codes, words
        """`codes`: what the server calls the error (code, type, param)."""


class Broken(EngineError):
    """The server was away whenever this request was tried, and there for others: it may be the request's own fault."""

    def __init__(self, message: str, what: str) -> None:
        super().__init__(message)
        self.what = what
        """What happened, in one line, for a message that says something else about it."""


class ServerLost(UserError):
    """No server is there, or it has not answered anyone for as long as one waits for it."""

    def __init__(self, message: str, what: str) -> None:
        super().__init__(message)
        self.what = what
        """As in `Broken`: without what to do about it."""


def what_happened(problem: Exception) -> str:
    return problem.what if isinstance(problem, ServerLost | Broken) else str(problem)


class Connection:
    """A server that is away after it has answered once is waited for: a restarted vLLM takes a minute or more.

    Away means that connections are refused or break, or that it answers 502 or 503. `patience` says for how many
    seconds that is waited out (default: the model's `timeout`). Before the first answer a server is more likely absent
    than restarting, and three tries have to do; with `served`, somebody has already seen it answer.
    """

    def __init__(self, model: ModelConfig, backoff: Backoff | None = None, served: bool = False) -> None:
        self.url = _base_url(model)
        self.patience: Callable[[], float] = lambda: model.timeout
        self._timeout = model.timeout
        self._key_name = model.api_key_env
        self._key = os.environ.get(model.api_key_env, "")
        self._backoff = backoff or Backoff()
        self._known = served
        self._answered_at = float("-inf")
        self._away_since: float | None = None
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=model.concurrency)
        local = httpx.URL(self.url).host in ("127.0.0.1", "localhost", "::1")
        direct = not local and not getproxies()
        self._client = httpx.AsyncClient(
            headers=HEADERS | ({"Authorization": f"Bearer {self._key}"} if self._key else {}),
            cookies=no_cookies(),
            timeout=httpx.Timeout(None, connect=CONNECT_TIMEOUT),
            limits=limits,
            trust_env=not local,  # a proxy for the world outside cannot reach our own servers
            transport=httpx.AsyncHTTPTransport(limits=limits, socket_options=_keep_alive()) if direct else None,
        )

    async def close(self) -> None:
        await self._client.aclose()

    async def json(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """A successful answer, decoded. Raises what `request` raises."""
        answer = await self.request(method, path, body)
        try:
            return read_json(answer.body)
        except ValueError as error:
            raise EngineError(f"{self.url}: the answer is not valid JSON ({self._short(error)})") from None

    async def request(
        self, method: str, path: str, body: dict[str, Any] | None = None, transient: frozenset[int] = TRANSIENT
    ) -> Answer:
        """A successful answer.

        Raises EngineError (Refused for an error status, Broken), ServerLost, UserError where the key is wrong.
        """
        # Half of a surrogate pair, which a prompt may have from a document, is in no UTF-8: it becomes '?'.
        content = None if body is None else json.dumps(body, ensure_ascii=False).encode(errors="replace")
        headers = {} if body is None else {"Content-Type": "application/json"}
        clock = asyncio.get_running_loop().time
        deadline = clock() + self._timeout
        failed = missed = 0
        lost: float | None = None
        while True:
            asked, away = None, True
            try:
                request = self._client.build_request(method, f"{self.url}/{path}", content=content, headers=headers)
                async with asyncio.timeout_at(deadline):
                    answer = await ask(self._client, request, MOST_BYTES)
            except TimeoutError:
                raise EngineError(f"{self.url} gave no answer within {self._timeout:g} s (models.*.timeout)") from None
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                what = f"no server answers at {self.url} ({_why(error)})"
                problem: Exception = ServerLost(f"{what}; {HOW_TO_START}", what)
            except httpx.TransportError as error:
                problem = EngineError(f"{self.url}: the connection broke ({self._short(_why(error))})")
            except BadAnswer as error:
                self._heard(clock())
                raise EngineError(f"{self.url}: {self._short(error)}") from None
            else:
                away = answer.status in AWAY
                if not away:
                    self._heard(clock())
                if answer.is_success:
                    return answer
                problem = self._refusal(answer)
                if answer.status not in transient:
                    raise problem
                asked = parse_retry_after(answer.headers.get("retry-after"))
            if away and self._known:
                missed += 1
                lost = clock() if lost is None else lost
                if asked and clock() + asked >= lost + self.patience():
                    asked = None  # longer than we have: it may be back before
                wait = max(min(self._backoff.wait(missed), LOOK_AGAIN), asked or 0.0)
                if clock() + wait >= lost + self.patience():
                    raise self._lost(problem, lost)
                if missed > 1:
                    self._say_away(problem, lost)
                deadline = clock() + wait + self._timeout  # it has to answer from the beginning when it is back
            else:
                failed += 1
                wait = self._backoff.wait(failed, asked)
                tries = self._backoff.tries if self._known else min(TRIES_BEFORE_FIRST, self._backoff.tries)
                if failed >= tries or clock() + wait >= deadline:
                    raise problem
                logger.info("%s; try %d of %d in %.1f s", problem, failed + 1, tries, wait)
            await asyncio.sleep(wait)

    def _heard(self, now: float) -> None:
        self._known, self._answered_at = True, now
        if self._away_since is not None:
            logger.warning("%s is back after %s", self.url, duration(now - self._away_since))
            self._away_since = None

    def _say_away(self, problem: Exception, since: float) -> None:
        """One line, however many requests wait."""
        if self._away_since is None:
            self._away_since = since
            waiting = duration(self.patience())
            logger.warning("waiting for %s, up to %s: %s", self.url, waiting, what_happened(problem))

    def _lost(self, problem: Exception, since: float) -> Exception:
        if self._answered_at > since:
            return Broken(f"{problem}; it answers other requests", what_happened(problem))
        return ServerLost(
            f"{problem}\nIt was waited for as long as one request may take (models.*.timeout: {self._timeout:g} s). "
            "What is finished is kept: see why the server ended, and run the same command again.",
            what_happened(problem),
        )

    def _refusal(self, answer: Answer) -> Exception:
        status = answer.status
        codes, words = _error_of(answer)
        said = self._short(words)
        if status in (401, 403):
            state = "which the server does not accept" if self._key else "which is not set"
            return UserError(
                f"{self.url} refuses access ({status}: {said}); the key is read from the environment variable "
                f"{self._key_name}, {state}"
            )
        return Refused(f"{self.url} answered {status}: {said}", status, codes, words)

    def _short(self, said: object) -> str:
        """One short line, without our key."""
        text = " ".join(str(said).split())
        if self._key:
            text = text.replace(self._key, "***")
        return (text[:300] + "...") if len(text) > 300 else text or "(nothing)"


def _error_of(answer: Answer) -> tuple[set[str], str]:
    """(what the server calls an error, its words)."""
    try:
        data = read_json(answer.body)
    except ValueError:
        return set(), answer.text
    error = data.get("error", data) if isinstance(data, dict) else data
    if not isinstance(error, dict):
        return set(), str(error)
    codes = {code for key in ("code", "type", "param") if isinstance(code := error.get(key), str)}
    return codes, str(error.get("message") or error.get("detail") or error)


def _why(error: Exception) -> str:
    return str(error) or type(error).__name__


def _keep_alive() -> list[tuple[int, int, int]]:
    """Have the kernel ask after a silent server: a dead node is noticed in two minutes, not after `timeout`."""
    options = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]
    for name, value in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4)):
        if hasattr(socket, name):  # not everywhere
            options.append((socket.IPPROTO_TCP, getattr(socket, name), value))
    return options


def _base_url(model: ModelConfig) -> str:
    """The server's address without a slash at the end."""
    if not model.url:
        raise UserError(
            f"the model {model.path} has engine: {model.engine} but no url; set models.*.url, such as "
            f"http://127.0.0.1:8000/v1, and {HOW_TO_START}"
        )
    assert isinstance(model.url, str), "replicas have a connection each"
    try:
        url = httpx.URL(model.url)
    except httpx.InvalidURL as error:
        raise UserError(f"models.*.url: {model.url!r} is not an address ({error})") from None
    if url.scheme not in ("http", "https") or not url.host:
        raise UserError(f"models.*.url: {model.url!r} is not an address such as http://127.0.0.1:8000/v1")
    if url.userinfo:
        raise UserError(f"models.*.url: keep secrets out of the address; put the key in ${model.api_key_env}")
    return str(url).rstrip("/")
