"""Credit by role: rows of the roles that keep a trajectory, and losses with the weights of roles."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from peft import PeftModel
from transformers import AutoModelForCausalLM

from ratchet.commands.config import open_config
from ratchet.commands.train import train_round
from ratchet.core.config import Config, TrainingConfig
from ratchet.core.errors import UserError
from ratchet.core.files import read_log, write_json
from ratchet.core.records import Question, Score
from ratchet.core.runfolder import RoundFolder
from ratchet.rewards.selection import select
from ratchet.sampling.store import Trajectories
from ratchet.training.lessons import action_lessons
from ratchet.training.objectives.objective import load_objective
from ratchet.training.rows import has_lessons, read_rows, split_rows
from tests.helpers.attempts import REWARDS, attempt, label_logps, make_attempts, rows_of
from tests.helpers.world import make_run, prepared_rows
from tests.training.test_objective_processes import SETTINGS, WEIGHTS, defined_loss


def dev_rows(config: Config, folder: RoundFolder) -> list[dict[str, Any]]:
    rows, question_of = prepared_rows(config, folder)
    dev: list[dict[str, Any]] = split_rows(rows.table, question_of, config.training.dev_fraction, config.seed)[
        1
    ].to_pylist()
    return dev


@pytest.mark.slow
def test_the_loss_of_sft_is_the_defined_one_with_the_weights_of_roles(tmp_path: Path) -> None:
    """Those of the other objectives: test_objective_processes.py."""
    _, config, folder = make_attempts(tmp_path, **SETTINGS)
    train_round(config, 1)
    log = {line["step"]: line["dev_loss"] for line in read_log(folder.training / "log.jsonl") if "dev_loss" in line}
    before = AutoModelForCausalLM.from_pretrained(config.models["agent"].path).eval()
    rows = dev_rows(config, folder)
    assert log[0] == pytest.approx(defined_loss(config.training, rows, before, before), rel=1e-4)
    facts = json.loads((folder.adapter / "training.json").read_text())
    assert facts["step"] > 0 and facts["training"]["role_weights"] == WEIGHTS
    now = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(config.models["agent"].path), folder.adapter)
    assert log[facts["step"]] == pytest.approx(defined_loss(config.training, rows, now.eval(), before), rel=1e-4)


def label_logps_sum(model: Any, row: dict[str, Any]) -> float:
    return sum(label_logps(model, row))


def test_rows_of_a_role_with_0_are_not_learnt_and_whole_weights_keep_the_plain_rows(tmp_path: Path) -> None:
    _, config, folder = make_run(tmp_path)
    every = rows_of(config, folder)
    _, config, folder = make_run(tmp_path, role_weights={"coordinator": 0, "searcher": 1})
    assert rows_of(config, folder) == [row for row in every if row.role == "searcher"]
    assert not has_lessons(read_rows(folder.rows).table)
    assert "role_weights" not in TrainingConfig().model_dump(mode="json"), "the digests of earlier runs stay"


OWN = """
from ratchet.training.objectives.sft import SupervisedFineTuning


class SearchesAlone(SupervisedFineTuning):
    learns_from_kept_alone = False

    def loss(self, rows):
        mine = rows.now.new_tensor([role == "searcher" for role in rows.roles])
        return (-mine[:, None] * rows.weights[:, None] * rows.now).where(rows.learnt, 0).sum()


