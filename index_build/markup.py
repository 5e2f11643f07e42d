"""Text and title of HTML pages and PDF files, read by trafilatura and pypdf (the extra `documents`).

Of a page the main content is kept, as Markdown: a row of a table is a line of cells between bars, and code keeps its
lines. Of a PDF file each page's text is kept, in the order in which it is drawn, with the words whole that a line's end
divides (index_build/markup.py). Nothing is fetched, no script is run.
"""

from __future__ import annotations

import contextlib
import logging
import re
from copy import deepcopy
from math import hypot
from pathlib import Path
from typing import Any

import regex

from ratchet.core.errors import UserError, first_line
from ratchet.core.file_kinds import decode_text
from ratchet.core.tags import BLOCKS, CELLS, SCRIPTS, PlainWriter, element_text, tag_name, without_tags
from ratchet.core.tasks import time_limit
from ratchet.core.words import nfkc

HTML_SUFFIXES = frozenset({".html", ".htm", ".xhtml"})
PDF_SUFFIXES = frozenset({".pdf"})
MAX_HTML_BYTES = 20_000_000
MAX_PDF_BYTES = 200_000_000
MAX_PDF_PAGES = 5_000
SECONDS = 120
"""For one file. pypdf reads some 20 to 100 pages a second."""
MAX_ELEMENTS = 10_000
"""Elements of a page above which all of its text is taken: finding the main content takes minutes for huge tables."""
CHARSET = re.compile(rb"""(?:charset|\bencoding)\s*=\s*["']?\s*([a-z0-9.:_-]+)""", re.IGNORECASE)
UTF = frozenset({"utf-8", "utf8", "utf-7", "utf-16", "utf-16le", "utf-16be", "utf-32"})
"""Encodings that a page, being no UTF-8, may declare wrongly."""
EMPHASIS = ("b", "i", "em", "strong", "u", "big", "small", "font")
BODY = re.compile("<body", re.IGNORECASE)

logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # it warns of each oddity of a file that it reads all the same
logging.getLogger("trafilatura").setLevel(logging.CRITICAL)


def read_markup(path: Path) -> tuple[str, str]:
    """Return (title, text) of an HTML page or a PDF file; '' for a title that it does not have. Raises UserError that
    names it."""
    is_pdf = path.suffix.lower() in PDF_SUFFIXES
    limit = MAX_PDF_BYTES if is_pdf else MAX_HTML_BYTES
    if path.stat().st_size > limit:
        raise UserError(f"{path}: larger than {limit / 1e6:.0f} MB; divide it, or remove it from the folder")
    with time_limit(SECONDS, f"{path}: takes longer than {SECONDS} s to read; divide it, or remove it"):
        return _read_pdf(path) if is_pdf else _read_html(path)


def _read_html(path: Path) -> tuple[str, str]:
    import trafilatura
    from trafilatura.settings import DEFAULT_CONFIG
    from trafilatura.utils import load_html

    text = _html_text(path.read_bytes(), path)
    if not BODY.search(text):
        text = f"<html><body>{text}</body></html>"
    try:
        tree = load_html(text)
        if tree is None:
            raise UserError(f"{path}: no text can be read in this HTML file; remove it from the folder")
        title = " ".join(without_tags(tree.findtext(".//title") or "").split())
        _write_scripts(tree)
        if sum(1 for _ in tree.iter()) > MAX_ELEMENTS:
            return title, trafilatura.html2txt(tree)
        config = deepcopy(DEFAULT_CONFIG)
        config["DEFAULT"]["MIN_EXTRACTED_SIZE"] = "10"  # else a short page loses its tables and its code
        content = trafilatura.extract(
            tree, output_format="markdown", favor_recall=True, include_comments=False, config=config
        )
        return title, content or trafilatura.html2txt(_write_scripts(load_html(text)))
    except UserError:
        raise
    except Exception as error:  # of two libraries, and whatever a broken page makes them do
        raise UserError(f"{path}: cannot be read as HTML ({first_line(error)}); remove it from the folder") from error


def _write_scripts(tree: Any) -> Any:
    """The tree with formulas, superscripts and subscripts written as plain text, and without emphasis: the asterisks of
    Markdown would cut the words that have it inside them."""
    from lxml.etree import iterwalk

    for formula in list(tree.iter("math")):
        text = element_text(formula)
        formula.clear(keep_tail=True)
        formula.tag, formula.text = "span", text
    writer = PlainWriter()
    for event, element in iterwalk(tree, events=("start", "end")):
        name = tag_name(element)
        if event == "start":
            if name in BLOCKS | CELLS:
                writer.space("\n")
            if name in SCRIPTS:
                writer.raised = SCRIPTS[name]
            element.text = writer.piece(element.text) or element.text
        else:
            if name in SCRIPTS:
                writer.end_script()
            element.tail = writer.piece(element.tail) or element.tail
    for element in list(tree.iter(*SCRIPTS, *EMPHASIS)):
        element.drop_tag()
    for element in list(tree.iter("div", "figcaption", "figure")):  # what trafilatura drops from an article
        holds_blocks = any(tag_name(child) in BLOCKS for child in element.iterdescendants())
        if (element.text or "").strip() and not holds_blocks:
            element.tag = "p"
        elif element.tag == "figure":
            element.tag = "div"
    return tree


