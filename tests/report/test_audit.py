"""The reward beside a second opinion, round by round, and what the page says where they part."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from ratchet.core.files import write_record
from ratchet.core.selection import Audit, Audited
from ratchet.report.audit import audit_sentences
from ratchet.report.plots import audit_curves, audit_rows
from ratchet.report.rounds import RoundNumbers
from tests.helpers.handmade_rounds import make_rounds
from tests.helpers.handmade_run import make_run
from tests.helpers.reported import gathered, page

Pairs = Sequence[tuple[float | None, float | None]]


def an_audit(pairs: Pairs, judge: str = "other") -> Audit:
    """One of these (reward, audit), a question each."""
    sampled = {f"q{n}": Audited(trajectory=f"t{n}", reward=r, audit=a) for n, (r, a) in enumerate(pairs)}
    return Audit(weights={"correctness": 1.0}, judge=judge, sampled=sampled, kept=dict(list(sampled.items())[:1]))


def spread(reward: float, audit: float, questions: int = 40) -> Pairs:
    """Values of so many questions around these means."""
    return [(reward + 0.1 * (n % 3 - 1), audit + 0.1 * (n % 5 - 2)) for n in range(questions)]


def sentences(*audits: Audit | None) -> list[str]:
    rounds = [RoundNumbers(n, None, None, None, None, audit=audit) for n, audit in enumerate(audits, 1)]
    return audit_sentences(rounds)


def test_a_clear_parting_is_said_with_both_intervals() -> None:
    before, after = an_audit(spread(0.4, 0.6)), an_audit(spread(0.6, 0.3)[:30])
    [said] = sentences(before, after)
    assert said.startswith(
        "From round 1 to round 2 the reward rose (+0.200 [0.200, 0.200]) while the audit fell (−0.300 "
    )
    assert "on 30 questions that both rounds have: the model may have learnt to please the reward" in said


def test_a_slow_fall_is_seen_since_the_first_round() -> None:
    mixed = [(0.5, 0.5), (0.5, 0.3)]
    said = sentences(an_audit(spread(0.4, 0.6)), None, an_audit(spread(0.4, 0.5)), an_audit(spread(0.5, 0.5)))
    assert len(said) == 1 and said[0].startswith("From round 1 to round 4 ")
    [few] = sentences(an_audit([(0.4, 0.5), (0.5, 0.5)]), an_audit(mixed))
    assert "on 2 questions" in few and few.endswith(
        "This may be chance: not both changes are clear. More rewards.audit.questions would tell."
    )


def test_only_what_can_be_compared_is() -> None:
    rising = an_audit(spread(0.4, 0.6)), an_audit(spread(0.6, 0.7))
    assert sentences(*rising) == ["In no round did the reward rise while the audit fell."]
    assert sentences(rising[0]) == sentences(None, None) == []
    [said] = sentences(rising[0], an_audit(spread(0.6, 0.3), judge="third"))
    assert "not compared" in said
    unknown = an_audit([(None, 0.1), (0.9, None)])
    assert sentences(an_audit([(0.1, 0.9), (0.1, 0.9)]), unknown) == [
        "In no round did the reward rise while the audit fell."
    ]


def test_the_page_shows_both_curves(tmp_path: Path) -> None:
    config, run = make_rounds(tmp_path, dev=4, train=2)
    values = {1: spread(0.4, 0.6), 2: spread(0.5, 0.6), 3: spread(0.6, 0.3)}
    for number, pairs in values.items():
        write_record(run.round(number).audit, an_audit(pairs))
    shown = page(config, run.round(3))
    assert "Reward and audit" in shown and "1 × correctness, judged by other" in shown
    assert "From round 2 to round 3 the reward rose" in shown and "From round 1 to round 3 the reward rose" in shown
    rows = audit_rows(gathered(config, run.round(3)).rounds)
    assert [round(row.sampled["audit"].mean or 0, 2) for row in rows] == [0.6, 0.6, 0.3]
    assert [row.kept["reward"].n for row in rows] == [1, 1, 1]
    assert audit_curves(rows) is not None and audit_curves(rows[:1]) is None


@pytest.mark.usefixtures("undrawn")
def test_a_run_without_an_audit_has_no_such_part(tmp_path: Path) -> None:
    config, folder = make_run(tmp_path, train=4, test=4)
    assert "Reward and audit" not in page(config, folder)
