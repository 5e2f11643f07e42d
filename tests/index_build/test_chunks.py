import re
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from ratchet.index_build.chunks import Chunker
from ratchet.index_build.chunks import word_tokenizer as words_of_the_config
from tests.helpers.tiny import tiny_tokenizer

TINY = tiny_tokenizer()


def word_tokenizer() -> PreTrainedTokenizerFast:
    """One token per word: what a chunk holds can be counted by hand."""
    words = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]")


def slices(tokenizer: Any, text: str, size: int, overlap: int) -> list[str]:
    [spans] = Chunker(tokenizer, size, overlap, "test").cut([text])
    return [text[start:end] for start, end in spans]


def test_sizes_and_overlap_in_tokens() -> None:
    text = " ".join(f"w{i}" for i in range(12))
    chunks = slices(word_tokenizer(), text, size=5, overlap=2)
    assert [chunk.split() for chunk in chunks] == [
        ["w0", "w1", "w2", "w3", "w4"],
        ["w3", "w4", "w5", "w6", "w7"],
        ["w6", "w7", "w8", "w9", "w10"],
        ["w9", "w10", "w11"],
    ]


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("The harbour, built 1407.", ["The ", "harbour", ", ", "built ", "1407", "."]),
        ("Hafenmeisterei", ["Hafenmei", "sterei"]),
        ("港は1407年", ["港", "は", "1407", "年"]),
        ("cafe\u0301 🙂🙂", ["cafe\u0301 ", "🙂", "🙂"]),
    ],
)
def test_the_tokens_of_words(text: str, pieces: list[str]) -> None:
    assert slices(words_of_the_config(), text, size=1, overlap=0) == pieces


@pytest.mark.slow
@settings(deadline=None, max_examples=150)
@given(
    text=st.text(st.sampled_from("ab .\n<|>é界🙂 e\u0301"), min_size=1, max_size=120).filter(lambda text: text.strip()),
    size=st.integers(1, 20),
    data=st.data(),
)
def test_slices_cover_the_text_and_overlap_by_tokens(text: str, size: int, data: st.DataObject) -> None:
    overlap = data.draw(st.integers(0, size - 1))
    [spans] = Chunker(TINY, size, overlap, "test").cut([text])
    assert spans[0][0] == 0 and spans[-1][1] == len(text)
    rebuilt = ""
    for start, end in spans:
        assert start < end and start <= len(rebuilt)
        rebuilt = rebuilt[:start] + text[start:end]
    assert rebuilt == text
    # Counted by another road: the tokenizer's own offsets. A character can be several tokens, so whole tokens of a
    # chunk are at most `size`, and neighbours share at most `overlap`.
    offsets = TINY(text, add_special_tokens=False, return_offsets_mapping=True, split_special_tokens=True)
    owners = [start for start, end in offsets["offset_mapping"]]
    for start, end in spans:
        characters_split = sum(owners.count(edge) - 1 for edge in (start, end) if edge in owners)
        assert sum(start <= at < end for at in owners) <= size + max(characters_split, 0)
    if len(set(owners)) == len(owners):
        for (_, end), (start, _) in pairwise(spans):
            assert sum(start <= at < end for at in owners) in (overlap, 0)  # 0: before a word that fills a chunk


@pytest.mark.slow
@settings(deadline=None, max_examples=200)
@given(
    text=st.text(st.sampled_from("ab1 .,'-\n"), min_size=1, max_size=120).filter(lambda text: text.strip()),
    size=st.integers(1, 20),
    data=st.data(),
)
def test_some_chunk_has_every_word_and_number_whole(text: str, size: int, data: st.DataObject) -> None:
    overlap = data.draw(st.integers(0, size - 1))
    [spans] = Chunker(TINY, size, overlap, "test").cut([text])
    tokens = TINY(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    for word in re.finditer(r"[ab1]+(?:(?<=1)[.,'](?=1)[ab1]+|(?<=[ab])'(?=[ab])[ab1]+)*", text):
        low, high = word.span()
        if sum(start < high and end > low for start, end in tokens) <= size:
            assert any(start <= low and high <= end for start, end in spans), (word, spans)


@pytest.mark.parametrize("overlap", [0, 1, 3])
def test_chunks_that_overlap_little_part_no_word(overlap: int) -> None:
    text = "The Hafenmeisterei's 1,407.5 boats of Donaudampfschifffahrtsgesellschaft, 10^6"
    chunks = slices(words_of_the_config(), text, size=6, overlap=overlap)
    for word in ("Hafenmeisterei's", "1,407.5", "Donaudampfschifffahrtsgesellschaft", "10^6"):
        assert any(word in chunk for chunk in chunks)


def test_control_tokens_in_a_document_count_as_the_text_they_are() -> None:
    fake = "<|im_end|><|im_start|>" * 4
    assert len(slices(TINY, fake, size=8, overlap=0)) > 1
    assert "".join(slices(TINY, fake, size=8, overlap=0)) == fake


def test_padding_and_truncation_set_on_the_tokenizer_change_nothing() -> None:
    plain, changed = tiny_tokenizer(), tiny_tokenizer()
    changed.backend_tokenizer.enable_truncation(4)
    changed.backend_tokenizer.enable_padding(length=64)
    text = "the harbour of Velm " * 20
    assert slices(plain, text, 16, 4) == slices(changed, text, 16, 4)
    assert Chunker(plain, 16, 4, "a").digest == Chunker(changed, 16, 4, "b").digest
    assert Chunker(plain, 16, 4, "a").digest != Chunker(word_tokenizer(), 16, 4, "a").digest
