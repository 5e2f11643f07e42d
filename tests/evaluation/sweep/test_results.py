"""What a sweep says: differences and their correction, the choice on dev, and the one test."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import permutation_test

from ratchet.core.errors import UserError
from ratchet.evaluation.comparisons import choose
from ratchet.evaluation.sweep_results import choice_sentence, print_sweep
from tests.helpers.sweeping import make_sweep, results_of, run

SYSTEMS = {"plain": {"name": "no_retrieval"}, "one, =search": {"name": "no_retrieval", "settings": {"style": "brief"}}}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole sweep with two systems. There are fewer ways to flip the signs of ten differences than resamples, so the
    test is exact."""
    path = make_sweep(tmp_path_factory.mktemp("sweep"), questions=10, systems=SYSTEMS)
    assert run(path) == 0
    return path


@pytest.mark.slow
def test_differences_are_paired_and_corrected_over_all_that_a_table_shows(finished: Path) -> None:
    dev = [cell for cell in results_of(finished).cells if cell.stage == "dev"]
    bases = {cell.system: cell for cell in dev if cell.checkpoint == "base"}
    assert len(dev) == 4 * 2 and all(cell.difference is None and cell.p_holm is None for cell in bases.values())
    p_values = {}
    for cell in dev:
        if cell.checkpoint == "base":
            continue
        first, second = (np.array([v["f1"] for v in c.arm.values.values()]) for c in (bases[cell.system], cell))
        exact = permutation_test(
            (second, first), lambda a, b: np.round(np.mean(a - b), 12), permutation_type="samples", n_resamples=np.inf
        )
        assert cell.difference is not None and cell.difference.p is not None
        assert cell.difference.mean == pytest.approx(float(np.mean(second - first)))
        assert cell.difference.p == pytest.approx(exact.pvalue)
        p_values[cell.difference.p, cell.system, cell.checkpoint] = cell.p_holm
    # Holm by hand: the smallest times 6, the next times 5, never below the one before.
    floor = 0.0
    for number, ((p, _, _), corrected) in enumerate(sorted(p_values.items())):
        floor = max(floor, min(1.0, (6 - number) * p))
        assert corrected == pytest.approx(floor)


@pytest.mark.slow
def test_the_choice_is_the_best_mean_on_dev_alone_and_is_compared_with_the_best_untrained_system(
    finished: Path,
) -> None:
    results = results_of(finished)
    for choice in results.choices:
        means = {
            cell.checkpoint: cell.arm.measures["f1"].mean or 0.0
            for cell in results.cells
            if cell.stage == "dev" and cell.system == choice.system
        }
        assert choice.mean == pytest.approx(max(means.values())) == pytest.approx(means[choice.checkpoint])
    test = [cell for cell in results.cells if cell.stage == "test"]
    chosen = {(choice.system, choice.checkpoint) for choice in results.choices}
    assert {(cell.system, cell.checkpoint) for cell in test if cell.tested} == chosen
    assert {(cell.system, cell.checkpoint) for cell in test} == chosen | {(name, "base") for name in SYSTEMS}
    untrained = [cell.arm.measures["f1"].mean or 0.0 for cell in test if cell.checkpoint == "base"]
    trained = [cell for cell in test if cell.tested and cell.checkpoint != "base"]
    assert len(untrained) == 2 and trained
    out = io.StringIO()
    print_sweep(results, out)
    for cell in trained:
        best = cell.best_untrained
        assert best is not None and best.candidates == 2 and best.costs["calls"].ratio == 1.0
        assert best.difference.before == max(untrained)
        sentence = f"test, {cell.system}, {cell.checkpoint}: Untrained {best.name} -> trained: F1 "
        assert sentence in " ".join(out.getvalue().split())
    assert not any(cell.best_untrained for cell in results.cells if cell not in trained)


def test_ties_go_to_the_first_and_the_choice_says_how_far_it_leads() -> None:
    def sets(*values: list[float]) -> list[dict[str, float]]:
        return [dict(zip("ab", of_set, strict=False)) for of_set in values]

    arms = {"base": sets([0.0, 1.0], [0.5]), "a": sets([1.0, 1.0], [0.5]), "later": sets([1.0, 1.0], [0.5])}
    chosen = choose(arms)
    assert chosen is not None and (chosen.best, chosen.questions) == ("a", 3)
    assert chosen.means["a"] == 0.75, "each set weighs alike"
    assert "level with later" in choice_sentence("mrag", chosen.means, "f1")
    arms["later"] = sets([1.0, 1.0], [0.9])
    chosen = choose(arms)
    assert chosen is not None and chosen.best == "later"
    assert "0.200 ahead of a" in choice_sentence("mrag", chosen.means, "f1")
    fewest = choose(arms, lower_is_better=True)
    assert fewest is not None and fewest.best == "base", "of failures, the fewest"
    assert choose({"base": sets([1.0], [1.0]), "a": sets([1.0], [])}) is None, "no question that both have"


def count_evaluations(path: Path) -> int:
    return len(json.loads((path.parent / "run" / "sweep" / "test.json").read_text())["looks"])


@pytest.mark.slow
def test_the_test_set_is_measured_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = make_sweep(tmp_path)
    alone, together = ["--set", "sweep.runs=[]"], ["--set", "sweep.runs=null"]
    assert run(path, *alone) == 0
    assert run(path, "test", *alone) == 0
    assert count_evaluations(path) == 1, "resuming with the same choice adds no record"
    first = results_of(path).choices[0].checkpoint
    assert first == "base"
    run(path, "cell", "0/1", *together)
    run(path, "merge", *together)
    chosen = results_of(path).choices[0].checkpoint
    assert chosen != first, "the adapters that came along are better on dev"
    assert any("dev now chooses" in note for note in results_of(path).notes)
    with pytest.raises(UserError, match=rf"test was already measured on .*{first}.*--again"):
        run(path, "test", *together)
    assert count_evaluations(path) == 1
    assert {cell.checkpoint for cell in results_of(path).cells if cell.tested} == {first}
    capsys.readouterr()
    assert run(path, "test", "--again", *together) == 0
    assert count_evaluations(path) == 2
    assert "The test set test was measured 2 times" in " ".join(capsys.readouterr().out.split())
    results = results_of(path)
    assert {cell.checkpoint for cell in results.cells if cell.tested} == {chosen}
    assert results.set("test").looks == 2


@pytest.mark.slow
def test_an_interrupted_test_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_sweep(tmp_path)
    run(path, "cell", "0/1")
    with monkeypatch.context() as patched:
        patched.setattr("ratchet.commands.sweep.run_cells", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            run(path, "test")
    assert count_evaluations(path) == 1
    assert run(path, "merge") == 1, "what was started on test is missing"
    assert run(path, "test") == 0
    assert count_evaluations(path) == 1
