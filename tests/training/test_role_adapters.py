"""One adapter for each role: what each is trained on, what a kill leaves, and who is asked with which."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from pydantic import ValidationError
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from commands.train import train_round
from inference.adapters import (
    adapter_digest,
    adapter_of_role,
    checked_digest,
    is_adapter,
    read_adapter,
    single_adapters,
)
from questions.leakage import check_adapter_leakage
from questions.load import load_questions
from ratchet.config import Config, TrainingConfig, load_config
from ratchet.errors import UserError
from ratchet.files import read_log
from ratchet.runfolder import RoundFolder
from rounds.artefacts import Adapter, Digests
from rounds.ledger import collect_facts
from rounds.stage import ExperimentRun
from rounds.status import _training
from tests.helpers.attempts import start_attempts
from tests.helpers.killed_training import killed_after
from tests.helpers.world import curve, make_run, prepared_rows
from training.adapter import read_facts
from training.lessons import with_numbers
from training.role_adapters import rows_of_roles
from training.rows import row_lengths

ROLE: dict[str, Any] = {"adapters": "role", "max_steps": 6, "eval_steps": 2}
ROLES = ("coordinator", "searcher")


def start(folder: Path, model: Path, **training: Any) -> tuple[Path, Config, RoundFolder]:
    folder.mkdir(exist_ok=True)
    (folder / "model").symlink_to(model)
    return make_run(folder, **ROLE | training)


@pytest.fixture(scope="module")
def finished(model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Config, RoundFolder]:
    """A trained round; not to be changed."""
    _, config, folder = start(tmp_path_factory.mktemp("finished"), model)
    train_round(config, 1)
    return config, folder


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "adapter_model.safetensors")


def same(one: Path, other: Path) -> bool:
    ours, theirs = weights(one), weights(other)
    return all(torch.allclose(ours[name], theirs[name], atol=1e-6) for name in theirs)


@pytest.mark.slow
def test_every_role_has_an_adapter_that_learnt_from_its_rows_alone(finished: tuple[Config, RoundFolder]) -> None:
    config, folder = finished
    assert json.loads((folder.adapter / "roles.json").read_text()) == {role: role for role in ROLES}
    facts, table = read_facts(folder.adapter), prepared_rows(config, folder)[0].table
    assert facts is not None and set(facts["adapters"]) == set(ROLES)
    for role in ROLES:
        own = read_facts(folder.adapter / role)
        lengths = row_lengths(table.filter([one == role for one in table["role"].to_pylist()]))
        assert own is not None and set(own["rows"]["roles"]) == {role}
        assert own["rows"]["train"] < len(lengths) == own["rows"]["train"] + own["rows"]["dev"]
        assert read_log(folder.training / role / "training" / "log.jsonl")
    assert facts["rows"]["train"] == sum(one["rows"] for one in facts["adapters"].values())
    assert not same(folder.adapter / "coordinator", folder.adapter / "searcher")


def test_it_is_known_checked_and_described_as_one_adapter(finished: tuple[Config, RoundFolder], tmp_path: Path) -> None:
    config, folder = finished
    digest = checked_digest(folder.adapter)
    assert is_adapter(folder.adapter) and digest == adapter_digest(folder.adapter)
    assert digest not in {read_adapter(one).digest for one in single_adapters(folder.adapter)}
    experiment = ExperimentRun(config, ())
    assert Adapter(folder.adapter).digest(Digests(experiment.run)) == digest
    facts = collect_facts({"adapter": Adapter(folder.adapter)})
    assert facts["steps"] == 12 and facts["dev_loss"] < facts["dev_loss_before"]
    card = (folder.adapter / "README.md").read_text()
    assert 'load_adapter("path/to/this/folder/searcher", adapter_name="searcher")' in card
    assert "| `coordinator` | coordinator |" in card and "<!-- results: begin -->" in card
    asked = load_questions(config.questions.train, config.seed)
    with pytest.raises(UserError, match="was trained on"):
        check_adapter_leakage(folder.adapter, asked, config.questions.leakage, "test", strict=True)
    copy = tmp_path / "copy"
    shutil.copytree(folder.adapter, copy)
    assert adapter_digest(copy) == digest, "a moved folder keeps its digest"
    shutil.copy(copy / "coordinator" / "adapter_model.safetensors", copy / "searcher" / "adapter_model.safetensors")
    assert adapter_digest(copy) != digest


def test_its_adapters_load_in_plain_peft(finished: tuple[Config, RoundFolder]) -> None:
    config, folder = finished
    base = AutoModelForCausalLM.from_pretrained(config.models["agent"].path)
    loaded = PeftModel.from_pretrained(base, folder.adapter / "coordinator", adapter_name="coordinator")
    loaded.load_adapter(str(folder.adapter / "searcher"), adapter_name="searcher")
    ids, found = torch.tensor([[5, 6, 7, 8]]), []
    for role in ROLES:
        loaded.set_adapter(role)
        with torch.no_grad():
            found.append(loaded(ids).logits)
    assert not torch.allclose(found[0], found[1])


@pytest.mark.slow
def test_groups_share_an_adapter_and_a_second_run_does_nothing(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, config, folder = start(tmp_path, model, adapters={"both": ["coordinator", "searcher"]}, max_steps=2)
    train_round(config, 1)
    assert single_adapters(folder.adapter) == [str(folder.adapter / "both")]
    assert adapter_of_role(folder.adapter, "searcher") == adapter_of_role(folder.adapter, "coordinator")
    assert adapter_of_role(folder.adapter, "answerer") is None, "a role without an adapter is the base model"
    _, plain, alone = start(tmp_path / "shared", model, adapters="shared", max_steps=2)
    train_round(plain, 1)
    assert same(folder.adapter / "both", alone.adapter), "one group of all roles is the shared adapter"
    before = (folder.adapter / "both" / "adapter_model.safetensors").stat().st_mtime_ns
    capsys.readouterr()
    train_round(config, 1)
    assert "is complete" in capsys.readouterr().err
    assert (folder.adapter / "both" / "adapter_model.safetensors").stat().st_mtime_ns == before


@pytest.mark.slow
def test_killed_while_the_second_is_trained_it_finishes_with_the_same_curves(
    model: Path, finished: tuple[Config, RoundFolder], tmp_path: Path
) -> None:
    _, config, folder = start(tmp_path, model)
    with killed_after(3, trainings=1):
        train_round(config, 1)
    first = folder.training / "coordinator" / "adapter" / "adapter_model.safetensors"
    done = first.stat().st_mtime_ns
    assert _training(folder).startswith("searcher: step "), "what status shows of it"
    train_round(config, 1)
    assert first.stat().st_mtime_ns == done, "the first was complete"
    _, whole = finished
    for role in ROLES:
        ours, theirs = (curve(RoundFolder(one.training / role)) for one in (folder, whole))
        assert ours == [pytest.approx(line, rel=1e-5) for line in theirs]
        assert same(folder.adapter / role, whole.adapter / role)


@pytest.mark.slow
def test_a_later_round_continues_each_from_its_own(
    model: Path, finished: tuple[Config, RoundFolder], tmp_path: Path
) -> None:
    first = finished[1].adapter
    _, config, folder = start(tmp_path, model, max_steps=1)
    train_round(config, 1, start=first)
    facts = read_facts(folder.adapter)
    assert facts is not None and facts["made_of"]["starting adapter"] == adapter_digest(first)
    for role in ROLES:
        own = read_facts(folder.adapter / role)
        assert own is not None and own["made_of"]["starting adapter"] == adapter_digest(first / role)
    _, grouped, _ = start(tmp_path / "grouped", model, adapters={"all": list(ROLES)})
    with pytest.raises(UserError, match="have different adapters there"):
        train_round(grouped, 1, start=first)
    _, shared, _ = start(tmp_path / "shared", model, adapters="shared")
    with pytest.raises(UserError, match=r"holds an adapter for each role \(roles\.json\)"):
        train_round(shared, 1, start=first)


def test_a_role_that_acts_in_good_trajectories_alone_is_named_where_both_sides_are_needed(
    model: Path, tmp_path: Path
) -> None:
    _, config, _ = start_attempts(tmp_path / "run", model, adapters="role", objective="dpo")
    with pytest.raises(UserError, match=r"searcher has no rows of both better and worse ones"):
        train_round(config, 1)


def test_a_group_compares_only_pairs_in_which_its_roles_act_on_both_sides(model: Path, tmp_path: Path) -> None:
    _, config, folder = start_attempts(tmp_path, model, objective="dpo")
    rows = with_numbers(prepared_rows(config, folder)[0].table)
    train, dev = rows_of_roles(config.training, ["searcher"], rows, rows.slice(0, 0))
    assert len(train) == len(dev) == 0, "no worse trajectory has a searcher"
    train, dev = rows_of_roles(config.training, ["coordinator"], rows.slice(0, 20), rows.slice(20))
    sides: dict[str, set[bool]] = {name: set() for name in train["example"].to_pylist()}
    for name, side in zip(train["example"].to_pylist(), train["chosen"].to_pylist(), strict=True):
        sides[name].add(side)
    assert all(found == {True, False} for found in sides.values()) and sides
    numbers = [*train["number"].to_pylist(), *dev["number"].to_pylist()]
    assert numbers == list(range(len(train) + len(dev))), "numbered among themselves"


def test_what_does_not_fit_is_said_before_torch_is_loaded(model: Path, tmp_path: Path) -> None:
    path, config, _ = start(tmp_path, model, adapters={"one": ["coordinator"]})
    with pytest.raises(UserError, match="the trainable role searcher is in no group"):
        train_round(config, 1)
    with pytest.raises(ValidationError, match="coordinator: is named twice"):
        TrainingConfig(adapters={"a": ("coordinator",), "b": ("coordinator",)})
    with pytest.raises(ValidationError, match="a group has a name of letters"):
        TrainingConfig(adapters={"../a": ("coordinator",)})
    with pytest.raises(UserError, match=r"training\.choose_by: reward chooses one adapter"):
        load_config(path, ["training.choose_by=reward"])


def test_servers_have_a_slot_for_every_adapter(model: Path, tmp_path: Path) -> None:
    path, _, _ = start(tmp_path, model)
    slots = {
        adapters: load_config(path, [f"training.adapters={adapters}"]).serve_config("agent").adapters
        for adapters in ("shared", "role", "{a: [coordinator], b: [searcher]}")
    }
    assert slots == {"shared": 2, "role": 9, "{a: [coordinator], b: [searcher]}": 3}
    assert load_config(path, ["models.agent.serve.adapters=4"]).serve_config("agent").adapters == 4
