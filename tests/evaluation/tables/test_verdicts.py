"""Tables of labelled question sets: what they show, and that names from outside are no markup."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from ratchet.core.errors import UserError
from ratchet.core.records import Label, Passage, Question, Recall, ToolCall
from ratchet.evaluation.results import Results
from ratchet.evaluation.tables.suite import average_table, print_suite
from ratchet.evaluation.tables.verification import print_verdicts
from tests.helpers.arms import make_arm
from tests.helpers.commands import command_of
from tests.helpers.scripted import scripted_experiment
from tests.helpers.verdict_arms import claims, results_of, said

main = command_of("evaluate")

GOLD = "SSRRNN"
ARMS = {"base": ["SRRRSN"], "debate": ["SSRRU!"]}


def printed(*suite: Results) -> str:
    out = io.StringIO()
    print_suite(suite, out)
    return out.getvalue()


def row(text: str, name: str) -> list[str]:
    return next(line for line in text.splitlines() if line.strip().startswith(name)).split()


def test_a_labelled_set_shows_accuracy_and_macro_f1_with_intervals_and_differences() -> None:
    shown = printed(results_of(claims(GOLD), ARMS))
    assert "accuracy" in shown and "macro-F1 - base" in shown and "EM" not in shown and "answer found" not in shown
    debate = " ".join(row(shown, "debate"))
    assert debate.startswith("debate 66.7 [33.3, 100.0] 66.7 [") and " +0.0 [" in debate
    assert "83.3" in row(shown, "debate"), "one of six failed"


def test_the_average_of_macro_f1_weighs_each_set_alike() -> None:
    right, wrong = results_of(claims("SR"), {"base": ["SR"]}, "a"), results_of(claims("SRSR"), {"base": ["RSRS"]}, "b")
    table = average_table([right, wrong])
    cells = [next(iter(column.cells)) for column in table.columns]
    assert cells[1:5] == ["100.0 / 100.0", "0.0 / 0.0", "50.0", "50.0"]


def test_sets_with_labels_are_not_averaged_with_others() -> None:
    labelled = results_of(claims(GOLD), ARMS)
    other = labelled.model_copy(update={"primary": "f1"})
    assert "All question sets" not in printed(labelled, other)
    shown = printed(labelled, labelled, other)
    assert "All question sets with accuracy: accuracy / macro-F1" in shown


def test_tool_calls_are_shown_and_memory_where_there_is_one() -> None:
    questions = claims("S")
    passage = Passage(id="p", document_id="d", text="x")
    looked = ToolCall(role="r", source="s", tool="t", arguments={}, at=0, seconds=0)
    recalled = Recall(role="r", entities=("x",), passages=(passage, passage), at=0, seconds=0)
    results = results_of(questions, {"base": ["S"]})
    assert "called" not in printed(results).replace("tool calls", "")
    arm = make_arm(
        "base", "s", "base", questions, said(questions, ["S"], (looked, looked, looked, recalled)), {}, (), {}
    )
    assert (arm.measures["tool_calls"].mean, arm.measures["recalled"].mean) == (3, 2)
    shown = printed(results.model_copy(update={"arms": (arm,)}))
    assert "called" in shown and row(shown, "s (base)")[5:7] == ["3.0", "2.0"]


def verdicts_printed(*suite: Results) -> str:
    out = io.StringIO()
    print_verdicts(suite, out)
    return out.getvalue()


def test_the_confusion_of_every_arm_and_what_uncertain_verdicts_are_worth() -> None:
    shown = verdicts_printed(results_of(claims(GOLD), ARMS))
    base, _, debate = shown.partition("claims, debate: accuracy 66.7")
    assert row(base, "NOT ENOUGH INFO")[3:] == ["1", "0", "1", "0", "0", "0", "0", "0", "2", "100.0", "50.0", "66.7"]
    assert row(debate, "NOT ENOUGH INFO")[3:] == ["0", "0", "0", "1", "0", "0", "0", "1", "2", "-", "0.0", "0.0"]
    unsure = debate.partition("uncertain verdicts")[2]
    assert row(unsure, "debate")[1] == "16.7" and row(unsure, "s (base)")[2] == "16.7"


def test_labels_from_outside_are_not_markup() -> None:
    labels = (Label(name="[red]yes[/]", meaning=""), Label(name="[/]", meaning=""))
    question = Question(id="q", text="?", labels=labels, label="[/]")
    made = [t.model_copy(update={"answer": "[red]yes[/]"}) for t in said([question], ["X"])]
    arm = make_arm("base", "s", "base", [question], made, {}, (), {})
    results = results_of(claims("S"), {"base": ["S"]}, "[bold]set[/bold]").model_copy(update={"arms": (arm,)})
    assert "[red]yes[/]" in verdicts_printed(results) and "[bold]set[/bold]" in verdicts_printed(results)


def test_a_set_without_labels_is_refused_by_name() -> None:
    question = Question(id="q", text="?", answers=("x",))
    arm = make_arm("base", "s", "base", [question], said([question], ["X"]), {}, (), {})
    results = results_of(claims("S"), {"base": ["S"]}, "quiz").model_copy(update={"arms": (arm,)})
    with pytest.raises(UserError, match="quiz have no label"):
        verdicts_printed(results)


def test_the_command_tells_verdicts_from_what_is_stored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [question.model_dump(mode="json") for question in claims("SR")]
    baselines = {"again": {"name": "no_retrieval"}}
    evaluation = {"scores": ["accuracy"], "baselines": baselines}
    rewards = {"weights": {"accuracy": 1.0}}
    path = scripted_experiment(
        tmp_path, [{"default": "SUPPORTS"}], {"test": rows}, rewards=rewards, evaluation=evaluation
    )
    main(["--config", str(path), "--base-only"])
    assert "50.0 [0.0, 100.0]" in capsys.readouterr().out
    main(["verdicts", "--config", str(path)])
    shown = capsys.readouterr().out
    assert "test, no_retrieval (base): accuracy 50.0" in shown and "test, again:" in shown
    assert row(shown, "REFUTES")[1:3] == ["1", "0"]
