"""The base classes of search services: from a query to passages, over the network or from a local index instead.

Responses from outside become plain text, checked JSON and XML without entities. `Summariser` takes the sentences of a
text that say most of it, word for word and in their order.

Tool-MAD (section IV-D, figure 7) shortens each abstract with a DistilBERT extractive summariser, of which it names no
published model. Ours needs none of its own: sentences are compared by the config's embedder (all-MiniLM-L6-v2 by
default) and taken one by one, near the centroid of the text and far from those taken before (centroid-based
summarisation: Radev et al. 2004; the trade-off: maximal marginal relevance, Carbonell and Goldstein 1998). The same
text gives the same summary, whatever was asked for. No model calls, no retrievals.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar
from xml.etree import ElementTree

import numpy as np

from ratchet.core.records import Passage, content_key
from ratchet.core.tags import without_tags
from ratchet.core.text import plain_line, plain_text, shortened
from ratchet.core.text import read_json as text_json
from ratchet.core.words import NO_TOPIC, content_terms
from ratchet.retrieval.encoders.limits import Embed
from ratchet.retrieval.retriever import Retriever, SourceError, check_range
from ratchet.retrieval.sources.client import Access, Busy, Request, ResponseCache, WebClient
from ratchet.retrieval.sources.source import SearchSource

BUSY = re.compile(
    r"""rate.?limit | (?:rate|limit|quota).exceeded | too.many.requests | (?:too|is).busy | overload | temporar
    | try.(?:again|later) | tim(?:ed?|ing).?out | unavailable | backend.failed | internal.(?:server.)?error
    | error.forwarding
    | "(?:status|code|statusCode)":\s*"?(?:429|50[0234])\b""",
    re.I | re.X,
)
"""Words of services that have no answer now, in one of status 200."""
NEGATIVE = re.compile(r'"[^"]*"|(?<!\S)-\d\S*')
"""A negative number, or a text between quotes, in which none counts."""


class InvalidResponse(ValueError):
    """A response is not in the service's format."""

    def __init__(self, message: str, busy: bool | None = None) -> None:
        """`busy`: whether the next try may bring an answer; None: the response's own words decide it."""
        super().__init__(message)
        self.busy = busy


def plain(text: str) -> str:
    """Return `plain_text` with single blanks and at most one empty line between two lines."""
    lines = [" ".join(line.split()) for line in plain_text(text).split("\n")]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()


def keywords(query: str, max_words: int = 20) -> list[str]:
    """Return the query's words that carry its topic, in order and once each; all its words where none does."""
    return list({term.casefold(): term for term in content_terms(query, NO_TOPIC)}.values())[:max_words]


