"""The row printer shows the mask that training uses; the benchmark of the training stage runs."""

from pathlib import Path

import pytest

from ratchet.commands.main import run as ratchet
from ratchet.commands.rows import LEARNT, render_row
from ratchet.core.errors import UserError
from ratchet.core.files import write_jsonl
from ratchet.training.rows import build_rows
from tests.helpers.tiny import tiny_format
from tests.helpers.world import dialogue, make_run, trajectory

TURNS = [("first?", "yes", "ok"), ("second?", "{broken", "malformed")]


def test_learnt_tokens_stand_between_brackets_and_authors_are_named() -> None:
    talk = dialogue("planner", TURNS)
    (row,), _ = build_rows(trajectory("t", "q", [talk]), 1000)
    shown = render_row(row, talk[0], tiny_format().decode, colour=False)
    assert "[assistant] >>>yes<|im_end|><<<" in shown
    assert "[assistant, malformed] {broken<|im_end|>" in shown and shown.count(">>>") == 1
    assert "[user] first?" in shown and "[system] You are the planner." in shown
    coloured = render_row(row, talk[0], tiny_format().decode, colour=True)
    assert f"{LEARNT}yes<|im_end|>" in coloured and coloured.count(LEARNT) == 1


def test_thoughts_that_are_not_learnt_are_no_difference(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, _, folder = make_run(tmp_path, questions=1, thoughts="masked")
    talk, calls = dialogue("planner", [("first?", "well, yes", "ok")])
    action = talk.spans[-1]
    thought = action.model_copy(update={"end": action.start + 2, "thought": True})
    spans = (*talk.spans[:-1], thought, action.model_copy(update={"start": thought.end}))
    thinks = trajectory("t0", "q0", [(talk.model_copy(update={"spans": spans}), calls)])
    write_jsonl(folder.trajectories / "a.jsonl", [thinks])
    ratchet(["show", "--config", str(path)])
    assert "the labels of 1 actions equal the sampled ids" in capsys.readouterr().out


def test_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    path, _, _ = make_run(tmp_path, questions=3)

    def run(*arguments: str) -> str:
        ratchet([*arguments, "--config", str(path)])
        return capsys.readouterr().out

    sums = run("show")
    assert "coordinator        3" in sums and "the labels of 9 actions equal the sampled ids" in sums
    assert '>>>{"search_query": "harbour"}<|im_end|><<<' in run("show", "--row", "1")
    assert "trajectory" not in run("show", "--row", "5") and "row t2 conversation 1" in run("show", "--row", "5")
    with pytest.raises(UserError, match="0 to 5"):
        run("show", "--row", "6")


def test_of_actions_in_json_the_values_alone_are_learnt(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, _, _ = make_run(tmp_path, questions=3, loss_on="values")
    ratchet(["show", "--config", str(path)])
    assert "the labels of 9 actions equal the sampled ids" in capsys.readouterr().out
    ratchet(["show", "--config", str(path), "--row", "1"])
    assert '[assistant] {"search_query": ">>>harbour"}<<<<|im_end|>' in capsys.readouterr().out
