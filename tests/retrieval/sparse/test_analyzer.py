import pytest

from ratchet.core.errors import UserError
from ratchet.core.words import STOP_WORDS
from ratchet.retrieval.sparse.terms import Analyzer


def test_documents_keep_every_word_and_queries_leave_stop_words_out() -> None:
    words = Analyzer("english", STOP_WORDS)
    assert words.terms("The harbours of harbour builders") == ["the", "harbour", "of", "harbour", "builder"]
    assert words.query_terms("The harbours of harbour builders") == ["harbour", "harbour", "builder"]
    assert Analyzer(None, STOP_WORDS).query_terms("The harbours of it") == ["harbours"]
    assert Analyzer("english").query_terms("the harbours") == ["the", "harbour"]
    assert Analyzer("arabic").terms("كِتَابٌ") == Analyzer("arabic").terms("كتاب")


def test_an_unknown_stemmer_is_refused_with_the_closest() -> None:
    with pytest.raises(UserError, match=r"index\.stemmer.*'germann'.*did you mean 'german'"):
        Analyzer("germann")