def _html_text(data: bytes, path: Path) -> str:
    """Decode as UTF-8, else in the encoding that the page declares, else as `decode_text` does it."""
    declared = CHARSET.search(data[:4096])
    with contextlib.suppress(UnicodeDecodeError):
        return data.decode("utf-8-sig") if b"\0" not in data else decode_text(data, path)[0]
    if declared and (name := declared[1].decode().lower()) not in UTF:
        with contextlib.suppress(LookupError, ValueError):  # a name of no encoding, or of none for text
            return data.decode(name, "replace")
    return decode_text(data, path)[0]


def _read_pdf(path: Path) -> tuple[str, str]:
    from pypdf import PdfReader
    from pypdf.errors import DependencyError

    try:
        with PdfReader(path) as reader:
            if reader.is_encrypted and not reader.decrypt(""):
                raise UserError(f"{path}: needs a password; save it without one, or remove it from the folder")
            if len(reader.pages) > MAX_PDF_PAGES:
                raise UserError(f"{path}: has more than {MAX_PDF_PAGES:,} pages; divide it")
            title = (reader.metadata.title if reader.metadata else None) or ""
            pages = [page_text(page) for page in reader.pages]
    except UserError:
        raise
    except DependencyError as error:
        raise UserError(f"{path}: is encrypted; save it without a password, or remove it from the folder") from error
    except Exception as error:  # whatever a broken file makes the library do
        raise UserError(f"{path}: cannot be read as PDF ({first_line(error)}); remove it from the folder") from error
    text = join_hyphenated("\n\n".join(pages))
    if not text.strip():
        raise UserError(f"{path}: holds no text, as where its pages are scanned; run OCR over it, or remove it")
    return " ".join(title.split()), text.encode("utf-8", "replace").decode()


SMALLER = 0.85
"""A superscript or subscript is at most this share of the size of the text before it."""
SAME_LINE = 0.05
"""Baselines nearer than this share of the size are the same."""
WORD = regex.compile(r"[\p{L}\p{M}]+")
HYPHEN = regex.compile(r"(?<before>[\p{L}\p{M}]+)(?<hyphen>[-\u2010\u00ad])[^\S\n]*\n\s*(?<after>[\p{L}\p{M}]+)")
NUMBER_HYPHEN = regex.compile(
    r"(?<=[\p{L}\p{N}][-\u2010])[^\S\n]*\n\s*(?=\p{N})|(?<=\p{N}[-\u2010])[^\S\n]*\n\s*(?=\p{L})"
)
COMPOUNDS = frozenset({"self", "well"})
"""Words that keep the hyphen behind them."""
SUSPENDED = frozenset({"and", "bis", "oder", "or", "to", "und"})
"""Words behind a hyphen that stands for a word: "short- and long-term"."""


def page_text(page: Any) -> str:
    """Return the text of a page of pypdf."""
    pieces: list[tuple[str, float, float]] = []

    def visit(text: str, outer: list[float], inner: list[float], font: Any, size: float) -> None:
        if text:
            scale = hypot(inner[2], inner[3]) * hypot(outer[2], outer[3])
            pieces.append((text, size * scale, inner[4] * outer[1] + inner[5] * outer[3] + outer[5]))

    text = str(page.extract_text(visitor_text=visit))
    if "".join(piece for piece, _, _ in pieces).split() != text.split():
        return text
    writer = PlainWriter()
    base_size = base_height = 0.0
    script = ""  # of which several pieces may be drawn, a sign and a number
    raised: bool | None = None
    before = " "
    for piece, size, height in [*pieces, ("", 0.0, 0.0)]:
        level = height - base_height
        smaller = 0 < size <= SMALLER * base_size and not piece[0].isspace() and (script or not before[-1].isspace())
        now = level > -SAME_LINE * base_size if smaller else None
        if script and now != raised:
            writer.raised = raised
            writer.piece(script)
            writer.end_script()
            script = ""
        if not smaller or (not script and abs(level) <= SAME_LINE * base_size and piece[0].isalpha()):  # small capitals
            if not smaller:
                base_size, base_height = size, height
            writer.piece(piece)
        else:
            script, raised = script + piece, now
        before = piece
    return writer.text


def join_hyphenated(text: str) -> str:
    """Return the text with the words whole that end a line with a hyphen.

    The hyphen goes where it is a soft one, where the word without it stands elsewhere in the text, and where the part
    before it is no word of the text. Otherwise it belongs to the word, and only the line's end goes.
    """
    words = {word.casefold() for word in WORD.findall(nfkc(HYPHEN.sub(" ", text)))}

    def whole(match: regex.Match[str]) -> str:
        before, after = match["before"], match["after"]
        first, joined = nfkc(before).casefold(), nfkc(before + after).casefold()
        if match["hyphen"] == "\u00ad" or joined in words:
            return f"{before}{after}"
        if after in SUSPENDED:
            return f"{before}- {after}"
        named = after[0].isupper() and not before.isupper()
        if len(before) == 1 or named or first in words or first in COMPOUNDS:
            return f"{before}-{after}"
        return f"{before}{after}"

    return NUMBER_HYPHEN.sub("", HYPHEN.sub(whole, text))
