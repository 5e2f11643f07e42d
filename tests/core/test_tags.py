"""Text with tags in it as plain text: words and numbers stay what they are."""

from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.core.tags import element_text, without_tags
from ratchet.core.words import separate_numbers

PIECES = (
    "10",
    "a",
    " ",
    "<",
    ">",
    "&lt;",
    "&amp;",
    "<sup>",
    "</sup>",
    "<sub>",
    "</sub>",
    "<br>",
    "<p>",
    "</p>",
    "`",
    "\n",
)


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("H<sub>2</sub>O and <i>E. <b>col</b>i</i>", "H2O and E. coli"),
        ("10<sup>6</sup>, 10<sup>-6</sup>cells, <b>10</b><sup> 7</sup>", "10^6, 10^-6cells, 10^7"),
        ("10<sup>6</sup>5 and log<sub>2</sub>8 and 1<sub>2</sub>", "10^6 5 and log2 8 and 1_2"),
        ("m<sup>2</sup> Ca<sup>2+</sup> SO<sub>4</sub><sup>2-</sup> <sup>14</sup>C CD8<sup>+</sup>", None),
        ("2<sup>nd</sup>, harbour<sup>1</sup>, harbour<SUP class='a'><a href=\"#f\">b</a></SUP>", None),
        ("<jats:title>Aim</jats:title><jats:p>One.</jats:p><jats:p>Two <jats:italic>x</jats:italic></jats:p>", None),
        ("one<br>two<br/>three<li>four</li><table><tr><td>5</td><td>6</td></tr></table>", "one\ntwo\nthree\nfour\n5 6"),
        ("<b>a</b> &lt;sup&gt;2&lt;/sup&gt; R&amp;amp;D, p &lt; 0.05", "a 2 R&D, p < 0.05"),
        ("10<sup>6</sup> where a < b and c > d, <x> and <|im_end|>", "10^6 where a < b and c > d, <x> and <|im_end|>"),
        (
            "Write `<b>x</b>` for <b>bold</b>\n```\n<i>a</i> &lt;\n```",
            "Write `<b>x</b>` for bold\n```\n<i>a</i> &lt;\n```",
        ),
        ("<p>Then</p><pre><code>if (a &lt; b) &lt;b&gt;x&lt;/b&gt;</code></pre>", "Then\nif (a < b) <b>x</b>"),
    ],
)
def test_tags_vanish_and_words_stay(text: str, plain: str | None) -> None:
    others = {
        "m<sup": "m2 Ca2+ SO4^2- 14C CD8+",
        "2<sup": "2nd, harbour^1, harbour^b",
        "<jats": "Aim\nOne.\nTwo x",
    }
    assert without_tags(text).strip() == (plain or next(others[start] for start in others if text.startswith(start)))


@pytest.mark.parametrize(
    "text",
    [
        "a < b and c > d",
        "if a <b and c> d",
        "vector<a> v; map<i, b> m;",
        "R&amp;D stays R&amp;D",
        "&lt;b&gt;x&lt;/b&gt;",
        "Only `<b>x</b>` here",
        "```html\n<p>x</p>\n```",
        "<!DOCTYPE html><html><body><p>x</p></body></html>",
        "<p>One <script>let a = '<b>x</b>'</script></p>",
        "<http://example.org/a> and <user@example.org>",
    ],
)
def test_a_text_that_is_no_markup_stays(text: str) -> None:
    assert without_tags(text) == text


def test_what_is_known_to_be_markup_is_read_as_such() -> None:
    assert without_tags("rose &amp; fell", is_markup=True) == "rose & fell"
    assert without_tags("&amp;lt;i&amp;gt;Velm&amp;lt;/i&amp;gt; <b>cut", is_markup=True) == "Velm cut"


MATH = '<p xmlns:mml="http://www.w3.org/1998/Math/MathML">Of <mml:math>{}</mml:math>5.</p>'
POWER = "<mml:msup><mml:mn>10</mml:mn><mml:{}>{}</mml:{}></mml:msup>"


@pytest.mark.parametrize(
    ("math", "plain"),
    [
        (POWER.format("mn", "6", "mn"), "10^6 5"),
        (POWER.format("mrow", "<mml:mo>−</mml:mo>\n <mml:mn>6</mml:mn>", "mrow"), "10^−6 5"),
        (POWER.format("mrow", "<mml:mi>n</mml:mi><mml:mo>+</mml:mo><mml:mn>1</mml:mn>", "mrow"), "10^(n+1)5"),
        ("<mml:mfrac><mml:mn>1</mml:mn><mml:mn>2</mml:mn></mml:mfrac>", "1/2 5"),
        ("<mml:mn>1</mml:mn>\n<mml:mfrac><mml:mn>1</mml:mn><mml:mn>2</mml:mn></mml:mfrac>", "1 1/2 5"),
        ("<mml:msub><mml:mi>H</mml:mi><mml:mn>2</mml:mn></mml:msub><mml:mi>O</mml:mi>", "H2O5"),
        ("<mml:mn>3</mml:mn><mml:mn>4</mml:mn>", "3 4 5"),
        (
            "<mml:semantics><mml:mi>x</mml:mi><mml:annotation>\\x</mml:annotation></mml:semantics>",
            "x5",
        ),
    ],
)
def test_formulas_keep_their_numbers_apart(math: str, plain: str) -> None:
    assert element_text(ElementTree.fromstring(MATH.format(math))).strip() == f"Of {plain}."


@given(st.lists(st.sampled_from(PIECES), max_size=30).map("".join), st.booleans())
def test_any_text_becomes_a_text(text: str, is_markup: bool) -> None:
    plain = without_tags(text, is_markup)
    assert is_markup or "<sup>" not in plain or without_tags(plain) == plain or "`" in text


def test_numbers_of_unicode_are_parted_as_those_of_tags_are() -> None:
    assert separate_numbers("10⁶5 1½ H₂O") == without_tags("10<sup>⁶</sup>5 1 ½ H<sub>₂</sub>O") == "10^⁶ 5 1 ½ H₂O"
