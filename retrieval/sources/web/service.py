"""The base classes of search services: from a query to passages, over the network or from a local index instead."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, TypeVar

from ratchet.core.records import Passage, content_key
from ratchet.core.tags import without_tags
from ratchet.core.text import plain_line, shortened
from ratchet.retrieval.errors import SourceError
from ratchet.retrieval.retriever import Retriever
from ratchet.retrieval.sources.source import SearchSource
from ratchet.retrieval.sources.summariser import Summariser
from ratchet.retrieval.sources.web.cache import ResponseCache
from ratchet.retrieval.sources.web.client import Access, Busy, Request, WebClient
from ratchet.retrieval.sources.web.parsing import BUSY, InvalidResponse, plain, shorter_queries

T = TypeVar("T")


@dataclass(frozen=True)
class SearchResult:
    """One result as a service gave it."""

    url: str
    title: str
    text: str
    id: str = ""
    """The service's own id, where its text is always the same; else one is made of address and text."""
    score: float | None = None


class ProcessedSource(SearchSource):
    """A search source that cleans queries before `find`, and shortens what it finds where there is a summariser."""

    digest: str

    def __init__(self, name: str, summariser: Summariser | None) -> None:
        self.name, self._summariser = name, summariser
        digests = (summariser.max_sentences, summariser.digest) if summariser else (0, "")
        self._processing = content_key(False, *digests)  # the first part was a setting once

    async def search(self, query: str, k: int, offset: int = 0) -> list[Passage]:
        if k < 0 or offset < 0:
            raise ValueError(f"k and offset must not be negative, got k={k}, offset={offset}")
        query = plain_line(query)
        if k == 0 or not any(map(str.isalnum, query)):
            return []
        passages = await self.find(query, k, offset)
        if self._summariser is None:
            return passages
        texts = await asyncio.to_thread(self._summariser.summaries, [passage.text for passage in passages])
        return [passage.with_text(text) for passage, text in zip(passages, texts, strict=True)]

    async def find(self, query: str, k: int, offset: int) -> list[Passage]:
        raise NotImplementedError


class WebService(ProcessedSource):
    """A service asked over HTTP. Its module says how: `fetch_results` asks and reads, `access` says who asks."""

    service: ClassVar[str]
    url: ClassVar[str]
    key_env: ClassVar[str] = ""
    """The environment variable of its key; empty where it takes none."""
    key_needed: ClassVar[bool] = False
    per_second: ClassVar[float]
    """Requests a second that its rules allow."""
    per_second_with_key: ClassVar[float | None] = None
    max_results: ClassVar[int]
    """Results of one request: a search gives no more."""
    matches_all_words: ClassVar[bool] = False
    """It finds only what has every word of a query: a search that finds nothing is repeated with fewer of them."""
    max_query_characters: ClassVar[int] = 300
    """Characters; the rest is cut, because services refuse longer ones."""

    def __init__(self, name: str, summariser: Summariser | None, client: WebClient, cache: ResponseCache) -> None:
        super().__init__(name, summariser)
        self._client, self._cache = client, cache
        shortens = ("shorter queries",) if self.matches_all_words else ()
        self.digest = content_key(self.service, client.url, "plain texts", self._processing, *shortens)

    @classmethod
    def access(cls, key: str, contact: str) -> Access:
        """`key` and `contact` may be empty."""
        return Access()

    async def fetch_results(self, query: str, k: int, offset: int) -> list[SearchResult]:
        """Results of ranks offset .. offset + k - 1. SourceError."""
        raise NotImplementedError

    async def find(self, query: str, k: int, offset: int) -> list[Passage]:
        query = query[: self.max_query_characters].strip()
        by_id: dict[str, Passage] = {}
        for rank, result in enumerate(await self._results(query, min(k, self.max_results), offset), offset + 1):
            passage = self._passage(result, rank)
            if passage.text:
                by_id.setdefault(passage.id, passage)
        return list(by_id.values())[:k]

    async def _results(self, query: str, k: int, offset: int) -> list[SearchResult]:
        """Of the query; where it finds nothing and every word must match, of the first shorter one that does."""
        results = await self.fetch_results(query, k, offset)
        for shorter in shorter_queries(query) if self.matches_all_words else ():
            if results or (offset and await self.fetch_results(query, 1, 0)):
                break  # the end of the list, and not of what is known
            query = shorter
            results = await self.fetch_results(query, k, offset)
        return results

    async def request(self, request: Request, read: Callable[[str], T], query: str) -> T:
        """Return what `read` parses from the response; a response that it cannot parse is not stored."""

        async def fetch() -> str:
            return await self._client.fetch(request, lambda text: self._read(text, read))

        asked = {
            "url": self._client.url + request.path,
            "method": request.method,
            "params": dict(request.params),
            "body": dict(request.body) if request.body is not None else None,
        }
        return self._read(await self._cache.get(self.service, asked, query, fetch), read)

    async def close(self) -> None:
        await self._client.close()

    def _read(self, text: str, read: Callable[[str], T]) -> T:
        try:
            return read(text)
        except InvalidResponse as error:
            if error.busy or (error.busy is None and BUSY.search(text[:2000])):
                raise Busy(str(error) if error.busy else text) from None
            raise SourceError(
                f"{self.service}: {self._client.url} did not answer as this service does ({error})"
            ) from None

    def _passage(self, result: SearchResult, rank: int) -> Passage:
        title, text = plain_line(without_tags(result.title)), plain(without_tags(result.text))
        text = text or title
        return Passage(
            id=f"{self.service}:{plain_line(result.id) or content_key(result.url, text)[:16]}",
            document_id=plain_line(result.url),
            title=shortened(title, 300),
            text=text,
            score=1 / rank if result.score is None else result.score,
        )


class LocalSource(ProcessedSource):
    """A local index that answers in place of a service, so that every system runs without a network."""

    def __init__(
        self, name: str, summariser: Summariser | None, service: str, about: str, retriever: Retriever
    ) -> None:
        super().__init__(name, summariser)
        self.about = f"{about} (A local stand-in for {service} answers.)"
        self.digest = content_key(f"local stand-in for {service}", retriever.digest, self._processing)
        self._retriever = retriever

    async def find(self, query: str, k: int, offset: int) -> list[Passage]:
        return await asyncio.to_thread(self._retriever.search, query, k, offset)
