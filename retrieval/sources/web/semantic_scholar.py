"""Semantic Scholar: abstracts of all sciences. Its 429 is common without a key (S2_API_KEY).

A paper whose abstract may not be shown gives the service's one-sentence summary, or else its title.
"""

from __future__ import annotations

from ratchet.retrieval.sources.web.client import Access, Request
from ratchet.retrieval.sources.web.parsing import objects_in, read_json, text_of
from ratchet.retrieval.sources.web.service import SearchResult, WebService

MAX_DEPTH = 1000
"""offset + limit may not be more."""


class SemanticScholar(WebService):
    """Searches Semantic Scholar, by its paper search."""

    service = "semantic_scholar"
    url = "https://api.semanticscholar.org"
    about = "Searches Semantic Scholar (papers of all sciences) and returns abstracts."
    key_env = "S2_API_KEY"
    per_second = 1.0
    max_results = 100

    @classmethod
    def access(cls, key: str, contact: str) -> Access:
        return Access({"x-api-key": key} if key else {})

    async def fetch_results(self, query: str, k: int, offset: int) -> list[SearchResult]:
        k = min(k, MAX_DEPTH - offset)
        if k <= 0:
            return []
        # Hyphenated words find nothing here, says its documentation.
        params = {
            "query": query.replace("-", " "),
            "fields": "title,abstract,tldr,url",
            "limit": str(k),
            "offset": str(offset),
        }
        return await self.request(Request("GET", "/graph/v1/paper/search", params), _read, query)


def _read(text: str) -> list[SearchResult]:
    answer = read_json(text)
    if "data" not in answer and answer.get("total") == 0:
        return []
    results = []
    for paper in objects_in(answer, "data"):
        number, tldr = text_of(paper.get("paperId")), paper.get("tldr")
        summary = text_of(tldr.get("text")) if isinstance(tldr, dict) else ""
        results.append(
            SearchResult(
                url=text_of(paper.get("url")) or f"https://www.semanticscholar.org/paper/{number}",
                title=text_of(paper.get("title")),
                text=text_of(paper.get("abstract")) or summary,
                id=number,
            )
        )
    return results
