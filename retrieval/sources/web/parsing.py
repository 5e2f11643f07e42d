"""Parses responses from outside into plain text, checked JSON and XML without entities."""

from __future__ import annotations

import re
from typing import Any
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

from ratchet.core.stop_words import NO_TOPIC, content_terms
from ratchet.core.text import plain_line, plain_text
from ratchet.core.text import read_json as text_json

MAX_DEPTH = 200
"""Elements inside each other."""


BUSY = re.compile(
    r"""rate.?limit | (?:rate|limit|quota).exceeded | too.many.requests | (?:too|is).busy | overload | temporar
    | try.(?:again|later) | tim(?:ed?|ing).?out | unavailable | backend.failed | internal.(?:server.)?error
    | error.forwarding
    | "(?:status|code|statusCode)":\s*"?(?:429|50[0234])\b""",
    re.I | re.X,
)
"""How services say in an answer of status 200 that they have none now."""


class InvalidResponse(ValueError):
    """A response is not in the service's format."""

    def __init__(self, message: str, busy: bool | None = None) -> None:
        """`busy`: whether the next try may bring an answer; None: the response's own words decide it."""
        super().__init__(message)
        self.busy = busy


def plain(text: str) -> str:
    """`plain_text` with single blanks and at most one empty line between two lines.

    A prompt is built from tokens, so that no text of a passage can be a turn.
    """
    lines = [" ".join(line.split()) for line in plain_text(text).split("\n")]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()


def keywords(query: str, max_words: int = 20) -> list[str]:
    """The query's words that carry its topic, in order and once each; all its words where none does."""
    return list({term.casefold(): term for term in content_terms(query, NO_TOPIC)}.values())[:max_words]


def shorter_queries(query: str) -> list[str]:
    """The query's keywords, then half of them, the first ones, and so on down to one word. Whoever writes a query puts
    the most important words first."""
    words, shorter = keywords(query), []
    while words:
        shorter.append(" ".join(words))
        words = words[: (len(words) + 1) // 2] if len(words) > 1 else []
    return [text for text in shorter if text != query]


def read_json(text: str) -> dict[str, Any]:
    """Parse a JSON object. Raises InvalidResponse for anything else."""
    try:
        value = text_json(text, finite=False)  # a score that nobody reads loses no result
    except ValueError as error:
        raise InvalidResponse(f"not valid JSON: {plain_line(str(error))[:100]}") from None
    if not isinstance(value, dict):
        raise InvalidResponse(f"expected a JSON object, got {type(value).__name__}")
    return value


def objects_in(value: Any, key: str) -> list[dict[str, Any]]:
    """The objects in value[key], which must be a list."""
    items = value.get(key) if isinstance(value, dict) else None
    if not isinstance(items, list):
        raise InvalidResponse(f"{key!r} is no list")
    return [item for item in items if isinstance(item, dict)]


def text_of(value: Any) -> str:
    """A text field, or nothing: services leave out what they do not have, or say null."""
    return value if isinstance(value, str) else ""


def read_xml(text: str) -> Element:
    """The root element.

    A document type of its own (where entities, and with them bombs, are declared) is refused; one that is only named,
    as PubMed does, is not fetched.
    """
    builder, depth = TreeBuilder(), 0

    def doctype(name: str, system: str | None, public: str | None, internal: int) -> None:
        if internal:
            raise InvalidResponse("XML that declares entities of its own is not read")

    def start(name: str, attributes: dict[str, str]) -> None:
        nonlocal depth
        depth += 1
        if depth > MAX_DEPTH:
            raise InvalidResponse(f"XML that is more than {MAX_DEPTH} elements deep is not read")
        builder.start(_tag(name), attributes)

    def end(name: str) -> None:
        nonlocal depth
        depth -= 1
        builder.end(_tag(name))

    parser = expat.ParserCreate(namespace_separator="}")
    parser.buffer_text = True
    parser.StartDoctypeDeclHandler = doctype
    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = builder.data
    try:
        parser.Parse(text, True)
    except expat.ExpatError as error:
        raise InvalidResponse(f"not valid XML: {error}") from None
    return builder.close()


def _tag(name: str) -> str:
    """ElementTree's form of a name with its namespace."""
    return f"{{{name}" if "}" in name else name
