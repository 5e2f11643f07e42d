from __future__ import annotations

import pytest

from ratchet.errors import UserError
from retrieval.sparse.analyzer import Analyzer


def test_stop_words_and_stems_keep_repeats_and_order() -> None:
    assert Analyzer("english", True).terms("The harbours of harbour builders") == ["harbour", "harbour", "builder"]
    assert Analyzer(None, True).terms("The harbours of it") == ["harbours"]
    assert Analyzer("english", False).terms("the harbours") == ["the", "harbour"]
    assert Analyzer("arabic", False).terms("كِتَابٌ") == Analyzer("arabic", False).terms("كتاب")


def test_an_unknown_stemmer_is_refused_with_the_closest() -> None:
    with pytest.raises(UserError, match=r"index\.stemmer.*'germann'.*did you mean 'german'"):
        Analyzer("germann", True)
