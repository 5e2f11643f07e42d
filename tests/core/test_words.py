"""Words of the world's scripts, and what relies on them: the words of a text, and runs of words in it."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.core.text import normalise_answer, shortened
from ratchet.core.words import fold_text, padded_words, separate_unspaced, spaced_words, split_words

ODD = "aZ09_' \n\0ÀßİıſΣσςée\u0301\u0307iﬁ½²⁻₂①™Ⅷ界ーｱﾞかー한\u1112\u1161क्षिा\u200d\u00ad\ufe0f\ufeffกำ่٣𝔘😀𐐀\ud800"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Velm's Harbour_2, (ÉCOLE) x²", "velm s harbour 2 école x2"),
        ("e\u0301cole É\u0301cole", "école é\u0301cole"),
        ("Straße STRASSE ΟΔΌΣ οδός", "strasse strasse οδόσ οδόσ"),
        ("İstanbul ISTANBUL i\u0307stanbul", "istanbul istanbul istanbul"),
        ("Ｖｅｌｍ １２ ﬁn", "velm 12 fin"),
        ("har\u00adbour zero\u200bwidth \ufeffVelm", "harbour zerowidth velm"),
        ("कमाल कोमल", "कमाल कोमल"),
        ("செய்தி வணக்கம்", "செய்தி வணக்கம்"),
        ("שָׁלוֹם", "ש\u05b8\u05c1לו\u05b9ם"),
        ("كِتَابٌ", "كِتَابٌ"),
        ("می\u200cخواهم", "میخواهم"),
        ("한국어 \u1112\u1161\u11ab국어", "한국 국어 한국 국어"),
        ("서울특별시는 AI는 2024년 韓國은 ﾡￂ나다", "서울 울특 특별 별시 시는 ai 는 2024 년 韓國 國은 가나 나다"),
        ("ᥖᥭᥰ", "ᥖᥭ ᥭᥰ"),
        ("北京", "北京"),
        ("北京大学 iPhone手机3个 猫", "北京 京大 大学 iphone 手机 3 个 猫"),
        ("東京タワーへ、人々", "東京 京タ タワ ワー ーへ 人々"),
        ("葛\U000e0100城 ﾊﾞｽ", "葛城 バス"),
        ("ภาษาไทย ปี ๒๕๖๐", "ภา าษ ษา าไ ไท ทย ปี ๒๕๖๐"),
        ("ພາສາລາວ", "ພາ າສ ສາ າລ ລາ າວ"),
        ("ខ្មែរ", "ខ្មែ មែរ"),
        ("မြန်မာ", "မြန် န်မာ"),
        ("don´t 1\ufe0f\u20e3 \u0301 ❤\ufe0f", "don t 1"),
        ("H₂O CO₂ m² x²³ Ca²⁺ Fe³⁺", "h2o co2 m2 x23 ca2 fe3"),
        ("10⁶ 10⁻¹² 2.5×10³ 10⁶5 SO₄²⁻ ²³⁸U ²³⁸₉₂U", "10 6 10 12 2 5 10 3 10 6 5 so4 2 238u 238 92u"),
        ("1½ 1¹⁄₂ ½ 3¼5 ①② 7⑳ 1₂ 5㎢ 3月㋀", "1 1 2 1 1 2 1 2 3 1 4 5 1 2 7 20 1 2 5 km2 3 月 1 月"),
        ("10\u200b⁶ 10\ufe0f⁶", "10 6 10 6"),
        ("harbour¹ sin²x Lipitor™", "harbour 1 sin 2x lipitor tm"),
        ("", ""),
    ],
)
def test_words(text: str, words: str) -> None:
    assert split_words(text) == words.split()
    assert split_words(" ".join(split_words(text))) == words.split(), "a word is a word"


@given(st.one_of(st.text(), st.text(ODD)))
def test_the_quick_paths_give_what_the_long_one_does(text: str) -> None:
    assert spaced_words(text).decode("utf-8", "surrogatepass") == separate_unspaced(fold_text(text))


def test_a_run_of_letters_without_blanks_is_found_anywhere() -> None:
    there = padded_words("他住在北京，養貓。कोमल")
    assert [padded_words(text) in there for text in ("北京", "貓", "京住", "कोमल", "कम")] == [
        *(True, True, False, True, False),
    ]


@pytest.mark.parametrize("marks", ["\u0301\u0327\u0323", "\uff9e\u0301", "\u0301\u200b\u0327"])
def test_a_page_of_marks_takes_no_longer_than_one_of_letters(marks: str) -> None:
    text = "e" + marks * 100_000
    started = time.process_time()
    assert len(split_words(text)) == 1 and len(normalise_answer(text)) <= len(text)
    assert time.process_time() - started < 30, "at 100,000, normalising in the square of their number takes minutes"
    left = "\u0229" + "\u0327" * 14 + "\u0301" * 15
    assert split_words("e" + "\u0301\u0327" * 15) == [left], "30 are left as they are"


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("The harbour", "The harbour"),
        ("The harbour of Velm", "The harbour…"),
        ("北京 " + "大" * 100, "北京 " + "大" * 62 + "…"),
        ("大" * 100, "大" * 65 + "…"),
    ],
)
def test_a_text_is_cut_at_a_word_or_where_there_is_none_anywhere(text: str, short: str) -> None:
    assert shortened(text, 14 if text.isascii() else 66) == short
