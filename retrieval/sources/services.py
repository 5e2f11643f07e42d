"""The search services over HTTP: how each is asked and read. Another one is a class here that registry.py lists."""

from __future__ import annotations

import re
from typing import Any
from xml.etree.ElementTree import Element

from ratchet.core.tags import element_text, without_tags
from ratchet.core.text import plain_line
from ratchet.retrieval.sources.client import Access, Request
from ratchet.retrieval.sources.service import (
    InvalidResponse,
    SearchResult,
    WebService,
    keywords,
    objects_in,
    read_json,
    read_xml,
    text_of,
)


class Tavily(WebService):
    """Tavily: the live web, in passages chosen for the query. Tool-MAD's search tool (section III: three results)."""

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
        hits = await self.request(Request("POST", "/search", body=body), _read_tavily, query)
        return hits[offset : offset + k]


def _read_tavily(text: str) -> list[SearchResult]:
    return [
        SearchResult(
            url=text_of(item.get("url")),
            title=text_of(item.get("title")),
            text=text_of(item.get("content")),
            score=_score(item.get("score")),
        )
        for item in objects_in(read_json(text), "results")
    ]


MAX_PAGES = 5
"""Most pages of one search of SearXNG."""


def _score(value: object) -> float | None:
    return float(value) if isinstance(value, float | int) and abs(value) < 1e9 else None


class Serper(WebService):
    """Serper: Google's results. A passage is a result's snippet. Boxes beside the results are left out; an answer box
    without results is one."""

    service = "serper"
    url = "https://google.serper.dev"
    about = "Searches the web with Google and returns snippets of pages."
    key_env = "SERPER_API_KEY"
    key_needed = True
    per_second = 5.0
    max_results = 100
    max_query_characters = 400
    minus_excludes = True

    @classmethod
    def access(cls, key: str, contact: str) -> Access:
        return Access({"X-API-KEY": key})

    async def fetch_results(self, query: str, k: int, offset: int) -> list[SearchResult]:
        """The first offset + k are asked for: the service's own pages hold ten each."""
        results = min(offset + k, self.max_results)
        hits = await self.request(Request("POST", "/search", body={"q": query, "num": results}), _read_serper, query)
        return hits[offset : offset + k]


def _read_serper(text: str) -> list[SearchResult]:
    answer = read_json(text)
    box = answer.get("answerBox")
    if isinstance(box, dict) and not answer.get("organic"):
        said = "\n".join(filter(None, (text_of(box.get(key)) for key in ("answer", "snippet"))))
        return [SearchResult(url=text_of(box.get("link")), title=text_of(box.get("title")), text=said)]
    return [
        SearchResult(url=text_of(item.get("link")), title=text_of(item.get("title")), text=text_of(item.get("snippet")))
        for item in objects_in(answer, "organic")
    ]


class Searxng(WebService):
    """SearXNG, a metasearch engine that people run themselves: it asks other engines, and needs no key.

    A passage is a result's snippet. An instance answers in JSON only where `search.formats` of its settings.yml has
    `json`; others say 403.
    """

    service = "searxng"
    about = "Searches the web and returns snippets of pages."
    per_second = 2.0
    max_results = 50
    max_query_characters = 400
    minus_excludes = True

    @classmethod
    def access(cls, key: str, contact: str) -> Access:
        return Access(refused="allow the format json: `search: {formats: [html, json]}` in its settings.yml")

    async def fetch_results(self, query: str, k: int, offset: int) -> list[SearchResult]:
        """The service decides how many results a page has: pages are asked for until there are enough."""
        hits: list[SearchResult] = []
        for page in range(1, MAX_PAGES + 1):
            params = {"q": query, "format": "json", "pageno": str(page)}
            params |= {"language": self.language} if self.language else {}
            found = await self.request(Request("GET", "/search", params), _read_searxng, query)
            known = {hit.url for hit in hits}
            fresh = [hit for hit in found if hit.url not in known]
            hits += fresh
            if len(hits) >= offset + k or not fresh:
                break
        return hits[offset : offset + k]


def _read_searxng(text: str) -> list[SearchResult]:
    return [
        SearchResult(
            url=text_of(item.get("url")),
            title=text_of(item.get("title")),
            text=text_of(item.get("content")),
        )
        for item in objects_in(read_json(text), "results")
    ]


