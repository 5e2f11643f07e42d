"""Counting terms while an index is built: the terms are the analyzer's, byte by byte."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratchet.core.config import IndexConfig
from ratchet.index_build import postings
from ratchet.index_build.postings import TermCounter
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
