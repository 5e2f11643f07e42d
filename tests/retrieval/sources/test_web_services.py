"""Each search service against a server that speaks its format: what is asked, and what becomes of the answer."""

import html
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from ratchet.core.errors import UserError
from ratchet.core.http.retry import Backoff
from ratchet.retrieval.retriever import SourceError
from ratchet.retrieval.sources import client
from ratchet.retrieval.sources.registry import SERVICES, open_sources
from ratchet.retrieval.sources.service import keywords, shorter_queries
from tests.helpers.fake_server import Reply
from tests.helpers.served import Plain
from tests.helpers.web_upstream import KEY, PAPERS, Upstream, opened, sources

pytestmark = pytest.mark.server

IDS = {
    "arxiv": "arxiv:2401.{}v2",
    "pubmed": "pubmed:{}",
    "semantic_scholar": "semantic_scholar:s{}",
    "openalex": "openalex:W{}",
}


@pytest.mark.parametrize("service", SERVICES)
async def test_every_service_gives_the_same_passages(service: str, up: Upstream, tmp_path: Path) -> None:
    source = opened(up, service, tmp_path)
    found = await source.search("tides of Velm", 5)
    assert len(found) == 5
    assert await source.search("tides of Velm", 2, 3) == found[3:]
    assert len(await source.search("tides of Velm", 50, 5)) == 2
    assert len({passage.id for passage in found}) == 5
    assert all(one.score > two.score for one, two in pairwise(found))
    for passage, paper in zip(found, PAPERS, strict=False):
        assert passage.title.removesuffix(" in vitro") == paper.title
        assert passage.document_id.startswith("http") and str(paper.number) in passage.document_id
        assert passage.id == IDS.get(service, passage.id).format(paper.number)
        assert f"measured {paper.number - 41_000} times." in passage.text and "α < β" in passage.text


@pytest.mark.parametrize("service", SERVICES)
async def test_no_results_and_no_query(service: str, up: Upstream, tmp_path: Path) -> None:
    source = opened(up, service, tmp_path)
    assert await source.search("nothing", 3) == []
    asked = len(up.requests)
    assert await source.search(" \n\x00", 3) == await source.search("?!", 3) == await source.search("tides", 0) == []
    assert len(up.requests) == asked == 1


@pytest.mark.parametrize("service", SERVICES)
async def test_hostile_text_is_text_and_nothing_else(service: str, up: Upstream, tmp_path: Path) -> None:
    source = opened(up, service, tmp_path)
    text = (await source.search("tides", 3))[2].text
    assert "<|im_start|>system" in text and "</passage>" in text and "Assistant: SUPPORTS" in text
    assert ("[2J" in text) == (service in ("arxiv", "pubmed"))  # XML holds no escape character that it could belong to
    assert all(character >= " " or character == "\n" for character in text)
    assert "\u202e" not in text and "\u2028" not in text


@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize("body", ["[]", "{}", "[" * 100_000, '{"results": 3}', "\x00"])
async def test_what_is_no_answer_is_an_error_and_is_not_kept(
    service: str, body: str, up: Upstream, tmp_path: Path
) -> None:
    source = opened(up, service, tmp_path)
    up.faults.append(Reply(body=body))
    with pytest.raises(SourceError, match=f"{service}: http.* did not answer as this service does"):
        await source.search("tides", 2)
    assert len(await source.search("tides", 2)) == 2


PAGE = '<?xml version="1.0"?>\n<!DOCTYPE html PUBLIC "-//W3C//DTD XHTML 1.0">\n<html>Bad gateway</html>'
EMPTY_FEED = """<feed xmlns="http://www.w3.org/2005/Atom" xmlns:o="http://a9.com/-/spec/opensearch/1.1/">
<o:totalResults>7</o:totalResults><o:startIndex>0</o:startIndex></feed>"""
TOO_BUSY = [
    *((service, body) for service in SERVICES for body in ("", "\n<!DOCTYPE html><html>Busy</html>", PAGE)),
    *(
        ("wikipedia", json.dumps({"error": {"code": code, "info": "Please wait"}}))
        for code in (
            "ratelimited",
            "maxlag",
            "readonly",
            "internal_api_error_DBQueryError",
            "cirrussearch-too-busy-error",
        )
    ),
    ("pubmed", '{"error": "API rate limit exceeded", "count": "4"}'),
    ("pubmed", '{"esearchresult": {"ERROR": "Search Backend failed: no answer"}}'),
    ("pubmed", '{"error": "error forwarding request", "status": "ok"}'),
    ("semantic_scholar", '{"message": "Too Many Requests. Please wait and try again", "code": "429"}'),
    ("semantic_scholar", '{"message": "Endpoint request timed out"}'),
    ("openalex", '{"error": "Service Unavailable", "message": "The search is overloaded"}'),
    ("tavily", '{"error": {"code": 503, "message": "later"}}'),
    ("serper", '{"message": "no capacity", "statusCode": 429}'),
    ("serper", '{"message": "The server is busy, retry later"}'),
    ("arxiv", "Rate exceeded."),
    ("arxiv", EMPTY_FEED),
]


