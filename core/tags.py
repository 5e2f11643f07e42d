"""Mark-up as plain text: H<sub>2</sub>O is H2O and 10<sup>6</sup> is 10^6 (core/words.py). The tags of HTML, JATS and
MathML vanish, and where they part blocks or cells of a table, words stay apart."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable
from typing import Any
from xml.etree.ElementTree import Element, SubElement

from ratchet.core.words import LETTERS, parts_numbers, script_sign

SCRIPTS = {"sup": True, "sub": False}
"""The elements of superscripts (True) and subscripts."""
BLOCK_NAMES = """abstract blockquote caption center dd disp-formula div dl dt figcaption h1 h2 h3 h4 h5 h6 li list
    list-item ol p pre sec table tbody tfoot thead title tr ul"""
INLINE_NAMES = """a abbr b bdi bdo big bold cite code del em ext-link font i inline-formula ins italic kbd mark
    monospace q rb rp rt ruby s samp sc small span strike strong time tt u underline var xref"""
MATH_NAMES = """alternatives annotation annotation-xml math mfenced mfrac mi mn mo mover mpadded mroot mrow mspace msqrt
    mstyle msub msubsup msup mtable mtd mtext mtr munder munderover semantics tex-math"""
CELLS = frozenset({"td", "th"})
BREAKS = frozenset({"br", "break", "hr"})
EMPTY = BREAKS | {"img", "link", "meta", "mspace", "wbr"}
"""They have no content."""
BLOCKS = BREAKS | {*BLOCK_NAMES.split()}
MATH_SCRIPTS = frozenset({"msub", "msup", "msubsup"})
NOT_SHOWN = frozenset({"annotation", "annotation-xml", "script", "style"})
NAMES = {*SCRIPTS} | CELLS | BLOCKS | EMPTY | {*INLINE_NAMES.split(), *MATH_NAMES.split()}
TAG = re.compile(
    rf"<(?P<end>/?)(?:jats:|mml:|m:)?(?P<name>{'|'.join(sorted(NAMES))})"
    r"""(?:\s+[\w:.-]+\s*=\s*(?:"[^"<>]*"|'[^'<>]*'|[^\s"'<>=`]+))*\s*(?P<empty>/?)>""",
    re.IGNORECASE,
)
"""A tag of these elements; other angle brackets are part of the text."""
CODE_OR_TAG = re.compile(
    r"^[ \t]*(?P<fence>```+|~~~+)(?s:.*?)(?:(?P=fence)|\Z)|(?<!`)(?P<ticks>`+)(?!`)[^\n]{1,1000}?(?<!`)(?P=ticks)(?!`)"
    f"|{TAG.pattern}",
    re.MULTILINE | re.IGNORECASE,
)
"""The same, or code in Markdown, whose tags are its text."""
PAGE = re.compile(r"<(?:!doctype|html|head|body|script|style)\b", re.IGNORECASE)
"""The beginning of a whole page, or of code that writes one."""
SIMPLE = re.compile(r"[+\-\u2212]?[\d.,]*\w?|[+\-\u2212]")
"""A part of a formula that needs no brackets."""
MAX_LEVELS = 100
ROUNDS = 3
"""The most times that tags may be escaped: publishers send &amp;lt;i&amp;gt; for <i>."""


class PlainWriter:
    """Text written piece by piece, with what has to stand between two pieces of it."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._end = ""
        self.raised: bool | None = None
        """True if the next piece begins a superscript (True) or a subscript."""
        self.apart = False
        """True if a number that the next piece begins with is another one than the text's last."""

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    def piece(self, data: str | None) -> str:
        """Write the piece, and return it with the sign or the blank that it got before it."""
        if not data:
            return ""
        if self.raised is not None:
            data = script_sign(self._end, data.lstrip(), self.raised) + data.lstrip()
        elif self.apart and parts_numbers(self._end, data):
            data = f" {data}"
        self.raised, self.apart = None, False
        self._pieces.append(data)
        self._end = (self._end + data)[-LETTERS:]
        return data

    def end_script(self) -> None:
        self.raised, self.apart = None, True

    def space(self, blank: str) -> None:
        """Write a line break or a blank, unless the text is empty or has one at its end."""
        if self._end and not self._end.endswith(("\n", blank)):
            self.piece(blank)


def tag_name(element: Any) -> str:
    """Return an element's name without its namespace; '' for a comment."""
    return element.tag.rpartition("}")[2].lower() if isinstance(element.tag, str) else ""


