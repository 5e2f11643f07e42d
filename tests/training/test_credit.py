"""Credit for single actions: gains from stored ids, the rows that they give, and training on them."""

from __future__ import annotations

from pathlib import Path
from statistics import median

import pytest
import torch
import yaml
from pydantic import ValidationError
from transformers import AutoModelForCausalLM

from commands.train import train_round
from ratchet.config import Config, TrainingConfig, load_config
from ratchet.errors import UserError
from ratchet.files import write_json, write_jsonl
from ratchet.records import Passage, Question, Search, Trajectory
from ratchet.runfolder import RoundFolder
from ratchet.selection import QuestionChoice, Selection
from tests.helpers.tiny import tiny_format
from tests.helpers.world import dialogue, make_run, prepared_rows, trajectory
from training.credit import read_gains
from training.gains import AnswerScorer
from training.lessons import TokenRow
from training.rows import read_rows, table_rows


def passage(name: str) -> Passage:
    return Passage(id=name, document_id=name, title=name, text=f"The harbour of {name}.", score=1.0)


def searched(key: str, question: str, found: tuple[str, ...], answer: tuple[str, ...]) -> Trajectory:
    """Two searches, of which each finds one of `found`, and an answer that returns the documents `answer`."""
    turns = [("Who built it?", "first", "ok"), (f"Document: {found[0]}", "second", "ok"), (found[1], "end", "ok")]
    conversation, calls = dialogue("searcher", turns)
    facts = {"role": "searcher", "query": "q", "k": 1, "offset": 0, "at": 0.0, "seconds": 0.1}
    lookups = [Search.model_validate({**facts, "passages": (passage(name),)}) for name in found]
    events = (calls[0], lookups[0], calls[1], lookups[1], calls[2])
    changed = {"events": events, "passages": tuple(map(passage, answer))}
    return trajectory(key, question, [(conversation, calls)]).model_copy(update=changed)


@pytest.fixture
def round_of(tmp_path: Path) -> tuple[Config, RoundFolder]:
    """Questions with two attempts each; of the first of every two questions one attempt is kept, of the other none."""
    path, _, folder = make_run(tmp_path, max_steps=2, dev_fraction=0.0)
    settings = yaml.safe_load(path.read_text())
    settings["training"] |= {"credit": "information_gain"}
    path.write_text(yaml.safe_dump(settings))
    write_jsonl(
        tmp_path / "train.jsonl", [Question(id=f"q{n}", text=f"Who is {n}?", answers=("Ada Torrin",)) for n in range(4)]
    )
    attempts, choices = list[Trajectory](), list[QuestionChoice]()
    for n in range(4):
        own = [searched(f"t{n}-{s}", f"q{n}", ("Velm Ada Torrin", "Tarn"), ("Tarn",)) for s in range(2)]
        kept = (own[0].key,) if n % 2 == 0 else ()
        rewards: dict[str, float | None] = {own[0].key: 1.0 if kept else 0.0, own[1].key: 0.0}
        cause = "kept" if kept else "reward_too_low"
        choices.append(QuestionChoice(question_id=f"q{n}", kept=kept, cause=cause, reason="", rewards=rewards))
        attempts += own
    (folder.trajectories / "a.jsonl").unlink()
    write_jsonl(folder.trajectories / "a.jsonl", attempts)
    selection = Selection(weights={"f1": 1.0}, rule={}, questions=tuple(choices))
    write_json(folder.selection, selection.model_dump(mode="json"))
    return load_config(path), folder


def rows_of(folder: RoundFolder) -> list[TokenRow]:
    return list(table_rows(read_rows(folder.rows).table))


def learnt(row: TokenRow) -> str:
    label = [i for i, is_learnt in zip(row.ids, row.loss_mask, strict=True) if is_learnt]
    return tiny_format().decode(label).removesuffix("<|im_end|>")


