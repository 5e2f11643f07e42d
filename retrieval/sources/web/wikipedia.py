"""The English Wikipedia.

One request searches and brings the introductions of the pages that it found. A passage is the snippet that matched,
where that stands further down the page, and then the introduction, of which a cut takes the end. Wikimedia's rules ask
for a contact: set the environment variable RATCHET_CONTACT.
"""

from __future__ import annotations

import re
from typing import Any

from ratchet.core.tags import without_tags
from ratchet.core.text import plain_line
from ratchet.retrieval.sources.web.client import Access, Request
from ratchet.retrieval.sources.web.parsing import InvalidResponse, objects_in, read_json, text_of
from ratchet.retrieval.sources.web.service import SearchResult, WebService

BUSY = re.compile(r"ratelimited|maxlag|readonly|internal_api_error.*|pool-.*|.*too-busy.*|.*backend-error")
"""Codes of MediaWiki's errors, and of its search engine's, that may be gone on the next try."""


class Wikipedia(WebService):
    """Searches Wikipedia, by its search and extracts."""

    service = "wikipedia"
    url = "https://en.wikipedia.org"
    about = "Searches Wikipedia and returns the introductions of articles."
    per_second = 5.0
    max_results = 20

    @classmethod
    def access(cls, key: str, contact: str) -> Access:
        return Access(refused="set RATCHET_CONTACT to an address at which you can be reached, as Wikimedia asks")

    async def fetch_results(self, query: str, k: int, offset: int) -> list[SearchResult]:
        params = {
            "action": "query",
            "format": "json",
            "formatversion": "2",
            "list": "search",
            "srsearch": query,
            "srlimit": str(k),
            "sroffset": str(offset),
            "generator": "search",
            "gsrsearch": query,
            "gsrlimit": str(k),
            "gsroffset": str(offset),
            "prop": "extracts|info",
            "exintro": "1",
            "exlimit": "max",
            "inprop": "url",
        }
        return await self.request(Request("GET", "/w/api.php", params), _read, query)


def _read(text: str) -> list[SearchResult]:
    answer = read_json(text)
    error = answer.get("error")
    if isinstance(error, dict):
        code = text_of(error.get("code"))
        raise InvalidResponse(plain_line(f"{code}: {text_of(error.get('info'))}")[:300], bool(BUSY.fullmatch(code)))
    if "query" not in answer and "batchcomplete" in answer:
        return []  # what a generator that found nothing leaves
    query = answer.get("query")
    items = objects_in(query, "search")
    pages = {page.get("pageid"): page for page in (objects_in(query, "pages") if items else ())}
    return [_search_result(item, pages.get(item.get("pageid"), {})) for item in items]


def _search_result(item: dict[str, Any], page: dict[str, Any]) -> SearchResult:
    # Of HTML: as the plain text that the service offers, 10<sup>6</sup> would be 106.
    intro = without_tags(text_of(page.get("extract")), is_markup=True).strip()
    snippet = plain_line(without_tags(text_of(item.get("snippet")), is_markup=True))
    parts = [snippet if snippet not in plain_line(intro) else "", intro]
    return SearchResult(
        url=text_of(page.get("fullurl")) or f"page {item.get('pageid')}",
        title=text_of(item.get("title")),
        text="\n".join(part for part in parts if part),
    )
