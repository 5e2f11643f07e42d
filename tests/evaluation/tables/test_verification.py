"""Tables of fact verification: confusions and uncertain verdicts, thresholds of debates, and what a memory saves."""

import io
import re
from pathlib import Path
from typing import Any

import pytest

from ratchet.core.config import Config, load_config
from ratchet.core.errors import UserError
from ratchet.core.records import Label, Passage, Question, Recall, Search, ToolCall, Trajectory, Turn
from ratchet.evaluation.formats import shown_measures
from ratchet.evaluation.results import Results
from ratchet.evaluation.tables.suite import average_table, print_suite
from ratchet.evaluation.tables.verification import (
    TurnScore,
    find_thresholds,
    known_values,
    memory_pairs,
    print_savings,
    print_verdicts,
    savings,
    threshold_table,
    turn_scores,
)
from ratchet.questions.labels import FEVER
from tests.helpers.arms import make_arm
from tests.helpers.commands import command_of
from tests.helpers.configs import SPLITS, config_values
from tests.helpers.scripted import scripted_experiment
from tests.helpers.verdict_arms import claims, compared, results_of, said

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
    cells = [str(next(iter(column.cells))) for column in table.columns]
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
    searched = Search(role="r", query="q", k=1, offset=0, at=0, seconds=0, passages=())
    arm = make_arm("base", "s", "base", questions, said(questions, ["S"], (searched, searched)), {}, (), {})
    results = results.model_copy(update={"arms": (arm,)})
    assert {"searches", "tool_calls"} & set(shown_measures(results, "cost")) == {"searches"}, "they are the same"
    assert re.search("searches", printed(results)) and row(printed(results), "s (base)")[5] == "2.0"


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


@pytest.mark.slow
def test_the_command_tells_verdicts_from_what_is_stored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [question.model_dump(mode="json") for question in claims("SR")]
    baselines = {"again": {"name": "no_retrieval"}}
    evaluation = {"scores": ["accuracy"], "baselines": baselines}
    rewards = {"weights": {"accuracy": 1.0}}
    path = scripted_experiment(
        tmp_path, [{"default": "SUPPORTS"}], {"test": rows}, rewards=rewards, evaluation=evaluation
    )
    main(["--config", str(path), "--base-only", "--all-measures"])
    assert "50.0 [0.0, 100.0]" in capsys.readouterr().out
    main(["verdicts", "--config", str(path)])
    shown = capsys.readouterr().out
    assert "test, no_retrieval (base): accuracy 50.0" in shown and "test, again:" in shown
    assert row(shown, "REFUTES")[1:3] == ["1", "0"]


QUESTION = Question(id="q", text="It is so.", form="claim", labels=FEVER, label="SUPPORTS")


def trajectory(key: str, answer: str, *turns: tuple[int, str, str, float | None], question: str = "q") -> Trajectory:
    fields: dict[str, Any] = {"system": "tool_mad", "policy": "base", "sample": 0, "seed": 0, "status": "finished"}
    made = tuple(
        Turn(round=number, speaker=agent, said="so", verdict=verdict, scores={"faithfulness": value})
        for number, agent, verdict, value in turns
    )
    return Trajectory(key=key, question_id=question, answer=answer, turns=made, **fields)


UNLABELLED = QUESTION.model_copy(update={"id": "u", "label": None})
SCORES = list(
    turn_scores(
        [QUESTION, UNLABELLED],
        [
            trajectory("a", "SUPPORTS", (1, "rag", "REFUTES", 0.25), (2, "rag", "SUPPORTS", 0.75)),
            trajectory("b", "REFUTES", (1, "rag", "SUPPORTS", 1.0), (1, "search", "REFUTES", None)),
            trajectory("c", "REFUTES", (1, "rag", "", 0.1)),
            trajectory("d", "SUPPORTS", (1, "rag", "SUPPORTS", 0.9), question="u"),
        ],
    )
)


def test_scores_are_those_of_turns_with_a_label_and_right_where_the_label_is() -> None:
    assert len(SCORES) == 4, "turns without a label and questions without one have no scores"
    right, wrong = (known_values(SCORES, side, "faithfulness") for side in (True, False))
    assert (right, wrong) == ([0.75, 1.0], [0.25])


def scores_of(name: str, right: list[float], wrong: list[float | None]) -> list[TurnScore]:
    values = [*((value, True) for value in right), *((value, False) for value in wrong)]
    return [TurnScore(name, value, is_right) for value, is_right in values]


@pytest.mark.parametrize(("quantile", "threshold"), [(0.0, 0.1), (0.25, 0.2), (0.3, 0.2), (0.5, 0.666), (1.0, 0.8)])
def test_a_threshold_is_reached_by_the_share_that_was_asked_for(quantile: float, threshold: float) -> None:
    right = [0.8, 0.1, 2 / 3, 0.2, 0.7]
    assert find_thresholds(scores_of("faithfulness", right, []), quantile) == {"faithfulness": threshold}
    assert sum(value >= threshold for value in right) >= (1 - quantile) * len(right)


def test_the_table_shows_who_reaches_a_threshold_and_what_is_unknown() -> None:
    scores = scores_of("relevance", [0.5, 1.0], [0.9, 0.1, 0.2, 0.3, None]) + scores_of("faithfulness", [], [0.5])
    thresholds = find_thresholds(scores, 0.0)
    assert thresholds == {"relevance": 0.5, "faithfulness": None}, "without a right answer there is no threshold"
    columns = [map(str, column.cells) for column in threshold_table("dev", scores, thresholds).columns]
    assert list(zip(*columns, strict=True)) == [
        ("relevance", "0.500", "2", "100.0%", "4", "25.0%", "1"),
        ("faithfulness", "-", "0", "-", "1", "-", "0"),
    ]


