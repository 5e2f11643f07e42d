"""What a config says under `sources`: checked strictly, opened without a connection, and honest about stand-ins."""

from typing import Any

import pytest

from ratchet.core.errors import UserError
from ratchet.retrieval.sources.registry import SERVICES, open_sources
from ratchet.retrieval.sources.source import ToolError
from tests.helpers.served import Plain
from tests.helpers.web_upstream import sources


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in SERVICES.values():
        if kind.key_env:
            monkeypatch.delenv(kind.key_env, raising=False)


@pytest.mark.parametrize(
    ("name", "settings", "problem"),
    [
        ("index", {"service": "arxiv"}, "the config's own index; choose another"),
        ("my web", {"service": "arxiv"}, r"cannot be a tool's name: character 3 is ' ' \(U\+0020 SPACE\)"),
        ("web", {}, r"sources\.web: service is missing \(known: arxiv, mcp, .*wikipedia\)"),
        ("web", {"service": "bing"}, r"sources\.web: service: 'bing' is not known .*tavily"),
        ("web", {"service": "tavly"}, r"sources\.web: service: 'tavly' is not known .did you mean 'tavily'"),
        ("web", {"service": "arxiv", "modes": "live"}, "modes: unknown key .did you mean 'mode'"),
        ("web", {"service": "arxiv", "mode": "offline"}, "mode: .*local"),
        ("web", {"service": "tavily"}, "needs a key in the environment variable TAVILY_API_KEY; .*mode: local"),
        ("web", {"service": "tavily", "mode": "local", "index": "/nowhere"}, "/nowhere"),
    ],
)
def test_what_cannot_be_opened_is_named(name: str, settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        open_sources(sources(**{name: settings}), Plain())


def test_services_without_a_need_for_keys_open_without_one() -> None:
    free = [name for name, kind in SERVICES.items() if not kind.key_needed]
    assert sorted(free) == ["arxiv", "openalex", "pubmed", "searxng", "semantic_scholar", "wikipedia"]
    own = {"searxng": {"url": "http://127.0.0.1:1"}}
    opened = open_sources(sources(**{name: {"service": name, **own.get(name, {})} for name in free}), Plain())
    assert list(opened) == free
    assert open_sources({}, Plain()) == {}


def test_the_digest_is_of_what_changes_results() -> None:
    def digest(**settings: Any) -> str:
        return open_sources(sources(web={"service": "openalex", **settings}), Plain())["web"].digest

    assert digest() == digest(mode="replay") == digest(max_tokens=10, cache="elsewhere")
    others = [
        digest(),
        digest(service="arxiv"),
        digest(summarise=2),
        digest(summarise=3),
        digest(mode="local"),
    ]
    assert len(set(others)) == len(others)


@pytest.mark.parametrize("service", SERVICES)
async def test_the_index_stands_in_for_every_service_and_says_so(
    service: str, capsys: pytest.CaptureFixture[str]
) -> None:
    source = open_sources(sources(web={"service": service, "mode": "local"}), Plain())["web"]
    assert f"sources.web: mode: local, the config's index answers in place of {service}" in capsys.readouterr().err
    assert await source.search("harbour", 4, 2) == Plain().search("harbour", 4, 2)
    (spec,) = await source.tools()
    assert spec.name == "web" and f"local stand-in for {service}" in spec.about
    found = await source.call("web", {"query": "harbour"}, 3)
    assert list(found.passages) == Plain().search("harbour", 3)
    for wrong in ({}, {"query": 3}, {"query": " "}, {"query": "a", "k": 5}):
        with pytest.raises(ToolError, match='"query"'):
            await source.call("web", wrong, 3)
    assert await source.search(" ", 3) == []
    with pytest.raises(ValueError, match="negative"):
        await source.search("a", -1)