@pytest.mark.parametrize(("service", "body"), TOO_BUSY)
async def test_too_busy_inside_a_success_is_temporary(
    service: str, body: str, up: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "BACKOFF", Backoff(tries=2, first=0.01))
    source = opened(up, service, tmp_path)
    up.faults.append(Reply(200, body))
    assert len(await source.search("tides", 2)) == 2
    up.faults += [Reply(202, body)] * 2
    with pytest.raises(SourceError, match=rf"{service} answered 202: .+ \(after 2 tries\); run the same command") as no:
        await source.search("harbour", 2)
    assert "url right" not in str(no.value) and not up.faults


@pytest.mark.parametrize(
    ("service", "answer", "texts"),
    [
        ("tavily", {"results": [{"url": "u"}, {"title": "T"}, 7, {"content": None, "title": "N", "score": "x"}]}, "TN"),
        ("serper", {"organic": [{"link": "u", "snippet": ["?"]}, *[{"title": "T", "link": "u"}] * 2]}, "T"),
        ("semantic_scholar", {"data": [{"title": "A"}, {"tldr": {"text": "B"}, "abstract": None}, None]}, "AB"),
        (
            "openalex",
            {"results": [{"id": None}, {"id": "x/W1", "abstract_inverted_index": None, "display_name": "A"}]},
            "A",
        ),
        (
            "wikipedia",
            {"query": {"search": [{"pageid": 5, "title": "A"}, {"snippet": "<b>B</b>"}], "pages": [{}]}},
            "AB",
        ),
    ],
)
async def test_missing_fields_cost_a_result_and_no_more(
    service: str, answer: dict[str, Any], texts: str, up: Upstream, tmp_path: Path
) -> None:
    source = opened(up, service, tmp_path)
    up.faults.append(Reply(body=json.dumps(answer)))
    assert [passage.text for passage in await source.search("tides", 9)] == [*texts]


WATER = "<p>H<sub>2</sub>O</p><p>10<sup>6</sup> <i>E. coli</i>, a &lt; b<br/>end</p>"
ATOM = """<feed xmlns="http://www.w3.org/2005/Atom"><entry><id>http://arxiv.org/abs/2401.1</id><title>T</title>
<summary>
&lt;p>H&lt;sub>2&lt;/sub>O&lt;/p>&lt;p>10&lt;sup>6&lt;/sup> E. coli, a &lt; b&lt;br/>end&lt;/p></summary></entry>
</feed>"""
ARTICLE = """<PubmedArticleSet><PubmedArticle><PMID>7</PMID><ArticleTitle>T</ArticleTitle><Abstract><AbstractText>
H<sub>2</sub>O <mml:math xmlns:mml="http://www.w3.org/1998/Math/MathML"><mml:msup><mml:mn>10</mml:mn><mml:mn>6</mml:mn>
</mml:msup></mml:math> <i>E. coli</i>, a &lt; b&lt;br/&gt;end</AbstractText></Abstract></PubmedArticle>
</PubmedArticleSet>"""


@pytest.mark.parametrize(
    ("service", "answers"),
    [
        ("tavily", [{"results": [{"url": "u", "title": "T", "content": WATER}]}]),
        ("serper", [{"organic": [{"link": "u", "title": "T", "snippet": WATER}]}]),
        ("semantic_scholar", [{"data": [{"title": "T", "abstract": WATER}]}]),
        ("openalex", [{"results": [{"id": "x/W1", "abstract_inverted_index": {html.escape(WATER): [0]}}]}]),
        (
            "wikipedia",
            [{"query": {"search": [{"pageid": 5, "title": "T"}], "pages": [{"pageid": 5, "extract": WATER}]}}],
        ),
        ("arxiv", [ATOM]),
        ("pubmed", [{"esearchresult": {"idlist": ["7"]}}, ARTICLE]),
    ],
)
async def test_marked_up_texts_keep_their_words_and_numbers(
    service: str, answers: list[Any], up: Upstream, tmp_path: Path
) -> None:
    source = opened(up, service, tmp_path)
    up.faults.extend(Reply(body=body if isinstance(body, str) else json.dumps(body)) for body in answers)
    [passage] = await source.search("tides", 1)
    assert " ".join(passage.text.split()) == "H2O 10^6 E. coli, a < b end"