BUSY = re.compile(r"ratelimited|maxlag|readonly|internal_api_error.*|pool-.*|.*too-busy.*|.*backend-error")
"""Codes of MediaWiki's errors, and of its search engine's, that may be gone on the next try."""


class Wikipedia(WebService):
    """Wikipedia, in English or another language.

    One request searches and brings the introductions of the pages that it found. A passage is the snippet that
    matched, where that stands further down the page, and then the introduction, of which a cut takes the end.
    Wikimedia's rules ask for a contact: set the environment variable RATCHET_CONTACT.
    """

    service = "wikipedia"
    url = "https://{language}.wikipedia.org"
    about = "Searches Wikipedia and returns the introductions of articles."
    per_second = 5.0
    max_results = 20
    minus_excludes = True

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
        return await self.request(Request("GET", "/w/api.php", params), _read_wikipedia, query)


def _read_wikipedia(text: str) -> list[SearchResult]:
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
    return [_wikipedia_result(item, pages.get(item.get("pageid"), {})) for item in items]


def _wikipedia_result(item: dict[str, Any], page: dict[str, Any]) -> SearchResult:
    # Of HTML: as the plain text that the service offers, 10<sup>6</sup> would be 106.
    intro = without_tags(text_of(page.get("extract")), is_markup=True).strip()
    snippet = plain_line(without_tags(text_of(item.get("snippet")), is_markup=True))
    parts = [snippet if snippet not in plain_line(intro) else "", intro]
    return SearchResult(
        url=text_of(page.get("fullurl")) or f"page {item.get('pageid')}",
        title=text_of(item.get("title")),
        text="\n".join(part for part in parts if part),
    )


ATOM = "{http://www.w3.org/2005/Atom}"
OPENSEARCH = "{http://a9.com/-/spec/opensearch/1.1/}"
PAPER = re.compile(r"arxiv\.org/abs/(\S+)$")


class Arxiv(WebService):
    """arXiv: abstracts, by the Atom feed. Its rules: one request in three seconds.

    The query language has operators that a model's query could trip over, so that a query is sent as its words, any of
    which may match, the best match first.
    """

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
        return await self.request(Request("GET", "/api/query", params), _read_arxiv, query)


def _read_arxiv(text: str) -> list[SearchResult]:
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


class Pubmed(WebService):
    """PubMed: abstracts, by NCBI's E-utilities. Two requests: esearch finds ids, efetch brings the articles.

    It finds papers that have every word of a query, so a search without a result is repeated with fewer words. Its
    rules: three requests a second, ten with a key (NCBI_API_KEY). A paper without an abstract gives its title.
    """

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
    hits = map(_pubmed_result, [*root.iter("PubmedArticle"), *root.iter("PubmedBookArticle")])
    return {hit.id: hit for hit in hits if hit.id}


def _pubmed_result(article: Element) -> SearchResult:
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
    text, label = plain_line(element_text(part)), plain_line(part.get("Label", ""))
    return f"{label}: {text}" if label and text else text


MAX_DEPTH = 1000
"""offset + limit may not be more."""


class SemanticScholar(WebService):
    """Semantic Scholar: abstracts of all sciences. Its 429 is common without a key (S2_API_KEY).

    A paper whose abstract may not be shown gives the service's one-sentence summary, or else its title.
    """

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
        return await self.request(Request("GET", "/graph/v1/paper/search", params), _read_papers, query)


def _read_papers(text: str) -> list[SearchResult]:
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


OPERATORS = re.compile(r'[*?~"\\]')
"""Wildcards and quotes: a question's mark is none, and a wrong one has the whole request refused."""
MAX_ABSTRACT_WORDS = 20_000
"""Words of an abstract: a wrong position must not make a text of any size."""


class OpenAlex(WebService):
    """OpenAlex: abstracts of all sciences, which it gives as an inverted index. Only works with an abstract are asked
    for.

    It finds works that have every word of a query, so a search without a result is repeated with fewer words.
    Tool-MAD's search tool on PubMedQA (section IV-D, figure 7) is this with `summarise: 3`, and keywords that the
    agent writes (`keywords: [search]` in the system's settings). A key (OPENALEX_API_KEY, free) is needed for more
    than a few requests a day.
    """

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
        results = await self.request(Request("GET", "/works", params), _read_openalex, query)
        return results[offset : offset + k]


def _read_openalex(text: str) -> list[SearchResult]:
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
    """Return the text of {word: [positions]}, or nothing."""
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
