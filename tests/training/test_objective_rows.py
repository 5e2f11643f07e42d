"""The rows of every objective: labels, weights, pairs, and what is said where there is nothing to learn."""

import json
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ratchet.commands.main import run
from ratchet.commands.train import train_round
from ratchet.core.config import SelectConfig
from ratchet.core.errors import UserError
from ratchet.core.records import Question, Score
from ratchet.report.records import count_rows, read_trained
from ratchet.rewards.selection import select
from ratchet.rewards.summary import single_answer
from ratchet.sampling.store import Trajectories, TrajectoryStore
from ratchet.training.lessons import action_groups, trajectory_lessons
from ratchet.training.objectives.objective import load_objective
from ratchet.training.rows import (
    SCHEMA,
    TokenRow,
    check_rows,
    read_kept,
    table_rows,
)
from tests.helpers.attempts import ACTION, BAD, GOOD, attempt, every_objective, rows_of
from tests.helpers.attempts import start_attempts as start
from tests.helpers.tiny import tiny_format
from tests.helpers.world import prepared_rows, trajectory

REPO = Path(__file__).parents[2]


def said(row: TokenRow) -> str:
    return tiny_format().decode([i for i, learnt in zip(row.ids, row.loss_mask, strict=True) if learnt])


# Rows


@every_objective
def test_the_labels_are_the_sampled_ids(model: Path, tmp_path: Path, settings: dict[str, Any]) -> None:
    _, config, folder = start(tmp_path, model, **settings)
    stored = {
        one.key: one
        for one in TrajectoryStore(folder.trajectories).read([f"t{n}-{s}" for n in range(12) for s in range(4)])
    }
    rows = rows_of(config, folder)
    assert len(rows) > 12 and check_rows(rows, stored) >= len(rows)
    for row in rows:
        calls = [call for call in stored[row.trajectory].model_calls if call.conversation == row.conversation]
        ids = stored[row.trajectory].conversations[row.conversation].ids
        sampled = {at: ids[at] for call in calls for at in range(call.start, call.end)}
        labels = {at: row.ids[at] for at, learnt in enumerate(row.loss_mask) if learnt}
        if row.action is None:
            assert labels == sampled
        else:
            [call] = [call for call in calls if call.start == row.action]
            assert labels == {at: sampled[at] for at in range(call.start, call.end)} and len(row.ids) == call.end
    one = rows[0]
    cut = one.model_copy(update={"ids": one.ids[:-1], "loss_mask": one.loss_mask[:-1]})
    with pytest.raises(ValueError, match=r"cut|differ"):
        check_rows([cut], stored)


def test_the_rows_of_sft_have_no_columns_of_lessons(model: Path, tmp_path: Path) -> None:
    _, config, folder = start(tmp_path, model)
    rows = prepared_rows(config, folder)[0]
    assert rows.table.schema.equals(SCHEMA) and set(rows.table["trajectory"].to_pylist()) == {
        f"t{n}-0" for n in range(12)
    }


def test_a_weight_is_the_reward_less_the_mean_of_the_question(model: Path, tmp_path: Path) -> None:
    _, config, rounds = start(tmp_path, model, objective="weighted")
    weights = {row.trajectory: row.weight for row in rows_of(config, rounds) if row.question == "q3"}
    assert weights == pytest.approx({"t3-0": 0.5, "t3-1": -0.05, "t3-2": -0.025, "t3-3": 0.25})


def test_sides_of_trajectories(model: Path, tmp_path: Path) -> None:
    def sides(folder: str, **training: Any) -> set[tuple[str, str, bool]]:
        _, config, rounds = start(tmp_path / folder, model, **training)
        return {(row.example, row.trajectory, row.chosen) for row in rows_of(config, rounds) if row.question == "q3"}

    assert sides("a", objective="dpo") == {("q3#0", "t3-0", True), ("q3#0", "t3-1", False)}
    expected = {("t3-0", "t3-0", True), ("t3-1", "t3-1", False), ("t3-2", "t3-2", False), ("t3-3", "t3-3", True)}
    assert sides("b", objective="kto") == expected