OBJECTIVE = SearchesAlone
"""


@pytest.mark.slow
def test_an_objective_of_ones_own_sees_the_role_of_each_row(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    _, config, folder = make_attempts(tmp_path, objective=str(tmp_path / "own.py"), max_steps=1, batch_size=8)
    train_round(config, 1)
    first = next(line["dev_loss"] for line in read_log(folder.training / "log.jsonl") if "dev_loss" in line)
    model, rows = AutoModelForCausalLM.from_pretrained(config.models["agent"].path).eval(), dev_rows(config, folder)
    searcher = sum(label_logps_sum(model, row) for row in rows if row["role"] == "searcher")
    assert first == pytest.approx(-searcher / sum(sum(row["loss_mask"]) for row in rows), rel=1e-4)


@pytest.mark.parametrize(
    ("training", "message"),
    [
        ({"conversations": "all"}, r"training\.conversations: .* no system\.name here is `external`"),
        (
            {"role_weights": {"seacher": 2}},
            r"training\.role_weights\.seacher: no role of this name is trained .*did you mean 'searcher'",
        ),
        ({"role_weights": {"searcher": -1}}, r"training\.role_weights\.searcher.*greater than or equal to 0"),
    ],
)
def test_a_wrong_role_or_weight_is_refused_when_the_config_is_read(
    tmp_path: Path, training: dict[str, Any], message: str
) -> None:
    path, _, _ = make_run(tmp_path)
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | {"training": training}))
    with pytest.raises(UserError, match=message):
        open_config(path)


# Selection by role

BY_ROLE = {"f1": 1.0, "useful_searches": 1.0}


def select_by_role(folder: Path, **training: Any) -> tuple[Config, RoundFolder]:
    """Attempts of which the good searches end in a wrong answer, and the bad coordinator is right."""
    _, config, rounds = make_attempts(folder, **training)
    made = [attempt(n, sample) for n in range(12) for sample in range(len(REWARDS))]
    asked = [Question(id=f"q{n}", text=f"Who is {n}?", answers=("Ada",)) for n in range(12)]
    scores = {}
    for one in made:
        searches = len(one.conversations) == 3
        roles = {"searcher": REWARDS[one.sample]} if searches else {}
        roles["coordinator"] = 1.0 - REWARDS[one.sample]
        value = sum(roles.values()) / len(roles)
        scores[one.key, "f1"] = Score(trajectory=one.key, name="f1", value=0.0)
        scores[one.key, "useful_searches"] = Score(trajectory=one.key, name="useful_searches", value=value, roles=roles)
    rule = config.rewards.select.model_copy(update={"similarity": None})  # the searchers of a question say the same
    selection = select(asked, Trajectories.of(made), scores, BY_ROLE, rule)
    write_json(rounds.selection, selection.model_dump(mode="json"))
    return config, rounds


def test_a_role_learns_the_rows_that_it_keeps_and_no_others(tmp_path: Path) -> None:
    config, folder = select_by_role(tmp_path)
    rows = rows_of(config, folder)
    assert {(row.role, row.trajectory.partition("-")[2]) for row in rows} == {("searcher", "0"), ("coordinator", "1")}
    assert len(rows) == 2 * 12


@pytest.mark.parametrize("objective", ["weighted", "dpo", "kto"])
def test_objectives_compare_a_roles_attempts_by_its_own_rewards(tmp_path: Path, objective: str) -> None:
    config, folder = select_by_role(tmp_path, objective=objective)
    by_role: dict[str, dict[str, tuple[float | None, bool]]] = {"searcher": {}, "coordinator": {}}
    for row in rows_of(config, folder):
        if row.question == "q0":
            by_role[row.role][row.trajectory] = (row.reward, row.chosen)
    # Rewards are half of the values: the other score is 0. The searcher acts in the samples 0 and 3 alone.
    assert by_role["searcher"] == {"t0-0": (0.5, True), "t0-3": (0.375, False)}
    best, worst = by_role["coordinator"]["t0-1"], by_role["coordinator"]["t0-0"]
    assert (best, worst) == ((0.5, True), (0.0, False))
    examples = {(row.role, row.example) for row in rows_of(config, folder)}
    assert objective == "weighted" or len(examples) == len({example for _, example in examples}), "no example is shared"


def test_actions_have_the_rewards_of_their_role(tmp_path: Path) -> None:
    config, folder = select_by_role(tmp_path, objective="dpo", preference={"level": "action"})
    selection = folder.read_selection()
    assert selection is not None
    trajectories = [attempt(n, sample) for n in range(12) for sample in range(len(REWARDS))]
    found = list(action_lessons(trajectories, selection, load_objective(config.training)))
    # The first action of the coordinator: attempts 1 and 2 ended at once, 0 and 3 asked the searcher.
    first = [lesson for taken, lesson in found if taken.trajectory.startswith("t0-")][:2]
    assert [(one.reward, one.chosen) for one in first] == [(pytest.approx((0.5 + 0.375) / 2), True), (0.0625, False)]
