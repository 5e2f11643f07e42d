"""Counting terms while an index is built: the terms are the analyzer's, byte by byte."""

from __future__ import annotations

import unicodedata
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratchet.core.config import IndexConfig
from ratchet.core.words import MARKS
from ratchet.index_build import postings, word_table
from ratchet.index_build.words import TermCounter
from ratchet.retrieval.index import key_hash
from ratchet.retrieval.sparse.terms import Analyzer
from tests.helpers.building import DOCUMENTS, build, corpus, tree
from tests.helpers.tiny_index import write_documents

# Every width in UTF-8, case that depends on what is around it, letters that NFKC changes, marks, digits, and breaks.
ODD = "aZ09_' \n\0ÀßİıſΣσςée\u0301ﬁ½²⁻₂①™Ⅷ界ーｱ゙한\u1112\u1161क्षिا\u200d\u00adกำ่İ\u0307٣𝔘😀𐐀\ud800\udfff"
TEXTS = st.one_of(st.text(), st.text(ODD), st.text("abC é1"))


def counted(analyzer: Analyzer, *batches: list[str]) -> list[Counter[str]]:
    """The terms of every text, batch after batch by one counter."""
    counter, found = TermCounter(analyzer), []
    for texts in batches:
        lengths, offsets, terms, frequencies = counter.count(texts)
        names = list(counter.terms)
        assert counter.hashes.values.tolist() == [key_hash(name) for name in names]
        for i, length in enumerate(lengths.tolist()):
            span = slice(offsets[i], offsets[i + 1])
            each = zip(terms[span].tolist(), frequencies[span].tolist(), strict=True)
            found.append(Counter({names[term]: frequency for term, frequency in each}))
            assert length == found[-1].total() and len(found[-1]) == span.stop - span.start
    return found


@settings(deadline=None)  # kernels are compiled in the first example
@given(st.lists(TEXTS, max_size=6), st.lists(TEXTS, max_size=3), st.sampled_from(["english", "turkish", None]))
def test_terms_are_the_analyzers(first: list[str], second: list[str], stemmer: str | None) -> None:
    analyzer = Analyzer(stemmer)
    assert counted(analyzer, first, second) == [Counter(analyzer.terms(text)) for text in (*first, *second)]


def test_every_character_breaks_or_joins_as_it_does_for_the_analyzer() -> None:
    points = [chr(point) for point in range(0x110000)]
    kinds = word_table.character_kinds()
    # regex knows a newer Unicode than Python may: what it takes for a letter, Python does too or does not know.
    assert all(point.isalnum() or unicodedata.category(point) == "Cn" for point in points if kinds[ord(point)] == 1)
    assert [kind == word_table.MARK for kind in kinds.tolist()] == [bool(MARKS.match(point)) for point in points]
    some = [f"a{point}b" for point in (*points[:0x3000], *points[0xD7F0:0xE010], *points[0xFFF0:0x10040], points[-1])]
    analyzer = Analyzer(None)
    assert counted(analyzer, some) == [Counter(analyzer.terms(text)) for text in some]


def test_words_of_every_length_and_more_than_the_first_table_holds() -> None:
    chance = np.random.default_rng(0)
    some = ["".join(chance.choice(list("xyä"), size)) for size in chance.integers(1, 40, 6000)]
    some += [word[:cut] for word in some[:500] for cut in (7, 8, 9, 16, 17)]
    texts = [" ".join(some[i : i + 50]) for i in range(0, len(some), 50)]
    analyzer = Analyzer(None)
    assert counted(analyzer, texts[:40], texts[40:]) == [Counter(analyzer.terms(text)) for text in texts]


def test_where_postings_are_held_changes_no_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All in memory, or in files with a part of them full at any moment, and sorted in one slice or many."""
    source = write_documents(tmp_path / "d.jsonl", [*DOCUMENTS, *corpus(300, name="e")])
    opened: list[str] = []
    path_open = Path.open

    def watched(path: Path, *arguments: Any, **options: Any) -> Any:
        opened.append(path.name)
        return path_open(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", watched)
    trees = []
    for name, buffer, size in (("held", postings.BUFFER, postings.SLICE), ("spilled", 16 * 7, 100)):
        monkeypatch.setattr(postings, "BUFFER", buffer)
        monkeypatch.setattr(postings, "SLICE", size)
        opened.clear()
        build(IndexConfig(path=str(tmp_path / name), documents=(str(source),), shard_documents=200))
        trees.append(tree(tmp_path / name))
        assert any(file.startswith("spill") for file in opened) == (name == "spilled")
    assert trees[0] == trees[1]
