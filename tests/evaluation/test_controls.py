"""The base model sampled again, and an adapter of a random selection, as arms beside base and trained."""

from pathlib import Path

import pytest

from ratchet.core.config import Config, load_config
from ratchet.core.errors import UserError
from ratchet.core.runfolder import RoundFolder
from ratchet.evaluation.arms import read_arms
from ratchet.evaluation.comparisons import compare, question_changes, selection_gain
from ratchet.evaluation.headline import changes_sentence, verdict
from ratchet.evaluation.results import QuestionChanges
from ratchet.questions.manifest import open_run
from ratchet.rounds.adapters import promote
from tests.evaluation.test_compare import evaluate, invented_arms, opened, record_training_questions, right
from tests.helpers.adapter_folders import save_adapter
from tests.helpers.commands import command_of

main = command_of("evaluate")

CONTROLS = "evaluation.controls=[base-again, random]"


def with_controls(config_path: Path) -> tuple[Config, RoundFolder]:
    config = load_config(config_path, [CONTROLS])
    folder = open_run(config).round(1)
    save_adapter(folder.control("random").adapter, 3.0)
    return config, folder


@pytest.mark.slow
def test_controls_are_arms_with_keys_of_their_own_and_change_no_other_arm(config_path: Path) -> None:
    config, folder = opened(config_path)
    evaluate(config, folder, "test", folder.adapter)
    before = {name: store.keys() for name, store in read_arms(folder, "test").items()}
    config, folder = with_controls(config_path)
    results = evaluate(config, folder, "test", folder.adapter)
    assert [arm.name for arm in results.arms] == ["base", "adapter", "random selection", "base again", "plain"]
    stores = read_arms(folder, "test")
    assert {name: stores[name].keys() for name in before} == before, "what was sampled before is the same"
    assert stores["base again"].folder == stores["base"].folder.with_name("base-seed+1")
    seeds = {name: {t.seed for t in stores[name].read()} for name in ("base", "base again")}
    assert not seeds["base"] & seeds["base again"] and not set(before["base"]) & set(stores["base again"].keys())
    assert {t.policy for t in stores["base again"].read()} == {"base"}
    assert results.best_baseline is not None and results.best_baseline.name == "plain", "a control is no baseline"
    again = results.comparison("base again")
    assert again is not None and again.changes is not None
    assert (again.changes.gained, again.changes.broken, again.changes.questions) == (0, 0, 6)
    assert results.selection is not None and results.selection.n == 6
    assert "Selection shows no clear difference from random trajectories: +0.00 [0.00, 0.00] in F1" in results.verdict


@pytest.mark.slow
def test_a_control_is_trained_apart_and_may_not_be_asked_its_training_questions(
    config_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = load_config(config_path, [CONTROLS])
    folder = open_run(config).round(1)
    with pytest.raises(UserError, match=r"control-random/adapter: there is no adapter here.*--control random"):
        evaluate(config, folder, "test", folder.adapter)
    assert [arm.name for arm in evaluate(config, folder, "test", None).arms] == ["base", "base again", "plain"]
    other = evaluate(config, folder, "test", save_adapter(config_path.parent / "other", 2.0))
    assert other.arm("random selection") is None, "it is the control of the round's own adapter"
    with_controls(config_path)
    main(["--config", str(config_path), "--set", CONTROLS])
    line = "questions gained 0, broken 0; base again against base: gained 0, broken 0"
    assert line in capsys.readouterr().out
    main(["table", "--config", str(config_path)])
    assert line in capsys.readouterr().out, "the table shows the arms that were run"
    record_training_questions(config, folder.control("random").adapter)
    with pytest.raises(UserError, match=r"control-random/adapter was trained on 6 of the 6 questions of test"):
        evaluate(config, folder, "test", folder.adapter)


@pytest.mark.slow
def test_a_promotion_on_dev_samples_the_base_again_once_for_all_rounds_and_no_random_selection(
    config_path: Path,
) -> None:
    config = load_config(config_path, [CONTROLS, "rounds.count=2"])
    run = open_run(config)
    promote(config, 1)
    save_adapter(run.round(2).adapter, 2.0)
    promote(config, 2)
    arms = [read_arms(run.round(number), "dev") for number in (1, 2)]
    assert [list(names) for names in arms] == [["base", "adapter", "base again"]] * 2, "nothing was promoted"
    assert arms[0]["base again"] == arms[1]["base again"]


@pytest.mark.parametrize(
    ("random", "expected"),
    [
        (10, "Selection is worth +0.28 ["),
        (24, "Selection shows no clear difference from random trajectories: +0.00 [0.00, 0.00] in F1, p = 1.000 on"),
        (40, "Selection is worth -0.32 ["),
    ],
)
def test_the_headline_says_what_selection_is_worth_over_random_trajectories(random: int, expected: str) -> None:
    questions, arms = invented_arms(base=right(4), adapter=right(24), random=right(random))
    control = arms[2].model_copy(update={"name": "random selection"})
    worth = selection_gain([arms[0], arms[1], control], "f1", 0)
    numbers = verdict(compare(arms[0], arms[1], questions, "f1", 0), "f1", selection=worth)[1]
    assert expected in numbers
    assert ("in F1 over random trajectories, p < 0.001 on 50 questions." in numbers) == (random != 24)
    assert selection_gain(arms[:2], "f1", 0) is None


def test_questions_are_gained_and_broken_one_by_one() -> None:
    questions, arms = invented_arms(base=[True] * 4 + [False] * 6, adapter=[False] * 3 + [True] * 6 + [False])
    changes = compare(arms[0], arms[1], questions, "f1", 0).changes
    assert changes == QuestionChanges(gained=5, broken=3, questions=10)
    assert changes_sentence(changes, None) == "questions gained 5, broken 3"
    assert changes_sentence(None, changes) == "base again against base: gained 5, broken 3", "without an adapter"
    assert changes_sentence(None, None) == ""
    assert question_changes({"a": 0.2, "b": 0.9, "c": None}, {"a": 0.7, "b": 0.41, "c": 1.0}) == QuestionChanges(
        gained=1, broken=0, questions=2
    )