def shorter_queries(query: str) -> list[str]:
    """Return the query's keywords, then half of them, the first ones, and so on down to one word."""
    words, shorter = keywords(query), []
    while words:
        shorter.append(" ".join(words))
        words = words[: (len(words) + 1) // 2] if len(words) > 1 else []
    return [text for text in shorter if text != query]


def read_json(text: str) -> dict[str, Any]:
    """Parse a JSON object. Raises InvalidResponse for anything else."""
    try:
        value = text_json(text, finite=False)  # a score that nobody reads loses no result
    except ValueError as error:
        raise InvalidResponse(f"not valid JSON: {plain_line(str(error))[:100]}") from None
    if not isinstance(value, dict):
        raise InvalidResponse(f"expected a JSON object, got {type(value).__name__}")
    return value


def objects_in(value: Any, key: str) -> list[dict[str, Any]]:
    """Return the objects in value[key], which must be a list."""
    items = value.get(key) if isinstance(value, dict) else None
    if not isinstance(items, list):
        raise InvalidResponse(f"{key!r} is no list")
    return [item for item in items if isinstance(item, dict)]


def text_of(value: Any) -> str:
    """Return a text field, or nothing: services leave out what they do not have, or say null."""
    return value if isinstance(value, str) else ""


def read_xml(text: str) -> ElementTree.Element:
    """Return the root element. Nothing is fetched, and expat refuses entities that grow without measure."""
    try:
        return ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise InvalidResponse(f"not valid XML: {error}") from None


REDUNDANCY = 0.3
"""Weight of being like a sentence that was taken already, against 0.7 of being like the whole."""
MAX_SENTENCES = 200
"""The limit of one text; what follows is left out."""
# A full stop that ends no sentence stands after one of these, or after a single letter.
ABBREVIATED = (
    "al approx ca cf dr e.g ed eds eq etc fig figs i.e jr mr mrs ms p pp prof resp sec sr st vol vs u.s u.k "
    "jan feb mar apr jun jul aug sep sept oct nov dec"
)
ABBREVIATIONS = frozenset(ABBREVIATED.split())
END = re.compile(r"[.!?।۔؟]+[\"'”’)\]]*(?=\s)|[。！？]+[」』”’）]*|\n+")
LAST_WORD = re.compile(r"([\w.]+)\.[\"'”’)\]]*$")


class Summariser:
    """Shortens texts to their most central sentences."""

    def __init__(self, embed: Embed, name: object, max_sentences: int) -> None:
        self.max_sentences = max_sentences
        self.digest = content_key("summariser", 2, name, REDUNDANCY)
        self._embed = embed

    def summaries(self, texts: Sequence[str]) -> list[str]:
        return list(map(self._summary, texts))

    def _summary(self, text: str) -> str:
        parts = sentences(text)[:MAX_SENTENCES]
        if len(parts) <= self.max_sentences:
            return " ".join(parts)
        return " ".join(parts[number] for number in central(self._embed(parts), self.max_sentences))


def central(vectors: np.ndarray, max_sentences: int) -> list[int]:
    """Return the rows to take, in ascending order; of equals the first."""
    rows = vectors.astype(np.float64)
    centroid = rows.mean(axis=0)
    likeness = rows @ (centroid / (np.linalg.norm(centroid) or 1.0))
    taken: list[int] = []
    repeated = np.zeros(len(rows))
    while len(taken) < min(max_sentences, len(rows)):
        worth = (1 - REDUNDANCY) * likeness - REDUNDANCY * repeated
        worth[taken] = -np.inf
        # Rounded, so that the last bits of a model's arithmetic decide nothing.
        best = int(np.argmax(np.round(worth, 6)))
        taken.append(best)
        repeated = np.maximum(repeated, rows @ rows[best])
    return sorted(taken)


def sentences(text: str) -> list[str]:
    """Return the sentences of a text, without the blanks between them. A line's end ends one too."""
    parts, start = [], 0
    for end in END.finditer(text):
        if not end[0].startswith("\n") and not _ends(text[start : end.end()], text[end.end() :]):
            continue
        parts.append(text[start : end.end()])
        start = end.end()
    parts.append(text[start:])
    return [sentence for part in parts if (sentence := " ".join(part.split()))]


def _ends(before: str, after: str) -> bool:
    """Return whether the stop that `before` ends with is a sentence's, by the words around it."""
    following = after.lstrip()[:1]
    if following.islower():
        return False
    word = LAST_WORD.search(before)
    return word is None or not ((len(word[1]) == 1 and word[1].isalpha()) or word[1].lower() in ABBREVIATIONS)


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
        check_range(k, offset)
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
    minus_excludes: ClassVar[bool] = False
    """A word behind a minus sign is left out of what it finds: a negative number is put between quotes."""
    max_query_characters: ClassVar[int] = 300
    """Characters; the rest is cut, because services refuse longer ones."""

    def __init__(
        self, name: str, summariser: Summariser | None, client: WebClient, cache: ResponseCache, language: str = ""
    ) -> None:
        super().__init__(name, summariser)
        self._client, self._cache, self.language = client, cache, language
        more = (*(("shorter queries",) if self.matches_all_words else ()), *((language,) if language else ()))
        self.digest = content_key(self.service, client.url, "plain texts", self._processing, *more)

    @classmethod
    def access(cls, key: str, contact: str) -> Access:
        """`key` and `contact` may be empty."""
        return Access()

    async def fetch_results(self, query: str, k: int, offset: int) -> list[SearchResult]:
        """Results of ranks offset .. offset + k - 1. SourceError."""
        raise NotImplementedError

    async def find(self, query: str, k: int, offset: int) -> list[Passage]:
        query = query[: self.max_query_characters].strip()
        if self.minus_excludes:
            query = NEGATIVE.sub(lambda part: part[0] if part[0].startswith('"') else f'"{part[0]}"', query)
        by_id: dict[str, Passage] = {}
        for rank, result in enumerate(await self._results(query, min(k, self.max_results), offset), offset + 1):
            passage = self._passage(result, rank)
            if passage.text:
                by_id.setdefault(passage.id, passage)
        return list(by_id.values())[:k]

    async def _results(self, query: str, k: int, offset: int) -> list[SearchResult]:
        """Search; where that finds nothing and every word must match, with the first shorter query that finds
        something."""
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
        except RecursionError:
            raise SourceError(f"{self.service}: {self._client.url} answered with elements that are too deep") from None
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
