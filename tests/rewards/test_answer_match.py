"""The rule for short answers: another number, date or name, or the opposite, is worth nothing."""

import pytest

from ratchet.core.records import Question
from ratchet.rewards.builtin.answer_match import numbers
from ratchet.rewards.rules import exact_match, nugget_containment, token_f1
from tests.helpers.reward_cases import rule_score, trajectory

WARRANTY = "The warranty of this pump lasts 24 months from the day of purchase."


def matched(answer: str, *right: str) -> float | None:
    """The score of an answer."""
    question = Question(id="q1", text="How long?", answers=right)
    return rule_score("answer_match", question, trajectory(answer=answer)).value


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("2 months", "24 months"),
        ("months", "24 months"),
        ("24 months or 2", "24 months"),
        ("10 May 1912", "10 March 1912"),
        ("two months", "twenty-four months"),
        ("15 metres", "1.5 metres"),
        ("-5 degrees", "5 degrees"),
        ("٢٤ شهر", "٢ شهر"),
        ("२४ महीने", "२ महीने"),
        ("not allowed", "allowed"),
        ("It isn\u2019t allowed", "It is allowed"),
        ("nicht erlaubt", "erlaubt"),
        ("не разрешено", "разрешено"),
        ("غير مسموح", "مسموح"),
        ("Omaha Beach", "Juno Beach"),
        (WARRANTY.replace("24", "2"), WARRANTY),
        (WARRANTY.replace("24 months", "some time"), WARRANTY),
        (WARRANTY.replace("lasts", "never lasts"), WARRANTY),
        ("It ended in 1913.", "It began in 1912 and, after many a battle, ended in 1914."),
    ],
)
def test_what_is_wrong_in_one_word_is_worth_nothing(wrong: str, right: str) -> None:
    assert token_f1(wrong, [right]) > 0, "a rule that counts words gives it something"
    assert matched(wrong, right) == 0
    assert matched(right, right) == 1


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        ("Willow trees", "willow"),
        ("660 people", "660"),
        ("1,000 people", "1000 people"),
        ("Obama", "Barack Obama"),
        ("24个月", "24个月"),
        ("The pump has 24 months of warranty.", WARRANTY),
        ("It ended in 1914.", "It began in 1912 and, after many a battle, ended in 1914."),
    ],
)
def test_what_is_right_in_part_or_says_more_has_its_f1(answer: str, right: str) -> None:
    assert matched(answer, right) == token_f1(answer, [right])
    assert (matched(answer, right) or 0) > 0.3


NUMBERS = ["10⁶", "106", "10⁻⁶", "16", "1.5", "15", "-15", ".15", "0.015", "1/5", "1⅕", "11/5", "3.10", "3.1", "3.1.0"]


@pytest.mark.parametrize("text", ["{}", "about {} of them", "The version of the library that they use is {} today."])
def test_two_numbers_never_become_another_one(text: str) -> None:
    for answer in NUMBERS:
        for right in NUMBERS:
            given, expected = text.format(answer), text.format(right)
            found = matched(given, expected), exact_match(given, [expected]), nugget_containment(given, [expected])
            assert [value == 1 for value in found] == [answer == right] * 3, (answer, right)
    assert matched(text.format("3.1"), text.format("3.10")) == matched(text.format("106"), text.format("10\u2076")) == 0


def test_the_best_of_several_right_answers_counts() -> None:
    assert matched("two years", "24 months", "two years") == 1
    assert matched("2 years", "24 months", "two years") == 0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1,234.50 and 1'234.5 and 1.234,5", {"1234.50", "1234.5"}),
        ("1.234.567, 1,23,456", {"1234567", "123456"}),
        ("10\u2076, 10^6, 10\u207b\u2076", {"10^6", "10^-6"}),
        (".5, 3.141 and 3.10", {"0.5", "3.141", "3.10"}),
        ("2\u00bd, 1/2", {"2", "1"}),
        ("12.03.2024", {"12", "3", "2024"}),
        ("1990\u20131995, COVID-19", {"1990", "1995", "19"}),
        ("0.500, 0,5, \u22120.5", {"0.500", "0.5", "-0.5"}),
        ("2nd of 007", {"2", "7"}),
    ],
)
def test_numbers_have_one_spelling(text: str, expected: set[str]) -> None:
    assert numbers(text) == expected