def test_actions_after_the_same_tokens_are_compared_by_the_mean_reward_of_what_followed(
    model: Path, tmp_path: Path
) -> None:
    _, config, folder = start(tmp_path, model, objective="dpo", **ACTION)
    pairs: dict[str, dict[bool, TokenRow]] = defaultdict(dict)
    for row in rows_of(config, folder):
        pairs[row.example][row.chosen] = row
    first = [pair for pair in pairs.values() if said(pair[True]).startswith(GOOD)]
    assert len(first) == 12
    for pair in first:
        assert said(pair[False]).startswith(BAD)
        assert (pair[True].reward, pair[False].reward) == (0.875, 0.125)
    for pair in pairs.values():
        good, bad = pair[True], pair[False]
        assert good.action == bad.action and good.action is not None
        assert good.ids[: good.action] == bad.ids[: bad.action] and good.ids != bad.ids


def test_nearly_equal_actions_after_the_same_tokens_are_one_where_the_selection_says_so(
    model: Path, tmp_path: Path
) -> None:
    """What the coordinator says last differs in the number of times that it repeats a word."""
    _, _, folder = start(tmp_path, model, objective="kto", **ACTION)
    selection = folder.read_selection()
    assert selection is not None
    attempts = [attempt(1, sample) for sample in range(4)]

    def sizes(similarity: float) -> list[list[int]]:
        rule = {**selection.rule, "similarity": similarity}
        groups = action_groups(attempts, selection.model_copy(update={"rule": rule}))
        return [sorted(len(taken.rewards) for taken in actions) for actions in groups.values()]

    assert sizes(1.0) == [[2, 2], [1, 1], [2], [1, 1]], "the last one: 'Ada TorrinTorrin' and 'Ada TorrinTorrinTorrin'"
    assert sizes(0.01) == [[4], [1, 1], [2], [2]], "what is alike is one action, with the rewards of both"


@pytest.mark.slow
def test_a_pair_with_one_side_too_long_is_left_out(model: Path, tmp_path: Path) -> None:
    _, config, folder = start(tmp_path, model, objective="dpo")
    lengths = {
        row.chosen: max(len(r.ids) for r in rows_of(config, folder) if r.chosen == row.chosen)
        for row in rows_of(config, folder)
    }
    limit = max(lengths[False] - 1, 1)
    limited = config.model_copy(update={"training": config.training.model_copy(update={"max_length": limit})})
    rows = prepared_rows(limited, folder)[0]
    examples = {row.example: set[bool]() for row in table_rows(rows.table)}
    for row in table_rows(rows.table):
        examples[row.example].add(row.chosen)
    assert all(sides == {True, False} for sides in examples.values()) and len(examples) < 12
    assert rows.skipped["the pair's other side has no row"] > 0


# Refusals


@pytest.mark.parametrize(
    ("rewards", "training", "text"),
    [
        ((0.5, 0.5), {"objective": "weighted"}, "none of the 4 kept questions has both"),
        ((0.5, 0.5), {"objective": "dpo"}, "better and worse trajectories"),
        ((0.5, 0.5), {"objective": "kto"}, "better and worse trajectories"),
        ((0.5, 0.5), {"objective": "dpo", **ACTION}, "better and worse actions"),
    ],
)
def test_nothing_to_compare_is_one_line(
    model: Path, tmp_path: Path, rewards: tuple[float, ...], training: dict[str, Any], text: str
) -> None:
    _, config, _ = start(tmp_path, model, questions=4, rewards=rewards, **training)
    with pytest.raises(UserError, match=f"{text}.*set training.objective=sft"):
        train_round(config, 1)