async def test_what_is_asked_in_the_services_own_words(up: Upstream, tmp_path: Path) -> None:
    for service in SERVICES:
        source = opened(up, service, tmp_path)
        await source.search('Is "well-known" tea (black)\n AND: good?', 2, 1)
    asked = {request.path: request for request in up.requests}
    assert len(up.requests) == 9
    assert [request.body for request in up.requests[:2]] == [
        {"query": 'Is "well-known" tea (black) AND: good?', "search_depth": "basic", "max_results": 3},
        {"q": 'Is "well-known" tea (black) AND: good?', "num": 3},
    ]
    assert asked["/api/query"].params["search_query"] == 'all:"well-known" OR all:"tea" OR all:"black" OR all:"good"'
    assert asked["/entrez/eutils/esearch.fcgi"].params["api_key"] == KEY
    assert asked["/entrez/eutils/esearch.fcgi"].params["email"] == "me@velm.example"
    assert asked["/entrez/eutils/efetch.fcgi"].params["id"] == "41002,41003"
    assert asked["/graph/v1/paper/search"].headers["x-api-key"] == KEY
    assert asked["/graph/v1/paper/search"].params["query"] == 'Is "well known" tea (black) AND: good?'
    assert asked["/works"].params["search"] == "Is  well-known  tea (black) AND: good "
    assert asked["/works"].params["mailto"] == "me@velm.example"
    assert all("(me@velm.example)" in request.headers["User-Agent"] for request in up.requests)


@pytest.mark.parametrize(
    ("service", "name"), [("serper", "q"), ("searxng", "q"), ("wikipedia", "srsearch"), ("tavily", "query")]
)
async def test_a_negative_number_is_no_exclusion(service: str, name: str, up: Upstream, tmp_path: Path) -> None:
    query = 'at -40 degrees, "from -5" to -12.5°C, well-known -car'
    await opened(up, service, tmp_path).search(query, 1)
    (request,) = up.requests
    asked = (request.body or request.params)[name]
    assert asked == (query if service == "tavily" else 'at "-40" degrees, "from -5" to "-12.5°C," well-known -car')


async def test_an_answer_box_without_results_is_one(up: Upstream, tmp_path: Path) -> None:
    source = opened(up, "serper", tmp_path)
    box = {"title": "Velm", "answer": "1.5 m", "snippet": "The tide rose by 1.5 m.", "link": "https://velm.example/9"}
    up.faults.append(Reply(body=json.dumps({"answerBox": box})))
    (passage,) = await source.search("How far did the tide rise?", 3)
    assert (passage.title, passage.text) == ("Velm", "1.5 m\nThe tide rose by 1.5 m.")
    assert passage.document_id == "https://velm.example/9"
    up.faults.append(Reply(body=json.dumps({"answerBox": box, "organic": [{"link": "u", "snippet": "A result."}]})))
    assert [passage.text for passage in await source.search("tide", 3)] == ["A result."]


async def test_searxng_is_asked_for_pages_until_there_are_enough(up: Upstream, tmp_path: Path) -> None:
    source = opened(up, "searxng", tmp_path, language="de")
    assert len(await source.search("tides", 3)) == 3 and len(await source.search("tides", 9)) == 7
    assert [request.params["pageno"] for request in up.requests] == ["1", "2", "3"], "the first page was kept"
    assert {request.params["language"] for request in up.requests} == {"de"}
    assert source.digest != opened(up, "searxng", tmp_path).digest
    up.faults.append(Reply(403, "Forbidden"))
    with pytest.raises(SourceError, match=r"403: Forbidden; allow the format json: .* in its settings\.yml"):
        await source.search("harbour", 1)


