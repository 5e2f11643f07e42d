"""An index that a server holds, searched as if it were here: `RemoteIndex("http://127.0.0.1:8088")`."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Annotated, Any, TypeVar
from urllib.parse import quote

import httpx
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from ratchet.core.errors import UserError, did_you_mean
from ratchet.core.http.clients import Answer, BadResponse, is_local, open_client, send_request_sync
from ratchet.core.http.retry import Backoff, TryAgain, read_retry_after, retry
from ratchet.core.records import Passage
from ratchet.core.text import short_line
from ratchet.retrieval.retriever import SearchError, check_range


def _valid_text(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("half of a surrogate pair is no text") from None
    return text


class SearchRequest(BaseModel):
    """One query."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    query: Annotated[str, AfterValidator(_valid_text)]
    k: int = Field(ge=0)
    offset: int = Field(0, ge=0)

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, data: Any) -> Any:
        unknown = next((key for key in data if key not in cls.model_fields), None) if isinstance(data, dict) else None
        if unknown is not None:
            raise ValueError(f"unknown key {unknown[:50]!r}{did_you_mean(unknown[:50], cls.model_fields)}")
        return data


def _scored(passage: Passage) -> Passage:
    if not math.isfinite(passage.score):
        raise ValueError("a passage's score is not finite")
    return passage


Result = Annotated[Passage, AfterValidator(_scored)]


class SearchAnswer(BaseModel):
    """The passages of one query."""

    digest: str
    """The digest of the index that answered."""
    passages: list[Result]


class ServedIndex(BaseModel):
    """The description of an index that the server holds."""

    name: str
    digest: str
    chunks: int | None
    """None where the engine does not tell."""


class IndexesAnswer(BaseModel):
    """All indexes of the server."""

    indexes: list[ServedIndex]


class ErrorAnswer(BaseModel):
    """Why a request failed."""

    error: str


CONNECT_TIMEOUT = 10.0
"""Seconds to open a connection; an answer may take all of `timeout`."""
MAX_BYTES = 256 << 20
"""The limit of one answer: 1,000 passages, the server's most, of 268,000 bytes each."""
TRANSIENT = frozenset({429, 502, 503})
"""Statuses of a busy server, or of a proxy whose server is starting again."""
HOW_TO_START = "start one with: ratchet index serve --index NAME=FOLDER"

A = TypeVar("A", bound=BaseModel)


class RemoteIndex:
    """A Retriever over HTTP; any number of threads may use one.

    `name` may be left out where the server holds one index. Searching changes nothing, so a request is sent again
    when the connection breaks or the server is busy. A search that stays unanswered is a SearchError. No server is a
    UserError, and so is an index that is no longer the one that was opened: results of two indexes are never mixed.
    """

    name: str
    digest: str

    def __init__(
        self,
        url: str,
        name: str | None = None,
        timeout: float = 60.0,
        backoff: Backoff | None = None,
        key: str | None = None,
    ) -> None:
        self._url = _base_url(url)
        self._backoff = backoff or Backoff()
        self._timeout = timeout
        self._client = open_client(
            key or "",
            {"Content-Type": "application/json"},
            trust_env=not is_local(self._url),
            timeout=httpx.Timeout(timeout, connect=min(timeout, CONNECT_TIMEOUT)),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=64),
        )
        try:
            self.name, self.digest = self._find(name)
        except BaseException:
            self.close()
            raise

    def _find(self, name: str | None) -> tuple[str, str]:
        """The index's name and digest, as the server tells them."""
        # Until the server has answered once, it is more likely absent than starting again: no long wait for it.
        answer = self._ask(IndexesAnswer, "GET", "indexes", b"", min(3, self._backoff.tries))
        names = [index.name for index in answer.indexes]
        if name is None and len(names) != 1:
            raise UserError(f"{self._url} serves {len(names)} indexes: name one of {', '.join(names)}")
        name = names[0] if name is None else name
        if name not in names:
            raise UserError(f"{self._url} serves no index {name!r}{did_you_mean(name, names)}")
        return name, answer.indexes[names.index(name)].digest

    def search(self, query: str, k: int, offset: int = 0) -> list[Passage]:
        check_range(k, offset)
        asked = {"query": query, "k": k, "offset": offset}
        body = json.dumps(asked, ensure_ascii=False).encode(errors="replace")  # half a surrogate pair becomes '?'
        answer = self._ask(SearchAnswer, "POST", f"indexes/{quote(self.name, safe='')}/search", body)
        self._check_digest(answer.digest)
        return answer.passages

    def close(self) -> None:
        self._client.close()

    def _check_digest(self, digest: str) -> None:
        if digest != self.digest:
            raise UserError(
                f"{self._url}: {self.name!r} is another index now (digest {digest}, it was {self.digest} when it was "
                "opened): serve the old one again, or start again with this one"
            )

    def _ask(self, kind: type[A], method: str, path: str, body: bytes, tries: int | None = None) -> A:
        answer = self._request(method, path, body, tries or self._backoff.tries)
        try:
            return kind.model_validate_json(answer.body)
        except ValidationError as error:
            problem = error.errors(include_input=False)[0]
            raise SearchError(
                f"{self._url}/{path}: not the answer of a search server of this version "
                f"({'.'.join(map(str, problem['loc']))}: {problem['msg']}); is this the right address?"
            ) from None

    def _request(self, method: str, path: str, body: bytes, tries: int) -> Answer:
        try:
            return retry(lambda: self._attempt(method, path, body), replace(self._backoff, tries=tries))
        except TryAgain as fault:
            kind = UserError if isinstance(fault.__cause__, _NoServer) else SearchError
            raise kind(str(fault)) from None

    def _attempt(self, method: str, path: str, body: bytes) -> Answer:
        request = self._client.build_request(method, f"{self._url}/{path}", content=body)
        try:
            answer = send_request_sync(self._client, request, MAX_BYTES)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise _NoServer(
                f"no server answers at {self._url} ({error or type(error).__name__}); {HOW_TO_START}"
            ) from None
        except httpx.TimeoutException:
            raise SearchError(
                f"{self._url} gave no answer within {self._timeout:g} s; ask for less at once, or raise the timeout"
            ) from None
        except httpx.TransportError as error:
            problem = short_line(str(error) or type(error).__name__)
            raise TryAgain(f"{self._url}: the connection broke ({problem})") from None
        except BadResponse as error:
            raise SearchError(f"{self._url}: {short_line(str(error))}") from None
        if answer.is_success and not answer.busy:
            return answer
        problem = f"{self._url} answered {answer.status}: {answer.busy or _error_text(answer)}"
        if not answer.busy and answer.status not in TRANSIENT:
            raise SearchError(problem)
        asked = read_retry_after(answer.headers)
        raise TryAgain(problem, min(asked or 0.0, self._backoff.longest))


class _NoServer(TryAgain):
    """Nobody listens at the address."""


def _error_text(answer: Answer) -> str:
    try:
        message = ErrorAnswer.model_validate_json(answer.body).error
    except ValidationError:
        message = answer.text
    return short_line(message) or "(nothing)"


def _base_url(url: str) -> str:
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise UserError(f"{url!r} is not an address ({error})") from None
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise UserError(f"{url!r} is not an address such as http://127.0.0.1:8088")
    return str(parsed).rstrip("/")