def debate_config(folder: Path) -> Path:
    """The config of one claim, whose debate is scripted."""
    script = [
        {"match": '"statements": {', "reply": '{"verdicts": [1, 0]}'},
        {"match": '"noncommittal"', "reply": "unreadable, so that no embedder is needed"},
        {"match": '"statements"', "reply": '{"statements": ["a", "b"]}'},
        {"prompt": "Write one query", "reply": "[harbour]"},
        {"default": "It is.\nSUPPORTS"},
    ]
    debate = {"name": "tool_mad", "settings": {"agents": ["rag", "rag"], "rounds": 1, "questions": 1}}
    return scripted_experiment(
        folder,
        script,
        {"test": [QUESTION.model_dump(mode="json")]},
        rewards={"weights": {"accuracy": 1.0}},
        evaluation={"scores": ["accuracy"], "baselines": {"debate": debate}},
    )


@pytest.mark.slow
def test_thresholds_come_from_dev(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = debate_config(tmp_path)
    words = ["--config", str(config)]
    with pytest.raises(UserError, match="--split dev"):
        main(["thresholds", *words])
    with pytest.raises(SystemExit):
        main(["thresholds", "--help"])
    assert "evaluation.benchmarks (default: dev)" in " ".join(capsys.readouterr().out.split())
    main([*words, "--split", "dev", "--base-only"])
    capsys.readouterr()
    main(["thresholds", *words, "--quantile", "0.5"])
    said = capsys.readouterr().out
    [flag] = re.findall(r"--set '(embedder\.thresholds=.*)'", said)
    calibrated = load_config(config, [flag]).embedder.thresholds
    assert (calibrated.faithfulness, calibrated.relevance) == (0.5, 0.8), "one setting, which every debate reads"
    with pytest.raises(UserError, match="from 0 to 1"):
        main(["thresholds", *words, "--quantile", "25"])
    main([*words, "--split", "test", "--base-only"])
    with pytest.raises(UserError, match="never on the questions that are reported"):
        main(["thresholds", *words, "--split", "test"])


OFF: dict[str, Any] = {"name": "mermaid", "settings": {"memory": "off"}}


def settings_with(folder: Path, **baselines: Any) -> Config:
    split = {"path": str(folder / "claims.jsonl")}
    benchmarks = {"second": split, "second, shuffled": {**split, "order": "shuffled"}}
    values = config_values(
        folder,
        questions=dict.fromkeys(SPLITS, split),
        system={"name": "mermaid"},
        rewards={"weights": {"accuracy": 1.0}},
        evaluation={"baselines": baselines, "benchmarks": benchmarks},
    )
    return Config.model_validate(values)


def measured(split: str, calls: dict[str, list[int]]) -> Results:
    """Arms with so many tool calls on each claim."""
    questions = claims("S" * len(next(iter(calls.values()))))
    call = ToolCall(role="executor", source="s", tool="search", arguments={}, at=0.0, seconds=0.0)
    arms = []
    for name, counts in calls.items():
        done = [
            each.model_copy(update={"events": (call,) * count})
            for each, count in zip(said(questions, ["S" * len(questions)]), counts, strict=True)
        ]
        arms.append(make_arm(name, "mermaid", "base", questions, done, {}, (), {}))
    return compared(split, questions, arms, "accuracy")


def test_an_arm_is_compared_with_the_one_that_differs_in_its_memory_alone(tmp_path: Path) -> None:
    settings = settings_with(
        tmp_path,
        plain=OFF,
        meaning={"name": "mermaid", "settings": {"memory": "meaning", "memory_keys": "facts"}},
        short={"name": "mermaid", "settings": {"steps": 3}},
        other={"name": "cot"},
    )
    assert memory_pairs(settings) == {"base": "plain", "meaning": "plain"}
    with pytest.raises(UserError, match="no arm with a memory has a partner"):
        print_savings(settings_with(tmp_path, other={"name": "cot"}), [])


def test_savings_are_shares_of_all_calls_and_orders_are_totalled_apart(tmp_path: Path) -> None:
    settings = settings_with(tmp_path, plain=OFF)
    suite = [
        measured("test", {"base": [1, 1, 0], "plain": [4, 4, 2]}),
        measured("second", {"base": [5, 5], "plain": [5, 5]}),
        measured("second, shuffled", {"base": [3, 3], "plain": [2, 2]}),
    ]
    found = list(savings(settings, suite, {"base": "plain"}))
    assert [(one.title, one.calls, one.saved.mean) for one in found] == [
        ("test", (10, 2), 0.8),
        ("second", (10, 10), 0.0),
        ("second, shuffled", (4, 6), -0.5),
        ("all 2 sets, in file order", (20, 12), 0.4),
    ]
    assert found[0].saved.low is not None and found[0].saved.low <= 0.8 <= (found[0].saved.high or 0)
    out = io.StringIO()
    print_savings(settings, suite, out)
    assert "all 2 sets, in file order" in out.getvalue() and "40.0" in out.getvalue()


def test_without_calls_nothing_can_be_saved(tmp_path: Path) -> None:
    suite = [measured("test", {"base": [0, 0], "plain": [0, 0]})]
    [one] = savings(settings_with(tmp_path, plain=OFF), suite, {"base": "plain"})
    assert one.saved.mean is None
