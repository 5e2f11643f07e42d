"""Words and numbers of PDF files: divided at a line's end, raised and lowered."""

import io
from pathlib import Path

import pytest

from ratchet.index_build.documents import read_documents
from ratchet.index_build.markup import join_hyphenated
from tests.helpers.pdf import pdf

LINE = ") Tj 0 -14 Td ("
SUPER, SUB, BASE = ") Tj /F1 8 Tf 4 Ts (", ") Tj /F1 8 Tf -3 Ts (", ") Tj /F1 12 Tf 0 Ts ("


def read(path: Path, data: bytes) -> str:
    (path / "a.pdf").write_bytes(data)
    return next(read_documents(path))[1].text


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("The climate changes: the cli-\nmate of Velm.", "The climate changes: the climate of Velm."),
        ("A harbour-\nmaster. His har-\nbour.", "A harbourmaster. His harbour."),
        ("The har\u00ad\nbour in under\u00ad\n standing", "The harbour in understanding"),
        ("The state of it is state-of-\nthe-art.", "The state of it is state-of-the-art."),
        ("As well as a well-\nknown fact, self-\nmade", "As well as a well-known fact, self-made"),
        ("a well-\nknown fact", "a well-known fact"),
        ("COVID-\n19, pages 10-\n12, a 3-\nday trip, Anglo-\nSaxon, X-\nray", None),
        ("short-\nand long-term, INTRO-\nDUCTION", "short- and long-term, INTRODUCTION"),
        ("the \ufb01nding of \ufb01nd-\ning", "the \ufb01nding of \ufb01nding"),
        ("a dash -\nand a line\nbreak stay", "a dash -\nand a line\nbreak stay"),
        ("Hafen\u2010\nmeisterei", "Hafenmeisterei"),
    ],
)
def test_words_that_a_line_divides_are_whole(text: str, whole: str | None) -> None:
    assert join_hyphenated(text) == (whole or text.replace("-\n", "-"))


def test_a_file_has_whole_words_and_its_numbers(tmp_path: Path) -> None:
    text = f"Of H{SUB}2{BASE}O and 10{SUPER}6{BASE} cells in the cli-{LINE}mate, 5{SUPER}2{BASE}0 of a "
    text += f"harbour{SUPER}1{BASE}."
    assert read(tmp_path, pdf(text)) == "Of H2O and 10^6 cells in the climate, 5^2 0 of a harbour^1."


@pytest.mark.slow
def test_a_formula_as_a_library_draws_it(tmp_path: Path) -> None:
    from matplotlib.backends.backend_pdf import FigureCanvasPdf
    from matplotlib.figure import Figure

    figure = Figure()
    figure.text(0.1, 0.5, r"Of $\mathrm{H_2O}$ and $10^6$ cells, $10^{-3}$ m, a cli-" + "\nmate")
    FigureCanvasPdf(figure).print_pdf(buffer := io.BytesIO())
    assert read(tmp_path, buffer.getvalue()) == "Of H2O and 10^6 cells, 10^\u22123 m, a climate"
