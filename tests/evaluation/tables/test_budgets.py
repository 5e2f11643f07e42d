"""Methods with equal numbers of tokens: cheap ones vote with so many samples as fit."""

from __future__ import annotations

from ratchet.core.records import ModelCall, Trajectory
from ratchet.evaluation.tables.budgets import budget_table, by_question, within_budget
from tests.helpers.verdict_arms import claims, said

CLAIMS = claims("SR")
EVENT = ModelCall(
    role="r", conversation=0, start=0, end=0, text="", parse="ok", finish_reason="stop", prompt_tokens=90,
    new_tokens=10, at=0.0, seconds=0.0,
)  # fmt: skip


def method(samples: list[str], calls: int = 1) -> list[Trajectory]:
    return said(CLAIMS, samples, (EVENT,) * calls)


def test_a_cheap_method_votes_with_as_many_samples_as_fit() -> None:
    samples = by_question(CLAIMS, method(["SN", "NR", "SR", "RR"])[::-1])
    found = within_budget("cot", samples, 399, 0)
    assert (found.tokens, found.samples, found.fit) == (100, 3, 3)
    assert found.voted.mean == 1.0 and found.single.mean == (0.5 + 0.75) / 2
    assert within_budget("cot", samples, 200, 0).voted.mean == 0.5, "of equally frequent answers the first"


def test_what_has_too_few_samples_is_marked() -> None:
    few = within_budget("cot", by_question(CLAIMS, method(["SR"])), 300, 0)
    assert (few.samples, few.fit) == (1, 3) and list(budget_table("t", [few]).columns[2].cells) == ["1*"]


def test_a_sample_without_an_answer_has_no_vote() -> None:
    found = within_budget("cot", by_question(CLAIMS, method(["?!", "?R", "S?"])), 300, 0)
    assert found.voted.mean == 1.0


def test_an_answer_of_a_trajectory_that_did_not_finish_has_no_vote_either() -> None:
    broken = [t.model_copy(update={"status": "out_of_budget"}) for t in method(["SR"])]
    for keep, value in ((("finished",), 0.0), (("finished", "out_of_budget"), 1.0)):
        found = within_budget("madke", by_question(CLAIMS, broken), 300, 0, keep_status=keep)
        assert (found.single.mean, found.voted.mean) == (value, value)


def test_tokens_of_thoughts_count_and_are_told_apart() -> None:
    thinker = said(CLAIMS, ["SR"], (EVENT.model_copy(update={"thought_tokens": 6}),) * 2)
    found = within_budget("thinker", by_question(CLAIMS, thinker), 300, 0)
    assert (found.tokens, found.thoughts) == (200, 12)
    assert list(budget_table("t", [found]).columns[1].cells) == ["200\n12 of thoughts"]
