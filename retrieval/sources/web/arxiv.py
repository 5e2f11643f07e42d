"""arXiv: abstracts, by the Atom feed. Its rules: one request in three seconds.

The query language has operators that a model's query could trip over, so that a query is sent as its words, any of
which may match, the best match first.
"""

from __future__ import annotations

import re

from ratchet.core.tags import element_text
from ratchet.core.text import plain_line
from ratchet.retrieval.sources.web.client import Request
from ratchet.retrieval.sources.web.parsing import InvalidResponse, keywords, read_xml
from ratchet.retrieval.sources.web.service import SearchResult, WebService

ATOM = "{http://www.w3.org/2005/Atom}"
OPENSEARCH = "{http://a9.com/-/spec/opensearch/1.1/}"
PAPER = re.compile(r"arxiv\.org/abs/(\S+)$")


class Arxiv(WebService):
    """Searches arXiv, by its Atom feed."""

    service = "arxiv"
    url = "https://export.arxiv.org"
    about = "Searches arXiv (physics, mathematics, computer science) and returns abstracts of papers."
    per_second = 1 / 3
    max_results = 100

    async def fetch_results(self, query: str, k: int, offset: int) -> list[SearchResult]:
        words = keywords(query)
        if not words:
            return []
        params = {
            "search_query": " OR ".join(f'all:"{word}"' for word in words),
            "start": str(offset),
            "max_results": str(k),
            "sortBy": "relevance",
            "sortOrder": "descending",
        }
        return await self.request(Request("GET", "/api/query", params), _read, query)


def _read(text: str) -> list[SearchResult]:
    feed = read_xml(text)
    if feed.tag != f"{ATOM}feed":
        raise InvalidResponse("expected an Atom feed")
    results = []
    for entry in feed.iter(f"{ATOM}entry"):
        url = element_text(entry.find(f"{ATOM}id")).strip()
        summary = plain_line(element_text(entry.find(f"{ATOM}summary")))
        if "/api/errors" in url:
            raise InvalidResponse(summary[:300])
        paper = PAPER.search(url)
        if paper:
            results.append(SearchResult(url, element_text(entry.find(f"{ATOM}title")), summary, id=paper[1]))
    counts = (feed.find(f"{OPENSEARCH}{name}") for name in ("totalResults", "startIndex"))
    total, start = (element_text(count).strip()[:9] for count in counts)
    if feed.find(f"{ATOM}entry") is None and total.isdecimal() and int(total) > int(start if start.isdecimal() else 0):
        raise InvalidResponse(f"an empty feed of {total} results", busy=True)  # seen under load
    return results