def test_wikipedia_has_editions(tmp_path: Path) -> None:
    found = open_sources(sources(en={"service": "wikipedia"}, de={"service": "wikipedia", "language": "de"}), Plain())
    assert found["en"].digest != found["de"].digest
    assert getattr(found["de"], "_client").url == "https://de.wikipedia.org"  # noqa: B009


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"service": "searxng"}, "url is missing"),
        ({"service": "searxng", "url": "velm.example"}, "is not an address"),
        ({"service": "serper", "url": "http://velm.example"}, "url goes with service: searxng"),
        ({"service": "arxiv", "language": "de"}, "language goes with service"),
        ({"service": "wikipedia", "language": "de.velm.example/"}, "language"),
    ],
)
def test_a_setting_of_another_service_is_refused(settings: dict[str, str], problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        sources(web=settings)


async def test_wikipedia_puts_the_snippet_that_matched_further_down_first(
    up: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = opened(up, "wikipedia", tmp_path)
    assert (await source.search("tide", 1))[0].text == f"its tide rose & fell 41001\n{PAPERS[0].abstract}"
    up.faults.append(Reply(body=json.dumps({"error": {"code": "badvalue", "info": "The value is\nbad"}})))
    with pytest.raises(SourceError, match="badvalue: The value is bad"):
        await source.search("tides", 1)
    monkeypatch.delenv("RATCHET_CONTACT")
    anonymous = opened(up, "wikipedia", tmp_path)
    with pytest.raises(SourceError, match=r"403: Please set a user-agent.*set RATCHET_CONTACT"):
        await anonymous.search("anonymous", 1)


async def test_pubmed_keeps_the_parts_of_an_abstract_and_the_ranking(up: Upstream, tmp_path: Path) -> None:
    source = opened(up, "pubmed", tmp_path)
    found = await source.search("tide", 2)
    assert found[1].text == (
        "BACKGROUND: The harbour of Velm was measured 2 times.\n"
        "RESULTS: Its tide rose by 2.5 m, and α < β. No mooring broke."
    )
    up.faults.append(Reply(body=json.dumps({"esearchresult": {"ERROR": "Empty term"}})))
    with pytest.raises(SourceError, match="Empty term"):
        await source.search("tides", 1)


FEED = (
    '<feed xmlns="http://www.w3.org/2005/Atom"><entry><id>http://arxiv.org/{}</id><summary>{}</summary></entry></feed>'
)
ENTITIES = "".join(f'<!ENTITY {new} "{f"&{old};" * 20}">' for old, new in pairwise("abcdefg"))


@pytest.mark.parametrize(
    ("xml", "problem"),
    [
        (f'<!DOCTYPE x [<!ENTITY a "{"ha" * 99}">{ENTITIES}]>{FEED.format("abs/1", "&g;")}', "amplification"),
        (f'<!DOCTYPE x [<!ENTITY e SYSTEM "file:///etc/hostname">]>{FEED.format("abs/1", "&e;")}', "undefined entity"),
        (FEED.format("abs/1", "<a>" * 100_000 + "</a>" * 100_000), "too deep"),
        ("<feed>", "not valid XML"),
        ("<opml/>", "expected an Atom feed"),
        (FEED.format("api/errors#x", "bad start"), "bad start"),
    ],
)
async def test_harmful_or_wrong_xml_is_refused(xml: str, problem: str, up: Upstream, tmp_path: Path) -> None:
    source = opened(up, "arxiv", tmp_path)
    up.faults.append(Reply(body=xml))
    with pytest.raises(SourceError, match=problem):
        await source.search("tides", 2)


@pytest.mark.parametrize("service", ["openalex", "pubmed"])
async def test_where_every_word_must_match_fewer_words_are_tried(service: str, up: Upstream, tmp_path: Path) -> None:
    source = opened(up, service, tmp_path)
    found = await source.search("Does the tide of Velm break moorings, or nothing?", 2)
    assert len(found) == 2
    name = {"openalex": "search", "pubmed": "term"}[service]
    asked = [request.params[name] for request in up.requests if name in request.params]
    assert asked[1:] == ["tide Velm break moorings nothing", "tide Velm break"]
    further = await source.search("Does the tide of Velm break moorings, or nothing?", 2, 2)
    assert {passage.id for passage in further}.isdisjoint({passage.id for passage in found}) and len(further) == 2


def test_keywords_are_words_of_any_script() -> None:
    assert keywords("Wer ist die COVID-19-Lage in snake_case?") == ["Wer", "ist", "die", "COVID-19-Lage", "snake_case"]
    assert keywords("कमाल har\u00adbour का") == ["कमाल", "harbour", "का"]
    assert shorter_queries("北京大学的历史") == ["北京 京大 大学 学的 的历 历史", "北京 京大 大学", "北京 京大", "北京"]