def test_no_question_with_different_rewards_is_one_line(model: Path, tmp_path: Path) -> None:
    _, config, folder = start(tmp_path, model, questions=4)
    asked = [Question(id=f"q{n}", text=f"Who is {n}?", answers=("Ada",)) for n in range(4)]
    attempts = [attempt(n, sample) for n in range(4) for sample in range(2)]
    scores = {(t.key, "f1"): Score(trajectory=t.key, name="f1", value=1.0) for t in attempts}
    chosen = select(asked, Trajectories.of(attempts), scores, {"f1": 1.0}, SelectConfig(drop_all_equal=True))
    folder.selection.write_text(chosen.model_dump_json())
    with pytest.raises(UserError, match=r"no trajectory was kept, .* \(4 x dropped: all rewards are equal"):
        train_round(config, 1)


def test_one_answer_only_is_said(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, config, folder = start(tmp_path, model, questions=4, rewards=(0.5, 0.5), objective="dpo")
    selection = folder.read_selection()
    assert selection is not None
    said = f"warning: all {len(selection.kept)} kept trajectories, of 4 questions, answer 'x', and an adapter may"
    with pytest.raises(UserError, match="better and worse trajectories"):
        train_round(config, 1)
    assert said in capsys.readouterr().err
    kept = [trajectory(f"t{n}", f"q{n}", []).model_copy(update={"answer": answer}) for n, answer in enumerate("xy")]
    assert single_answer(kept) == "" and single_answer(kept[:1]) == "" and single_answer([]) == ""


def test_questions_that_all_weigh_nothing_are_said(model: Path, tmp_path: Path) -> None:
    _, config, folder = start(tmp_path, model)
    selection = json.loads(folder.selection.read_text())
    selection["rule"]["difficulty"] = "failure_rate"
    for choice in selection["questions"]:
        choice["weight"] = 0.0
    folder.selection.write_text(json.dumps(selection))
    with pytest.raises(UserError, match=r"difficulty=failure_rate gives the weight 0 to all 12 kept questions"):
        train_round(config, 1)


def test_a_question_of_a_member_has_the_members_name(model: Path, tmp_path: Path) -> None:
    _, config, folder = start(tmp_path, model, objective="dpo")
    kept = replace(read_kept(config, folder)[0], member="claims")
    lessons = trajectory_lessons(kept.selection, load_objective(config.training), kept.prefix)
    assert {lesson.example for lesson in lessons.values()} == {f"claims/q{n}#0" for n in range(12)}
    assert kept.questions["t3-1"] == "claims/q3"


def test_an_example_with_more_rows_than_a_step_names_the_batch_size(model: Path, tmp_path: Path) -> None:
    _, config, _ = start(tmp_path, model, objective="dpo", batch_size=2)
    with pytest.raises(UserError, match=r"has 3 rows.*training.batch_size to 3 or more, or .*level=action"):
        train_round(config, 1)


# What people see of it


def test_rows_of_an_objective_are_shown_with_what_is_learnt(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, _, _ = start(tmp_path, model, objective="dpo", **ACTION)
    run(["show", "--config", str(path)])
    assert "rows made more likely: 36, less likely: 36\nexamples: 36" in capsys.readouterr().out
    run(["show", "--row", "1", "--config", str(path)])
    assert "; made less likely, reward 0.125, weight 1.000, example q0#coordinator#" in capsys.readouterr().out


@pytest.mark.slow
def test_the_report_marks_the_actions_that_have_rows(model: Path, tmp_path: Path) -> None:
    _, config, folder = start(tmp_path, model, objective="dpo", **ACTION)
    rows_of(config, folder)
    rows = read_trained(folder.rows, {"t3-0"}, {}, config.training.dev_fraction, config.seed)
    [stored] = TrajectoryStore(folder.trajectories).read(["t3-0"])
    first, second = (call for call in stored.model_calls if call.conversation == 0)
    row = rows["t3-0", 0]
    assert (
        count_rows(folder.rows)[0] == 72 and row.learns(first.start, first.end) and row.learns(second.start, second.end)
    )
    assert not row.learns(second.start, second.end + 1) and not row.learns(first.start, second.end)
    [searcher] = (call for call in stored.model_calls if call.conversation == 1)
    assert ("t3-0", 1) not in rows and searcher.start > 0
