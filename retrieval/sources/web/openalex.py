"""OpenAlex: abstracts of all sciences, which it gives as an inverted index. Only works with an abstract are asked for.

It finds works that have every word of a query, so a search without a result is repeated with fewer words. Tool-MAD's
search tool on PubMedQA (section IV-D, figure 7) is this with `summarise: 3`, and keywords that the agent writes
(`keywords: [search]` in the system's settings). A key (OPENALEX_API_KEY, free) is needed for more than a few requests a
day.
"""

from __future__ import annotations

import re
from typing import Any

from ratchet.core.tags import without_tags
from ratchet.retrieval.sources.web.client import Access, Request
from ratchet.retrieval.sources.web.parsing import objects_in, read_json, text_of
from ratchet.retrieval.sources.web.service import SearchResult, WebService

OPERATORS = re.compile(r'[*?~"\\]')
"""Wildcards and quotes: a question's mark is none, and a wrong one has the whole request refused."""
MAX_ABSTRACT_WORDS = 20_000
"""Words of an abstract: a wrong position must not make a text of any size."""


class OpenAlex(WebService):
    """Searches OpenAlex, by its works endpoint."""

    service = "openalex"
    url = "https://api.openalex.org"
    about = "Searches OpenAlex (papers of all sciences) and returns abstracts."
    key_env = "OPENALEX_API_KEY"
    per_second = 10.0
    max_results = 100
    matches_all_words = True

    @classmethod
    def access(cls, key: str, contact: str) -> Access:
        known = {"api_key": key, "mailto": contact}
        return Access(params={name: value for name, value in known.items() if value})

    async def fetch_results(self, query: str, k: int, offset: int) -> list[SearchResult]:
        """Pages are counted in their own size: the first offset + k are asked for."""
        params = {
            "search": OPERATORS.sub(" ", query),
            "filter": "has_abstract:true",
            "select": "id,display_name,abstract_inverted_index",
            "per_page": str(min(offset + k, self.max_results)),
            "page": "1",
        }
        results = await self.request(Request("GET", "/works", params), _read, query)
        return results[offset : offset + k]


def _read(text: str) -> list[SearchResult]:
    return [
        SearchResult(
            url=(url := text_of(work.get("id"))),
            title=without_tags(text_of(work.get("display_name")), is_markup=True),
            text=without_tags(abstract(work.get("abstract_inverted_index")), is_markup=True),
            id=url.rpartition("/")[2],
        )
        for work in objects_in(read_json(text), "results")
    ]


def abstract(index: Any) -> str:
    """The text of {word: [positions]}, or nothing."""
    if not isinstance(index, dict):
        return ""
    words = {
        position: word
        for word, positions in index.items()
        if isinstance(positions, list)
        for position in positions
        if isinstance(position, int) and 0 <= position < MAX_ABSTRACT_WORDS
    }
    return " ".join(words[position] for position in sorted(words))
