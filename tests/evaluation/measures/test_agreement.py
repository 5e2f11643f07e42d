"""How far the verdicts of a judge under two settings agree (`ratchet score whatif`)."""

from typing import Any

from ratchet.core.records import Score
from ratchet.evaluation.measures.agreement import agreement_rows

NUGGETS: dict[str, Any] = {"part": "nuggets", "nuggets": [{"aspect": "a"}, {"aspect": "b"}]}


def single(scores: dict[tuple[int, int], int | None], nuggets: dict[str, Any] = NUGGETS, **more: Any) -> Score:
    """`scores`: by (nugget, run)."""
    parts = tuple(
        {"part": "nugget", "nugget": number, "run": run, "score": score, "text": "x", "tokens": [100, 90, 7]}
        for (number, run), score in scores.items()
    )
    value = more.pop("value", 0.5)
    return Score(trajectory="t", name="correctness", value=value, verdicts=(nuggets, *parts), **more)


def in_list(runs: dict[int, list[int] | None]) -> Score:
    parts = tuple(
        {"part": "nugget_list", "nugget": 0, "run": run, "scores": scores, "text": "x", "tokens": [100, 0, 20]}
        for run, scores in runs.items()
    )
    return Score(trajectory="t", name="correctness", value=0.25, verdicts=(NUGGETS, *parts))


def rows(before: Score, after: Score, times: int = 1) -> dict[str, tuple[str, str]]:
    """The rows of as many trajectories, each of a question of its own."""
    olds, news = (
        {(f"t{n}", "correctness"): one.model_copy(update={"trajectory": f"t{n}"}) for n in range(times)}
        for one in (before, after)
    )
    found = agreement_rows(olds, news, {f"t{n}": f"q{n}" for n in range(times)}, 1)
    return {label.removeprefix("correctness"): (old, new) for label, old, new in found}


def test_kappa_is_that_of_the_textbook_example() -> None:
    """20 and 15 equal verdicts, 5 and 10 unequal ones: 70% where 50% are by chance."""
    pairs = [(2, 2)] * 20 + [(2, -1)] * 5 + [(-1, 2)] * 10 + [(-1, -1)] * 15
    nuggets = {"part": "nuggets", "nuggets": [{"aspect": str(number)} for number in range(50)]}
    before, after = (
        single({(number, 0): pair[side] for number, pair in enumerate(pairs)}, nuggets, value=side) for side in (0, 1)
    )
    told = rows(before, after)
    assert told[": equal verdicts"] == ("", "70.0% of 50, Cohen's kappa 0.40")
    assert told[": judge calls an answer"] == ("50.0, 500 prompt and 350 new tokens",) * 2
    assert rows(before, after, 3)[": equal verdicts"] == ("", "70.0% of 150, Cohen's kappa 0.40 [0.40, 0.40]")


def test_lists_are_compared_with_single_calls_nugget_by_nugget() -> None:
    before = single({(0, 0): 2, (0, 1): 2, (1, 0): 0, (1, 1): None})
    told = rows(before, in_list({0: [2, 1], 1: None}))
    assert told[" of 1 trajectories"] == ("", "mean difference 0.250, correlation -")
    assert told[": equal verdicts"][1].startswith("50.0% of 2")
    assert told[": judge calls an answer"][1] == "2.0, 200 prompt and 40 new tokens, 1 lists asked for again"
    told = rows(before, in_list({0: [2, 1], 1: [2, -1]}))
    assert told[": equal verdicts of two runs"][0].startswith("100.0% of 1")
    assert told[": equal verdicts of two runs"][1].startswith("50.0% of 2")


def test_nuggets_of_other_words_and_copied_verdicts_are_not_compared() -> None:
    other = {"part": "nuggets", "run": 0, "nuggets": [{"aspect": "c"}, {"aspect": "b"}]}
    told = rows(single({(0, 0): 2, (1, 0): 2}), single({(0, 0): 2, (1, 0): 2}, other, value=0.0))
    assert told[": equal verdicts"] == ("", "100.0% of 1")
    copied = single({(0, 0): 2}, equal_to="other", value=0.0)
    assert list(rows(single({(0, 0): 2}), copied)) == [" of 1 trajectories"]
