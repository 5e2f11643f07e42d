"""Serper: Google's results. A passage is a result's snippet; boxes beside the results are left out."""

from __future__ import annotations

from retrieval.sources.web.client import Access, Request
from retrieval.sources.web.parsing import listed, read_json, text_of
from retrieval.sources.web.service import Hit, WebService


class Serper(WebService):
    service = "serper"
    url = "https://google.serper.dev"
    about = "Searches the web with Google and returns snippets of pages."
    key_env = "SERPER_API_KEY"
    key_needed = True
    per_second = 5.0
    most = 100
    longest_query = 400

    @classmethod
    def access(cls, key: str, contact: str) -> Access:
        return Access({"X-API-KEY": key})

    async def hits(self, query: str, k: int, offset: int) -> list[Hit]:
        """The first offset + k are asked for: the service's own pages hold ten each."""
        results = min(offset + k, self.most)
        found = await self.ask(Request("POST", "/search", body={"q": query, "num": results}), read, query)
        return found[offset : offset + k]


def read(text: str) -> list[Hit]:
    return [
        Hit(url=text_of(item.get("link")), title=text_of(item.get("title")), text=text_of(item.get("snippet")))
        for item in listed(read_json(text), "organic")
    ]
