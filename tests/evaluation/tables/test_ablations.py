"""Which settings a config's baselines change alone, and the figures of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from commands.tables import ablations
from evaluation.results import BASE
from evaluation.tables.settings import ablated_settings, draw
from ratchet.config import load_config
from ratchet.errors import UserError
from tests.helpers.verdict_arms import claims, results_of


def test_the_settings_of_tool_mads_config_are_those_of_figures_8_to_10_and_table_vi() -> None:
    config = load_config("configs/papers/tool_mad.yaml")
    found = ablated_settings(config.system, config.evaluation.baselines)
    assert found.keys() == {"rounds", "query_formulation", "stability", "agents"}
    assert found["rounds"] == {3.0: BASE, 1.0: "one round", 2.0: "two rounds", 4.0: "four rounds"}
    assert found["stability"] == {"true": BASE, "false": "without stability scores"}
    assert len(found["agents"]) == 6 and found["agents"]["rag + none"] == "RAG + none"


def test_a_number_is_a_line_for_each_question_set_and_anything_else_is_bars() -> None:
    sets = [
        results_of(claims("SSSS"), {"base": ["SSSR"], "less": ["SRRR"]}, "FEVER"),
        results_of(claims("SSSS"), {"base": ["SSSS"], "less": ["SSRR"]}, "FAVIQ"),
    ]
    (axes,) = draw("rounds", {3.0: "base", 1.0: "less", 4.0: "not run"}, sets).axes
    lines = {str(line.get_label()): np.asarray(line.get_ydata())[:2].tolist() for line in axes.lines}
    assert lines == {"FEVER": [25, 75], "FAVIQ": [50, 100]}
    (axes,) = draw("stability", {"true": "base", "false": "less"}, sets).axes
    heights = [[bar.get_height() for bar in bars] for bars in axes.containers]
    assert heights == [[75, 100], [25, 50]]
    assert [text.get_text() for text in axes.get_xticklabels()] == ["FEVER", "FAVIQ"]


def test_without_results_it_says_what_to_run(config_path: Path) -> None:
    with pytest.raises(UserError, match="run `python -m evaluation` first"):
        ablations(["--config", str(config_path)], "x")
