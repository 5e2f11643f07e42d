"""Text and title of HTML pages and PDF files, read by trafilatura and pypdf (the extra `documents`).

Of a page the main content is kept, as Markdown: a row of a table is a line of cells between bars, and code keeps its
lines. Of a PDF file each page's text is kept, in the order in which it is drawn, with the words whole that a line's end
divides (index_build/pdf_text.py). Nothing is fetched, no script is run.
"""

from __future__ import annotations

import contextlib
import logging
import re
import signal
import threading
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

from ratchet.core.errors import UserError, first_line
from ratchet.core.files import decode_text
from ratchet.core.tags import BLOCKS, CELLS, SCRIPTS, PlainWriter, element_text, tag_name, without_tags
from ratchet.index_build.pdf_text import join_hyphenated, page_text

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
"""What a page may declare and yet, being no UTF-8, is not."""
EMPHASIS = ("b", "i", "em", "strong", "u", "big", "small", "font")
BODY = re.compile("<body", re.IGNORECASE)

logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # it warns of each oddity of a file that it reads all the same
logging.getLogger("trafilatura").setLevel(logging.CRITICAL)


def read_markup(path: Path) -> tuple[str, str]:
    """(title, text) of an HTML page or a PDF file; '' for a title that it does not have. UserError that names it."""
    is_pdf = path.suffix.lower() in PDF_SUFFIXES
    limit = MAX_PDF_BYTES if is_pdf else MAX_HTML_BYTES
    if path.stat().st_size > limit:
        raise UserError(f"{path}: larger than {limit / 1e6:.0f} MB; divide it, or remove it from the folder")
    with _time_limit(path):
        return _read_pdf(path) if is_pdf else _read_html(path)


class _TooSlow(BaseException):
    """No Exception: the libraries catch those, and read on."""


@contextlib.contextmanager
def _time_limit(path: Path) -> Iterator[None]:
    """UserError after SECONDS, in the main thread alone: no other one receives signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: object) -> None:
        raise _TooSlow

    handler, left = signal.signal(signal.SIGALRM, stop), signal.alarm(SECONDS)
    try:
        yield
    except _TooSlow:
        raise UserError(f"{path}: takes longer than {SECONDS} s to read; divide it, or remove it") from None
    finally:
        signal.alarm(left)
        signal.signal(signal.SIGALRM, handler)


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
    """Decoded as UTF-8, else in the encoding that the page declares, else as `decode_text` does it."""
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
