"""Which worker of the in-process engine takes a request."""

from __future__ import annotations

from ratchet.inference.local.cache import BLOCK
from ratchet.inference.local.engine import Router


def prompt(question: int, blocks: int = 8) -> list[int]:
    """Instructions that all questions share, then the question."""
    return [1] * (2 * BLOCK) + [question] * ((blocks - 2) * BLOCK)


def test_a_next_turn_goes_where_its_beginning_is_cached() -> None:
    router = Router(2)
    given = {}
    for question in (5, 6, 7, 8):
        place, tokens = router.choose("base", prompt(question), 16)
        given[question] = place
        router.finished(place, tokens)
    for question in (8, 5, 7, 6):
        place, tokens = router.choose("base", [*prompt(question), *[9] * 20], 16)
        router.finished(place, tokens)
        assert place == given[question]


def test_samples_of_one_question_leave_a_worker_that_has_much_to_do() -> None:
    router = Router(2)
    places = [router.choose("base", prompt(5), 64)[0] for _ in range(8)]
    assert places[:3] == [0, 0, 0], "computing the beginning once is cheaper than a second time"
    assert 3 <= sum(places) <= 5, "and an idle core costs more than computing it twice"


def test_different_questions_are_spread_and_what_ends_makes_room() -> None:
    router = Router(3)
    given = [router.choose("base", prompt(question), 32) for question in range(10, 16)]
    assert sorted(place for place, _ in given) == [0, 0, 1, 1, 2, 2]
    for place, tokens in given:
        router.finished(place, tokens)
    assert router.load == [0, 0, 0]


def test_an_adapter_shares_nothing_with_the_base_model() -> None:
    router = Router(2)
    place, tokens = router.choose("base", prompt(5), 16)
    router.choose("other", prompt(6), 16)
    router.finished(place, tokens)
    _, again = router.choose("base", prompt(5), 16)
    _, adapted = router.choose("adapter", prompt(5), 16)
    assert again == 16 and adapted == len(prompt(5)) + 16
