"""The end of `ratchet selftrain`, from a stored run of the demo: it is short, and as the README shows it."""

import io
import json

import pytest

from ratchet.evaluation.measures.estimates import Estimate
from ratchet.evaluation.results import Results
from ratchet.evaluation.tables.comparison import print_summary
from tools.last_screen import README, SHOWN, STORED, last_screen

RUN = json.loads(STORED.read_text())
RESULTS = Results.model_validate_json(json.dumps(RUN["results"]))


def test_it_has_at_most_25_lines_of_80_columns_and_is_what_the_readme_shows() -> None:
    screen = last_screen(RESULTS, RUN["duration"])
    lines = screen.splitlines()
    assert len(lines) <= 25 and max(map(len, lines)) <= 80
    assert SHOWN.findall(README.read_text()) == [screen], "run: python -m tools.last_screen"


@pytest.mark.parametrize(
    ("bound", "above", "shown"),
    [("low", 0.01, False), ("high", -0.01, False), ("high", 0.01, True), ("low", -0.01, True)],
)
def test_another_form_of_a_measure_is_shown_where_it_is_outside_the_interval(
    bound: str, above: float, shown: bool
) -> None:
    base, trained, *others = RESULTS.arms
    mean = getattr(trained.measures["f1"], bound) + above
    lenient = {"f1_lenient": Estimate(mean=mean, n=RESULTS.questions)}
    changed = trained.model_copy(update={"measures": trained.measures | lenient})
    out = io.StringIO()
    print_summary([RESULTS.model_copy(update={"arms": (base, changed, *others)})], out)
    assert ("lenient" in out.getvalue()) == (f" {mean:.3f} " in out.getvalue()) == shown
    assert "as returned" not in out.getvalue()
