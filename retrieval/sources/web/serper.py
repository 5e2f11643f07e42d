"""Serper: Google's results. A passage is a result's snippet; boxes beside the results are left out."""

from __future__ import annotations

from ratchet.retrieval.sources.web.client import Access, Request
from ratchet.retrieval.sources.web.parsing import objects_in, read_json, text_of
from ratchet.retrieval.sources.web.service import SearchResult, WebService


class Serper(WebService):
    """Searches Google, by Serper."""

    service = "serper"
    url = "https://google.serper.dev"
    about = "Searches the web with Google and returns snippets of pages."
    key_env = "SERPER_API_KEY"
    key_needed = True
    per_second = 5.0
    max_results = 100
    max_query_characters = 400

    @classmethod
    def access(cls, key: str, contact: str) -> Access:
        return Access({"X-API-KEY": key})

    async def fetch_results(self, query: str, k: int, offset: int) -> list[SearchResult]:
        """The first offset + k are asked for: the service's own pages hold ten each."""
        results = min(offset + k, self.max_results)
        hits = await self.request(Request("POST", "/search", body={"q": query, "num": results}), _read, query)
        return hits[offset : offset + k]


def _read(text: str) -> list[SearchResult]:
    return [
        SearchResult(url=text_of(item.get("link")), title=text_of(item.get("title")), text=text_of(item.get("snippet")))
        for item in objects_in(read_json(text), "organic")
    ]
