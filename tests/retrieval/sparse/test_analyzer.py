from __future__ import annotations

import pytest

from ratchet.errors import UserError
from retrieval.sparse.analyzer import Analyzer


def test_words_are_lower_case_letters_and_digits_of_any_script() -> None:
    words = Analyzer(stemmer=None, stop_words=False)
    assert words.terms("Velm's Harbour_2, (ÉCOLE) Straße 界隈!") == [
        *("velm", "s", "harbour", "2", "école", "straße", "界隈"),
    ]


def test_composed_and_decomposed_accents_meet() -> None:
    words = Analyzer(stemmer=None, stop_words=False)
    assert words.terms("e\u0301cole") == words.terms("école") == ["école"]


def test_stop_words_and_stems_keep_repeats_and_order() -> None:
    assert Analyzer("english", True).terms("The harbours of harbour builders") == ["harbour", "harbour", "builder"]
    assert Analyzer(None, True).terms("The harbours of it") == ["harbours"]
    assert Analyzer("english", False).terms("the harbours") == ["the", "harbour"]


def test_an_unknown_stemmer_is_refused_with_the_closest() -> None:
    with pytest.raises(UserError, match=r"index\.stemmer.*'germann'.*did you mean 'german'"):
        Analyzer("germann", True)
