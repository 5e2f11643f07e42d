"""Several question sets at once, methods side by side, and the same tables from what is stored."""

import io
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.text import Text

from ratchet.core.errors import UserError
from ratchet.core.records import Question, Trajectory
from ratchet.evaluation.measures.estimates import Estimate
from ratchet.evaluation.results import Results
from ratchet.evaluation.tables.suite import _method_table, average_table, print_suite
from ratchet.inference.scripted import ScriptedEngine
from tests.helpers.arms import make_arm
from tests.helpers.commands import command_of
from tests.helpers.scripted import scripted_experiment, split_of
from tests.helpers.verdict_arms import compared

main = command_of("evaluate")

NAMES = ("Ada Pell", "Jory Fenn", "Mina Ostler", "Sanna Leith", "Ilse Varrow", "Tomas Quern")


@pytest.fixture
def config_path(tmp_path: Path) -> Path:
    """Two methods on two question sets; a scripted engine knows half of the first set and all of the second."""
    light, tower = (
        [{"id": f"{kind}{i}", "text": f"Who keeps {kind} {i}?", "answers": [n]} for i, n in enumerate(NAMES)]
        for kind in ("light", "tower")
    )
    script = [{"match": f"light {i}?", "reply": NAMES[i]} for i in range(3)]
    script += [{"match": f"tower {i}?", "reply": name} for i, name in enumerate(NAMES)]
    evaluation = {
        "scores": ["em", "f1"],
        "benchmarks": {"towers": split_of(tmp_path, "towers")},
        "baselines": {"reads": {"name": "naive_rag"}},
    }
    rules = [*script, {"default": "nobody"}]
    return scripted_experiment(tmp_path, rules, {"test": light, "towers": tower}, evaluation=evaluation)


@pytest.mark.slow
def test_every_method_on_every_question_set_and_again_without_a_model(
    config_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["--config", str(config_path), "--base-only", "--all-measures"])
    first = capsys.readouterr().out
    assert "test: 6 questions" in first and "towers: 6 questions" in first
    rows = {line.split()[0]: line for line in first.partition("All question sets")[2].splitlines() if line.strip()}
    assert "50.0 / 50.0" in rows["no_retrieval"] and "100.0 / 100.0" in rows["no_retrieval"]
    assert " 75.0 [" in rows["reads"] and "+0.0" in rows["reads"] and "[0.0, 0.0]" not in rows["reads"]

    async def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("a stored trajectory was sampled again")

    monkeypatch.setattr(ScriptedEngine, "generate", refuse)
    monkeypatch.setattr("ratchet.inference.engines.open_engine", refuse)
    main(["table", "--config", str(config_path), "--all-measures"])
    assert capsys.readouterr().out == first