def test_a_value_is_the_answers_log_probability_where_the_model_is_to_speak(
    round_of: tuple[Config, RoundFolder],
) -> None:
    config, _ = round_of
    model = AutoModelForCausalLM.from_pretrained(config.models["agent"].path).eval()
    scorer, ids, answer = AnswerScorer(model), list(range(5, 45)), (7, 9, 11)
    # The same once more, one that begins alike, one that begins otherwise, and one that is the beginning.
    for asked, starts in (
        (ids, [6, 20, 40]),
        (ids, [6, 20, 40]),
        ([*ids[:15], 3, 4, *ids], [18, 30]),
        (ids[3:], [4, 9]),
    ):
        for at, value in zip(starts, scorer.values("role", asked, starts, answer), strict=True):
            with torch.no_grad():
                logs = model(input_ids=torch.tensor([[*asked[:at], *answer]])).logits[0].float().log_softmax(-1)
            expected = [float(logs[at - 1 + place, token]) for place, token in enumerate(answer)]
            assert value == pytest.approx(sum(expected) / len(expected), abs=1e-4)


def test_training_learns_the_actions_that_raised_the_answer_of_failed_trajectories_too(
    round_of: tuple[Config, RoundFolder],
) -> None:
    config, folder = round_of
    with pytest.raises(UserError, match=r"the gains of 8 trajectories are not computed yet"):
        prepared_rows(config, folder)
    train_round(config, 1)
    gains = read_gains(folder.gains)
    assert len(gains) == 8 and all(len(one.gains) == 2 for one in gains.values()), "the last action has none"
    rows = rows_of(folder)
    kept = [row for row in rows if row.trajectory in ("t0-0", "t2-0")]
    others = [row for row in rows if row not in kept]
    assert len(kept) == 6 and all(row.weight == 1 for row in kept), "kept trajectories are learnt whole"
    raised = sorted(
        (each.gain for key, one in gains.items() if key not in ("t0-0", "t2-0") for each in one.gains if each.gain > 0),
        reverse=True,
    )[:6]  # as many as the role's actions in kept trajectories
    scale = median(raised) if raised else 1.0
    expected = [min(gain / scale, 1.0) for gain in raised]
    assert sorted(row.weight for row in others) == pytest.approx(sorted(one for one in expected if one >= 0.05))
    assert not any(learnt(row) == "end" for row in others), "the last action has no gain"
    assert (folder.adapter / "adapter_model.safetensors").exists()


def test_gains_are_resumed_and_those_of_another_model_are_made_again(
    round_of: tuple[Config, RoundFolder], monkeypatch: pytest.MonkeyPatch
) -> None:
    config, folder = round_of
    train_round(config, 1)
    part = folder.gains / "part-0.jsonl"
    whole = part.read_bytes()
    part.write_bytes(b"".join(whole.splitlines(keepends=True)[:3]) + b'{"traj')
    (folder.adapter / "adapter_model.safetensors").unlink()
    train_round(config, 1)
    assert part.read_bytes() == whole, "the torn line and what was missing, and nothing twice"
    write_json(folder.gains / "policy.json", {"model": "another", "adapter": None})
    part.write_bytes(whole.splitlines(keepends=True)[0])
    train_round(config, 1)
    assert part.read_bytes() == whole


def test_evidence_leaves_out_the_searches_that_found_no_document_of_the_answer(
    round_of: tuple[Config, RoundFolder],
) -> None:
    config, folder = round_of
    evidence = config.model_copy(update={"training": config.training.model_copy(update={"credit": "evidence"})})
    prepared_rows(evidence, folder)
    rows = rows_of(folder)
    assert [(row.trajectory, learnt(row), row.weight) for row in rows] == [
        (key, action, 1.0) for key in ("t0-0", "t2-0") for action in ("second", "end")
    ]


def test_credit_is_for_the_objective_sft() -> None:
    with pytest.raises(ValidationError, match="credit: it weighs rows of the objective sft"):
        TrainingConfig(credit="evidence", objective="dpo")
