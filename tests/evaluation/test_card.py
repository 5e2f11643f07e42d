"""An adapter's card has the results of the evaluation of that adapter."""

from pathlib import Path

from ratchet.core.escape import markdown_text
from ratchet.evaluation.headline import complete_card
from ratchet.evaluation.results import Results
from ratchet.inference.adapters import adapter_digest
from ratchet.training.adapter import RESULTS_BEGIN, RESULTS_END
from tests.evaluation.tables.test_widths import invented
from tests.helpers.adapter_folders import save_adapter
from tests.helpers.verdict_arms import claims, results_of


def of_policy(results: Results, policy: str) -> Results:
    arms = [arm.model_copy(update={"policy": policy}) if arm.name == "adapter" else arm for arm in results.arms]
    return results.model_copy(update={"arms": tuple(arms)})


def test_the_card_has_the_results_against_base_and_baseline_with_form_and_substance_apart(tmp_path: Path) -> None:
    adapter = save_adapter(tmp_path / "adapter")
    card = adapter / "README.md"
    card.write_text(f"before\n{RESULTS_BEGIN}\nearlier results\n{RESULTS_END}\nafter\n")
    results = of_policy(invented(), adapter_digest(adapter))
    assert complete_card(adapter, [results])
    once = card.read_text()
    assert complete_card(adapter, [results]) and card.read_text() == once, "written again, the same"
    assert once.startswith("before\n") and once.endswith("\nafter\n") and "earlier" not in once
    assert "| F1, strict | 0.100 [0.025, 0.200] | 0.350 [0.200, 0.500] | 0.850 [0.725, 0.950] | +0.250 [" in once
    assert "| F1 among answered (substance) | 0.100" in once and "| actions that parsed (form) |" in once
    assert "In form, finished with an answer: " in once and "in substance, F1 on " in once
    assert markdown_text(results.verdict) in once and "iterative_retrieval_generation" in once


def test_the_card_shows_the_means_that_a_difference_is_of(tmp_path: Path) -> None:
    adapter = save_adapter(tmp_path / "adapter")
    card = adapter / "README.md"
    card.write_text(f"{RESULTS_BEGIN}\n{RESULTS_END}\n")
    results = results_of(claims("SRNSRNSRNS"), {"base": ["SRNS??????"], "adapter": ["RRNSRNSRNR"]})
    assert complete_card(adapter, [of_policy(results, adapter_digest(adapter))])
    assert "| Accuracy among answered (substance) (4) | 1.000 | 0.750 | -0.250" in card.read_text()


def test_results_of_another_adapter_are_not_written(tmp_path: Path) -> None:
    adapter = save_adapter(tmp_path / "adapter")
    assert not complete_card(adapter, [of_policy(invented(), adapter_digest(adapter))]), "it has no card"
    (adapter / "README.md").write_text(f"{RESULTS_BEGIN}\n{RESULTS_END}\n")
    assert not complete_card(adapter, [of_policy(invented(), "another")])