def element_text(element: Any) -> str:
    """Return the text of an element of ElementTree or lxml; '' for None."""
    writer = PlainWriter()
    if element is not None:
        _write(element, writer)
    return writer.text


def _write(element: Any, writer: PlainWriter) -> None:
    name = tag_name(element)
    if not name or name in NOT_SHOWN:
        return
    if name == "math":
        writer.apart = True
        writer.piece(_formula(element))
        writer.apart = True
        return
    blank = "\n" if name in BLOCKS else " " if name in CELLS else ""
    if blank:
        writer.space(blank)
    if name in SCRIPTS:
        writer.raised = SCRIPTS[name]
    writer.piece(element.text)
    shown = [child for child in element if tag_name(child) == "math"] if name == "alternatives" else element
    for child in shown:
        _write(child, writer)
        writer.piece(child.tail)
    if name in SCRIPTS:
        writer.end_script()
    if blank and name not in BREAKS:
        writer.space(blank)


def _formula(element: Any) -> str:
    """Return the text of an element of MathML, in one line."""
    name = tag_name(element)
    parts = [_formula(child) for child in element if tag_name(child) not in {"", *NOT_SHOWN}]
    if not len(element):
        return " ".join((element.text or "").split())
    if name in MATH_SCRIPTS and len(parts) > 1:
        writer = PlainWriter()
        writer.piece(_grouped(parts[0]) if name == "msup" else parts[0])
        for part, raised in zip(parts[1:], (False, True) if name == "msubsup" else (name == "msup",), strict=False):
            if raised and not SIMPLE.fullmatch(part):
                writer.piece(f"^({part})")
            else:
                writer.raised = raised
                writer.piece(part)
        return writer.text
    if name == "mfrac":
        return "/".join(map(_grouped, parts))
    if name in ("msqrt", "mroot"):
        return "√" + _grouped(_joined(parts if name == "msqrt" else parts[:1]))
    if name == "mfenced":
        return f"({', '.join(parts)})"
    if name in ("mtable", "mtr", "munder", "mover", "munderover"):
        return " ".join(parts)
    return _joined(parts)


def _joined(parts: Iterable[str]) -> str:
    writer = PlainWriter()
    for part in parts:
        writer.apart = True
        writer.piece(part)
    return writer.text


def _grouped(part: str) -> str:
    return part if part.isalnum() or SIMPLE.fullmatch(part) else f"({part})"


def without_tags(text: str, is_markup: bool = False) -> str:
    """Return the plain text of a text that may hold tags.

    Unless `is_markup`, as for a field of a service's answer, a pair of tags or a line break has to say that it is
    mark-up. Then entities and escaped tags are read too. Any other text ("a < b"), a whole page, and code between the
    backticks of Markdown stay as they are.
    """
    if not is_markup and ("<" not in text or PAGE.search(text)):
        return text
    for _ in range(ROUNDS):
        root, found = _tree(text, keep_code=not is_markup)
        if not found and not is_markup:
            return text
        before, text = text, element_text(root)
        if text == before or root.find(".//code") is not None:
            break
    return text


def _tree(text: str, keep_code: bool) -> tuple[Element, bool]:
    """Return the elements of a text with its entities read, and whether it has a pair of tags or a line break. A tag
    that closes nothing is left out, one that is not closed ends with the element around it."""
    stack = [Element("text")]
    found, at = False, 0
    pieces: list[str] = []

    def end_text() -> None:
        if len(stack[-1]):
            stack[-1][-1].tail = "".join(pieces)
        else:
            stack[-1].text = "".join(pieces)
        pieces.clear()

    for token in (CODE_OR_TAG if keep_code else TAG).finditer(text):
        pieces.append(html.unescape(text[at : token.start()]))
        at = token.end()
        if token["name"] is None:
            pieces.append(token[0])
            continue
        name = token["name"].lower()
        open_names = [element.tag for element in stack]
        if not token["end"]:
            end_text()
            element = SubElement(stack[-1], name)
            found = found or name in BREAKS
            if not token["empty"] and name not in BREAKS and len(stack) < MAX_LEVELS:
                stack.append(element)
        elif name in open_names:
            end_text()
            del stack[len(open_names) - 1 - open_names[::-1].index(name) :]
            found = True
    pieces.append(html.unescape(text[at:]))
    end_text()
    return stack[0], found
