"""The control of a random selection: what it is trained on, and that it resumes like the round's own training."""

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from ratchet.commands.train import train_round
from ratchet.core.config import Config
from ratchet.core.errors import UserError
from ratchet.core.files import write_json, write_jsonl
from ratchet.core.records import Selection
from ratchet.core.runfolder import RoundFolder, RunFolder
from ratchet.questions.leakage import check_adapter_leakage
from ratchet.questions.load import load_questions
from ratchet.rounds.ledger import read_ledger
from ratchet.sampling.store import TrajectoryStore
from ratchet.training.rows import check_rows, read_rows, table_rows
from tests.helpers.commands import command_of
from tests.helpers.world import make_run, sample_trajectory

SAMPLES = 4


def start(folder: Path, **training: Any) -> tuple[Path, Config, RoundFolder]:
    """A round with four trajectories a question: the first is kept, and one is not well-formed."""
    path, config, round_folder = make_run(folder, **training)
    selection = round_folder.read_selection()
    assert selection is not None
    choices = []
    for number, choice in enumerate(selection.questions):
        others = [sample_trajectory(100 * sample + number, number) for sample in range(1, SAMPLES)]
        others[-1] = others[-1].model_copy(update={"status": "unparsed"})
        write_jsonl(round_folder.trajectories / f"more-{number}.jsonl", others)
        rewards = choice.rewards | {trajectory.key: 0.0 for trajectory in others}
        choices.append(choice.model_copy(update={"rewards": rewards}))
    changed = selection.model_copy(update={"questions": tuple(choices)})
    write_json(round_folder.selection, changed.model_dump(mode="json"))
    return path, config, round_folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Config, RoundFolder]:
    """A round and its control, both trained; not to be changed."""
    path, config, folder = start(tmp_path_factory.mktemp("trained"))
    for arguments in ([], ["--control", "random"]):
        command_of("train")(["--config", str(path), "--set", "evaluation.controls=[random]", *arguments])
    return config, folder


@pytest.mark.slow
def test_the_control_is_trained_on_as_many_random_trajectories_with_the_same_settings(
    trained: tuple[Config, RoundFolder],
) -> None:
    config, folder = trained
    control = folder.control("random")
    chosen, selection = control.read_selection(), folder.read_selection()
    assert chosen is not None and selection is not None
    assert [len(choice.kept) for choice in chosen.questions] == [len(choice.kept) for choice in selection.questions]
    stored = {
        trajectory.key: trajectory for trajectory in TrajectoryStore(folder.trajectories).read(sampled(selection))
    }
    assert all(stored[key].question_id == c.question_id for c in chosen.questions for key in c.kept)
    assert {stored[key].status for key in chosen.kept} == {"finished"}
    assert set(chosen.kept) - set(selection.kept), "whatever their reward"
    assert set(chosen.kept) & set(selection.kept), "the kept ones may be chosen too"

    rows = read_rows(control.rows)
    assert set(rows.table["trajectory"].to_pylist()) == set(chosen.kept)
    assert check_rows(table_rows(rows.table), stored) == 3 * len(chosen.kept), "labels are the sampled ids"
    ours, theirs = (json.loads((one.adapter / "training.json").read_bytes()) for one in (control, folder))
    assert {key for key in ours["made_of"] if ours["made_of"][key] != theirs["made_of"][key]} == {"rows"}
    cards = [(one.adapter / "README.md").read_text() for one in (control, folder)]
    assert ["chosen at random" in card for card in cards] == [True, False]
    assert ["control" in facts for facts in (ours, theirs)] == [True, False]
    assert ["best ones kept" in card for card in cards] == [False, True]
    assert (ours["round"], ours["steps"], ours["batch"]) == (theirs["round"], theirs["steps"], theirs["batch"])
    weights = [load_file(one.adapter / "adapter_model.safetensors") for one in (control, folder)]
    assert any((weights[0][name] != weights[1][name]).any() for name in weights[0])
    assert [entry.stage for entry in read_ledger(RunFolder(config.folder))] == ["train", "train.random"]


def sampled(selection: Selection) -> list[str]:
    return [key for choice in selection.questions for key in choice.rewards]


@pytest.mark.slow
def test_the_control_says_what_it_was_trained_on_and_is_stopped_before_those_questions(
    trained: tuple[Config, RoundFolder],
) -> None:
    config, folder = trained
    questions = load_questions(config.questions.train, config.seed)
    with pytest.raises(UserError, match=r"control-random/adapter was trained on 12 of the 12 questions"):
        check_adapter_leakage(folder.control("random").adapter, questions, config.questions.leakage)


def test_objectives_that_learn_from_rewards_have_no_such_control(tmp_path: Path) -> None:
    _, config, folder = start(tmp_path, objective="weighted")
    with pytest.raises(UserError, match=r"--control random is not possible here: training\.objective=weighted"):
        train_round(config, 1, control="random")
    assert not folder.control("random").selection.exists()
