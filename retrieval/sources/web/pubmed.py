"""PubMed: abstracts, by NCBI's E-utilities. Two requests: esearch finds ids, efetch brings the articles.

It finds papers that have every word of a query, so a search without a result is repeated with fewer words. Its rules:
three requests a second, ten with a key (NCBI_API_KEY). A paper without an abstract gives its title.
"""

from __future__ import annotations

from xml.etree.ElementTree import Element

from ratchet.core.tags import element_text
from ratchet.core.text import plain_line
from ratchet.retrieval.sources.web.client import Access, Request
from ratchet.retrieval.sources.web.parsing import InvalidResponse, read_json, read_xml, text_of
from ratchet.retrieval.sources.web.service import SearchResult, WebService


class Pubmed(WebService):
    """Searches PubMed, by esearch and efetch."""

    service = "pubmed"
    url = "https://eutils.ncbi.nlm.nih.gov"
    about = "Searches PubMed (medicine, biology) and returns abstracts of papers."
    key_env = "NCBI_API_KEY"
    per_second = 3.0
    per_second_with_key = 10.0
    max_results = 100
    matches_all_words = True

    @classmethod
    def access(cls, key: str, contact: str) -> Access:
        known = {"api_key": key, "email": contact}
        return Access(params={"tool": "ratchet", **{name: value for name, value in known.items() if value}})

    async def fetch_results(self, query: str, k: int, offset: int) -> list[SearchResult]:
        params = {
            "db": "pubmed",
            "term": query,
            "retstart": str(offset),
            "retmax": str(k),
            "sort": "relevance",
            "retmode": "json",
        }
        ids = await self.request(Request("GET", "/entrez/eutils/esearch.fcgi", params), _read_ids, query)
        if not ids:
            return []
        params = {"db": "pubmed", "id": ",".join(ids), "retmode": "xml"}
        articles = await self.request(Request("GET", "/entrez/eutils/efetch.fcgi", params), _read_articles, query)
        return [articles[number] for number in ids if number in articles]


def _read_ids(text: str) -> list[str]:
    answer = read_json(text)
    result = answer.get("esearchresult")
    ids = result.get("idlist") if isinstance(result, dict) else None
    if not isinstance(ids, list):
        said = text_of(answer.get("error")) or text_of(result.get("ERROR") if isinstance(result, dict) else None)
        raise InvalidResponse(plain_line(said)[:300] or "no idlist")
    return [number for number in ids if isinstance(number, str) and number.isascii() and number.isdigit()]


def _read_articles(text: str) -> dict[str, SearchResult]:
    root = read_xml(text)
    if root.tag != "PubmedArticleSet":
        raise InvalidResponse("expected a PubmedArticleSet")
    hits = map(_search_result, [*root.iter("PubmedArticle"), *root.iter("PubmedBookArticle")])
    return {hit.id: hit for hit in hits if hit.id}


def _search_result(article: Element) -> SearchResult:
    number = element_text(article.find(".//PMID")).strip()
    title = article.find(".//ArticleTitle")
    parts = [_part(part) for part in article.findall(".//Abstract/AbstractText")]
    return SearchResult(
        url=f"https://pubmed.ncbi.nlm.nih.gov/{number}/",
        title=element_text(title if title is not None else article.find(".//BookTitle")),
        text="\n".join(part for part in parts if part),
        id=number,
    )


def _part(part: Element) -> str:
    """One part of an abstract, with its label (BACKGROUND, RESULTS...) where it has one."""
    text, label = plain_line(element_text(part)), plain_line(part.get("Label", ""))
    return f"{label}: {text}" if label and text else text