@pytest.mark.slow
def test_what_awe_chose_between_is_shown_and_stored(config_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = ["--config", str(config_path), "--set", "system={name: awe}", "--split", "towers", "--all-measures"]
    main([*config, "--base-only"])
    first = capsys.readouterr().out
    assert "towers: the answers that awe (base) chose between" in first
    assert "knowledge_first alone" in first and "any candidate" in first
    main(["table", *config])
    assert capsys.readouterr().out == first


def test_what_no_mean_holds_is_counted_once(config_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = yaml.safe_load(config_path.read_text())
    config["evaluation"]["scores"] = ["em", "f1", "nugget_containment"]
    config_path.write_text(yaml.safe_dump(config))
    main(["--config", str(config_path), "--base-only", "--split", "towers", "--all-measures"])
    shown = capsys.readouterr().out
    assert shown.count("towers, reads: trajectories without a value, skipped: nugget_containment 6") == 1


def test_one_question_set_alone(config_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["--config", str(config_path), "--base-only", "--split", "towers"])
    shown = capsys.readouterr().out
    assert "towers: 6 questions" in shown and "test: 6" not in shown and "All question sets" not in shown
    with pytest.raises(UserError, match=r"--split towrs: no such split.*towers"):
        main(["--config", str(config_path), "--base-only", "--split", "towrs"])


@pytest.mark.parametrize("name", ["train", "test", "../away", ".hidden"])
def test_a_benchmark_cannot_take_a_name_that_is_taken(config_path: Path, name: str) -> None:
    config = yaml.safe_load(config_path.read_text())
    config["evaluation"]["benchmarks"] = {name: config["evaluation"]["benchmarks"]["towers"]}
    config_path.write_text(yaml.safe_dump(config))
    with pytest.raises(UserError, match="choose another"):
        main(["--config", str(config_path), "--base-only"])


def results_of(title: str, base: list[bool], other: list[bool]) -> Results:
    questions = [Question(id=f"{title}{i}", text="?", answers=("yes",)) for i in range(len(base))]
    fixed: dict[str, Any] = {"system": "s", "policy": "base", "sample": 0, "seed": 0, "status": "finished"}
    arms = []
    for name, right in (("base", base), ("other", other)):
        made = [
            Trajectory(key=f"{name}{question.id}", question_id=question.id, answer="yes" if is_right else "no", **fixed)
            for question, is_right in zip(questions, right, strict=True)
        ]
        arms.append(make_arm(name, "s", "base", questions, made, {}, ("em", "f1"), {}))
    return compared(title, questions, arms, "f1")


def printed(*suite: Results) -> str:
    out = io.StringIO()
    print_suite(suite, out)
    return out.getvalue()


def test_the_average_weighs_each_question_set_alike() -> None:
    small, large = results_of("small", [True] * 4, [False] * 4), results_of("large", [False] * 40, [False] * 40)
    cells = [[*map(str, column.cells)] for column in average_table([small, large]).columns]
    assert cells[3][0] == "50.0", "4 right of 44, but half of the sets"
    assert cells[5] == ["", "-50.0"], "no interval where all differences are equal"


def test_p_values_are_corrected_over_everything_that_is_shown() -> None:
    one = results_of("one", [False] * 10, [True] * 6 + [False] * 4)
    raw = one.comparisons[0].measures["f1"].p
    assert raw == pytest.approx(2 / 64)
    alone = next(line for line in printed(one).splitlines() if line.strip().startswith("other"))
    both = next(line for line in printed(one, one).splitlines() if line.strip().startswith("other"))
    assert " 0.031 " in alone and " 0.062 " in both


def test_a_difference_has_the_colour_of_the_p_value_beside_it() -> None:
    one = results_of("one", [False] * 10, [True] * 6 + [False] * 4)
    for p, colour in ((0.031, "green"), (0.062, ""), (None, "")):
        table = _method_table(one, {} if p is None else {"other": p})
        cell = list(table.columns[3].cells)[1]
        assert isinstance(cell, Text) and cell.plain.startswith("+60.0") and cell.style == colour


def test_sampling_the_base_again_is_no_comparison_that_p_values_are_corrected_for() -> None:
    one = results_of("one", [False] * 10, [True] * 6 + [False] * 4)
    again = one.arms[1].model_copy(update={"name": "base again"})
    noise = one.comparisons[0].model_copy(update={"arm": "base again"})
    both = one.model_copy(update={"arms": (*one.arms, again), "comparisons": (*one.comparisons, noise)})
    lines = [line for line in printed(both).splitlines() if line.strip().startswith(("other", "base again"))]
    assert " 0.031 " in lines[0] and " 0.031 " not in lines[1] and "+60.0" in lines[1]


@pytest.mark.parametrize(
    ("form", "faithfulness", "title"), [("", "75.0", "in"), ("_as_returned", "80.0", "as returned, in")]
)
def test_long_answers_show_what_the_judge_says(form: str, faithfulness: str, title: str) -> None:
    """In the primary measure's form."""
    one = results_of("one", [True] * 3, [True] * 3)
    means = {"correctness": 0.5, "correctness_as_returned": 0.6, "faithfulness": 0.75, "faithfulness_as_returned": 0.8}
    measures = one.arms[0].measures | {name: Estimate(mean=mean, n=3) for name, mean in means.items()}
    arms = (one.arms[0].model_copy(update={"measures": measures}), one.arms[1])
    shown = printed(one.model_copy(update={"primary": f"correctness{form}", "arms": arms}))
    assert "Nugget correctness" in shown and "Faithfulness" in shown and "EM" not in shown
    assert f" {faithfulness} " in shown and f"1 sample(s) each, {title} percent" in shown


def test_an_arm_that_is_missing_on_a_question_set_is_not_averaged() -> None:
    one, two = results_of("one", [True] * 3, [True] * 3), results_of("two", [True] * 3, [True] * 3)
    two = two.model_copy(update={"arms": two.arms[:1], "comparisons": ()})
    table = average_table([one, two])
    assert [*map(str, table.columns[0].cells)] == ["s (base)"]
