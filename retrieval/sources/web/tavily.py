"""Tavily: the live web, in passages chosen for the query. Tool-MAD's search tool (section III: three results)."""

from __future__ import annotations

from ratchet.retrieval.sources.web.client import Access, Request
from ratchet.retrieval.sources.web.parsing import objects_in, read_json, text_of
from ratchet.retrieval.sources.web.service import SearchResult, WebService


class Tavily(WebService):
    """Searches Tavily, by its basic search."""

    service = "tavily"
    url = "https://api.tavily.com"
    about = "Searches the live web and returns passages of pages."
    key_env = "TAVILY_API_KEY"
    key_needed = True
    per_second = 1.5
    max_results = 20
    max_query_characters = 400

    @classmethod
    def access(cls, key: str, contact: str) -> Access:
        return Access({"Authorization": f"Bearer {key}"})

    async def fetch_results(self, query: str, k: int, offset: int) -> list[SearchResult]:
        """The service has no pages: the first offset + k are asked for."""
        results = min(offset + k, self.max_results)
        body = {"query": query, "search_depth": "basic", "max_results": results}
        hits = await self.request(Request("POST", "/search", body=body), _read, query)
        return hits[offset : offset + k]


def _read(text: str) -> list[SearchResult]:
    return [
        SearchResult(
            url=text_of(item.get("url")),
            title=text_of(item.get("title")),
            text=text_of(item.get("content")),
            score=_score(item.get("score")),
        )
        for item in objects_in(read_json(text), "results")
    ]


def _score(value: object) -> float | None:
    return float(value) if isinstance(value, float | int) and abs(value) < 1e9 else None
