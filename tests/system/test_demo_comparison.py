"""python -m benchmarks.demo: how long each stage took."""

from __future__ import annotations

from benchmarks.demo import stage_seconds


def test_a_stage_lasts_until_the_next_begins() -> None:
    said = "== 1/3 index (0s so far)\nx\n\n== 2/3 score and select (5s so far)\n"
    said += "== 3/3 report (1m02s so far)\ndone in 2m00s; it is"
    assert stage_seconds(said) == {"index": 5, "score and select": 57, "report": 58, "all": 120}
