"""Stop words of a query: what is left out, and what stays because it may be a name."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.core.errors import UserError
from ratchet.core.words import NO_TOPIC, STOP_WORDS, content_terms, read_stop_words, split_words


@pytest.mark.parametrize(
    ("query", "left"),
    [
        ("the harbour of Velm", "harbour Velm"),
        ("How is hepatitis A spread?", "How hepatitis A spread"),
        ("What does vitamin D do?", "What does vitamin D do"),
        ("When did Elizabeth I die?", "When did Elizabeth I die"),
        ("Ford Model T", "Ford Model T"),
        ("What is the WHO?", "What WHO"),
        ("The Who", "The Who"),
        ("Is The Who in town?", "The Who town"),
        ("Will Smith", "Will Smith"),
        ("It was built. The pier was not.", "built pier"),
        ("Who wrote It?", "Who wrote It"),
        ("Is there a sequel to Dr. No?", "sequel Dr No"),
        ("to be or not to be", "to be or not to be"),
        ("To be or not to be", "To be or not to be"),
        ("IT jobs at AT&T in Orra", "IT jobs AT&T Orra"),
        ("an a-ha song", "a-ha song"),
        ("it's Velm's, isn't it", "Velm isn"),
        ("THE HARBOUR OF VELM", "HARBOUR VELM"),
        ("IT", "IT"),
        ("tea AND (coffee OR Rooibos)", "tea coffee Rooibos"),
        ("北京 IT 的 and 猫", "北京 IT 的 猫"),
        ("a\u0300 with the harbour", "à harbour"),
        ("", ""),
    ],
)
def test_stop_words_go_and_names_stay(query: str, left: str) -> None:
    assert content_terms(query, STOP_WORDS) == left.split()


def test_an_i_is_a_name_behind_a_name() -> None:
    assert content_terms("What should I know about Elizabeth I?", NO_TOPIC) == ["know", "Elizabeth", "I"]
    assert content_terms("should i know", NO_TOPIC) == ["know"]


@given(st.text(st.sampled_from("aAtheT iI's.-?\n北한é")))
def test_what_is_left_is_some_of_the_query_and_never_nothing(query: str) -> None:
    words = split_words(query)
    left = split_words(" ".join(content_terms(query, STOP_WORDS)))
    rest = iter(words)
    assert all(word in rest for word in left) and bool(left) == bool(words)


def test_the_setting_is_a_list_a_file_or_a_name(tmp_path: Path) -> None:
    assert read_stop_words("none") == frozenset() and len(read_stop_words("english")) == 33
    assert read_stop_words("long") == NO_TOPIC > STOP_WORDS
    assert read_stop_words(("Über", "don't")) == {"über", "don", "t"}
    file = tmp_path / "words.txt"
    file.write_text("der\n\nDie\n")
    assert read_stop_words(str(file)) == {"der", "die"}
    with pytest.raises(UserError, match=r"index\.stop_words: cannot read german .*a list of words"):
        read_stop_words("german")
