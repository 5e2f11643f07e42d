"""The control of gold answers: the action that replaces a sampled one, for every system, and the adapter made of it."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from ratchet.agents.core.system import load_system
from ratchet.commands.train import train_round
from ratchet.core.config import Config, SystemConfig, load_config
from ratchet.core.errors import UserError
from ratchet.core.files import read_segments, write_json, write_jsonl
from ratchet.core.plugins import known_plugins
from ratchet.core.records import Question, QuestionChoice, Trajectory
from ratchet.core.runfolder import RoundFolder, RunFolder
from ratchet.inference.completion import Message, SamplingParams
from ratchet.rounds.ledger import read_ledger
from ratchet.sampling.store import TrajectoryStore
from ratchet.training.gold import with_last_action, write_gold
from ratchet.training.rows import TokenRow, build_rows, check_rows, prepare_rows, read_rows, table_rows
from tests.helpers.any_system import VARIANTS, Library, Talker, play_any, task_of
from tests.helpers.commands import command_of
from tests.helpers.playing import engine, play
from tests.helpers.tiny import tiny_format
from tests.helpers.world import dialogue, make_run, trajectory

SETTINGS: list[tuple[str, dict[str, Any]]] = [
    *VARIANTS,
    ("awe", {"paths": "knowledge"}),
    ("awe", {"paths": "retrieval", "answer_form": "marked"}),
    ("naive_rag", {"answer_form": "marked"}),
]
GOLD = [(name, own) for name, own in SETTINGS if load_system(SystemConfig(name=name, settings=own)).spec.gold_action]


def learnt(row: TokenRow) -> list[str]:
    """The sampled actions of a row, in words."""
    text = tiny_format().decode([i for i, is_learnt in zip(row.ids, row.loss_mask, strict=True) if is_learnt])
    return text.removesuffix("<|im_end|>").split("<|im_end|>")


def test_systems_of_one_call_have_the_control() -> None:
    named = {name for name, _ in GOLD}
    assert named == {
        "awe", "cot", "direct", "mermaid", "mrag", "naive_gen", "naive_rag", "no_retrieval", "vanilla_rag",
    } and named < set(known_plugins("systems"))  # fmt: skip


@pytest.mark.parametrize(("name", "own"), GOLD, ids=[f"{name} {json.dumps(own)}" for name, own in GOLD])
async def test_the_gold_action_is_read_as_the_gold_answer_and_is_what_is_learnt(name: str, own: dict[str, Any]) -> None:
    question = task_of(name)
    system = load_system(SystemConfig(name=name, settings=own))
    assert system.spec.gold_action is not None
    role, action = system.spec.gold_action(question, system.settings)
    sampled, agent = await play_any(name, own)
    made = with_last_action(sampled, question, role, action, tiny_format())
    rows, _ = build_rows(made, 100_000)
    assert check_rows(rows, {made.key: made}) > 0
    [row] = [row for row in rows if row.role == role]
    assert learnt(row)[-1] == action and made.answer == question.gold_answer
    prompt = row.ids[: len(row.ids) - len(tiny_format().encode(action)) - 1]
    assert prompt in [call.prompt for call in agent.calls], "the prompt is the sampled one"

    # Were the model to say it where it was asked for the answer, the system would return it.
    talker, asked = Talker(), tiny_format().decode(prompt)

    def reply(text: str, params: SamplingParams, messages: Sequence[Message]) -> str:
        return action if text == asked else talker.reply("", params, messages)

    again = await play({"name": name, "settings": own}, engine(reply), Library(), question=question)
    assert again.answer == question.gold_answer


SYSTEM = {"name": "naive_gen", "roles": {"default": {"max_tokens": 40}}}


def start(folder: Path, system: dict[str, Any], **training: Any) -> tuple[Path, Config, RoundFolder]:
    """A round of which nothing was kept: two attempts at each of twelve questions, all wrong, one of them cut off."""
    path, config, rounds = make_run(folder, **training)
    settings = yaml.safe_load(path.read_text()) | {"system": system}
    path.write_text(yaml.safe_dump(settings))
    asked = [Question(id=f"q{n}", text=f"Who is {n}?", answers=(f"Ada {n}",) if n else ()) for n in range(12)]
    write_jsonl(folder / "train.jsonl", [one.model_dump(mode="json", exclude_defaults=True) for one in asked])
    attempts: list[Trajectory] = []
    for n in range(12):
        for sample in range(2):
            state = "free" if sample else "malformed"
            part = dialogue("answerer", [(f"Question: Who is {n}?", f"Velm {sample}", state)])
            facts = {"sample": sample, "system": "naive_gen", "status": "finished" if sample else "unparsed"}
            attempts.append(trajectory(f"t{n}-{sample}", f"q{n}", [part], **facts))
    write_jsonl(rounds.trajectories / "a.jsonl", attempts)
    selection = rounds.read_selection()
    assert selection is not None
    choices = tuple(
        choice.model_copy(
            update={"kept": (), "cause": "reward_too_low", "rewards": {f"t{n}-{s}": 0.0 for s in range(2)}}
        )
        for n, choice in enumerate(selection.questions)
    )
    write_json(rounds.selection, selection.model_copy(update={"questions": choices}).model_dump(mode="json"))
    return path, load_config(path), RunFolder(config.folder).round(1)


@pytest.mark.slow
def test_an_adapter_is_trained_on_gold_answers_even_where_nothing_was_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, config, folder = start(tmp_path, SYSTEM)
    asked = ["--config", str(path), "--set", "evaluation.controls=[gold]", "--control", "gold"]
    monkeypatch.setattr(sys, "argv", ["train.py", *asked])
    command_of("train")()
    control = folder.control("gold")
    chosen = control.read_selection()
    assert chosen is not None and len(chosen.kept) == 11
    assert chosen.questions[0].reason == "dropped: it has no gold answer"
    made = {one.key: one for one in TrajectoryStore(control.trajectories).read(chosen.kept)}
    assert {one.sample for one in made.values()} == {1}, "one that finished goes before one that did not"
    rows = list(table_rows(read_rows(control.rows).table))
    assert sorted(learnt(row)[0] for row in rows) == sorted(f"Ada {n}" for n in range(1, 12))
    assert check_rows(rows, made) == 11
    facts = json.loads((control.adapter / "training.json").read_bytes())
    assert facts["control"] == "gold" and "gold answers in place" in (control.adapter / "README.md").read_text()
    assert [entry.stage for entry in read_ledger(RunFolder(config.folder))] == ["train.gold"]
    assert TrajectoryStore(folder.trajectories).folder.exists() and not (folder.path / "rows.parquet").exists()
    command_of("train")()
    assert "is complete" in capsys.readouterr().err


def test_what_was_kept_of_the_curriculum_is_learnt_too(tmp_path: Path) -> None:
    _, config, folder = start(tmp_path, SYSTEM)
    selection = folder.read_selection()
    assert selection is not None
    part = dialogue("answerer", [("Question: Who is 3?", "Ada the third", "free")])
    led = trajectory("led", "q3", [part], sample=2, system="naive_gen", learners=("answerer",))
    write_jsonl(folder.trajectories / "b.jsonl", [led])
    choice = QuestionChoice(
        question_id="q3", kept=("led",), cause="kept", reason="led", rewards={"led": 1.0}, learners=("answerer",)
    )
    write_json(folder.selection, selection.model_copy(update={"curriculum": (choice,)}).model_dump(mode="json"))
    write_gold(folder, config)
    rows = list(table_rows(prepare_rows(config, folder.control("gold")).table))
    assert sorted(learnt(row)[0] for row in rows) == sorted(["Ada the third", *(f"Ada {n}" for n in range(1, 12))])


def test_gold_answers_follow_what_is_sampled_again_under_the_same_key(tmp_path: Path) -> None:
    _, config, folder = start(tmp_path, SYSTEM)
    control = folder.control("gold")
    write_gold(folder, config)
    part = dialogue("answerer", [("Question: in other words?", "Velm", "free")])
    again = [
        trajectory(one.key, one.question_id, [part], sample=one.sample, system="naive_gen")
        for one in read_segments(folder.trajectories, Trajectory)
    ]
    write_jsonl(folder.trajectories / "a.jsonl", again)
    write_gold(folder, config)
    prompt = part[0].ids[: part[1][0].start]
    made = list(read_segments(control.trajectories, Trajectory))
    assert len(made) == 11 and all(one.conversations[0].ids[: len(prompt)] == prompt for one in made)


@pytest.mark.parametrize(
    ("system", "training", "text"),
    [
        ({"name": "tool_mad"}, {}, "the system tool_mad does not say which action gives the right answer"),
        (
            {"name": "mrag", "roles": {"answerer": {"trainable": False}, "reviser": {"trainable": False}}},
            {},
            r"the role answerer, which gives the answer, is not trained \(system\.roles\.answerer\.trainable\)",
        ),
        ({"name": "mermaid", "settings": {"actions": "native"}}, {}, r"set system\.settings\.actions: text"),
        ({"name": "awe"}, {}, "11 x dropped: in no trajectory did the role judge act"),
        (SYSTEM, {"objective": "dpo"}, "training.objective=dpo learns from rewards"),
        (SYSTEM, {"choose_by": "reward"}, "chooses an adapter on dev"),
    ],
)
def test_where_there_are_no_gold_actions_one_line_says_so(
    tmp_path: Path, system: dict[str, Any], training: dict[str, Any], text: str
) -> None:
    _, config, folder = start(tmp_path, system, **training)
    with pytest.raises(UserError, match=f"^--control gold is not possible here: .*{text}") as error:
        train_round(config, 1, control="gold")
    assert "\n" not in str(error.value) and not folder.control("gold").selection.exists()
