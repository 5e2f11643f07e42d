"""Thresholds by quantile: from turns, from the command line, and never from what is reported."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from agents.tool_mad import Settings
from commands.arguments import run_command
from commands.evaluate import main
from evaluation.tables.thresholds import ScoreDistribution, distribution_table, score_distributions, thresholds_line
from questions.labels import FEVER
from ratchet.config import load_config, parse
from ratchet.console import wide_console
from ratchet.records import Question, Trajectory, Turn
from tests.helpers.tiny import save_tiny_tokenizer
from tests.helpers.tiny_index import tiny_index

QUESTION = Question(id="q", text="It is so.", form="claim", labels=FEVER, label="SUPPORTS")


def turn(verdict: str, **scores: float | None) -> Turn:
    return Turn(round=1, speaker="rag", said="so", verdict=verdict, scores=scores)


def trajectory(*turns: Turn, question: str = "q") -> Trajectory:
    fields: dict[str, Any] = {"system": "tool_mad", "policy": "base", "sample": 0, "seed": 0, "status": "finished"}
    return Trajectory(key="t", question_id=question, answer="", turns=turns, **fields)


def test_turns_are_right_or_wrong_by_their_own_label_and_unknown_scores_are_neither() -> None:
    made = trajectory(
        turn("SUPPORTS", faithfulness=1.0, relevance=0.5),
        turn("REFUTES", faithfulness=0.25, relevance=None),
        turn("", faithfulness=0.1),
        turn("SUPPORTS", faithfulness=0.0),
    )
    unlabelled = QUESTION.model_copy(update={"id": "u", "label": None})
    elsewhere = trajectory(turn("SUPPORTS", faithfulness=0.9), question="u")
    assert score_distributions([QUESTION, unlabelled], [made, elsewhere]) == [
        ScoreDistribution("faithfulness", (1.0, 0.0), (0.25,), 0),
        ScoreDistribution("relevance", (0.5,), (), 1),
    ]


@pytest.mark.parametrize(("quantile", "threshold"), [(0.0, 0.1), (0.25, 0.2), (0.3, 0.2), (0.5, 0.666), (1.0, 0.8)])
def test_a_threshold_is_reached_by_the_share_that_was_asked_for(quantile: float, threshold: float) -> None:
    right = (0.8, 0.1, 2 / 3, 0.2, 0.7)
    found = ScoreDistribution("faithfulness", right, (), 0).threshold(quantile)
    assert found == threshold
    assert sum(value >= found for value in right) >= (1 - quantile) * len(right)


def test_without_a_right_answer_there_is_no_threshold() -> None:
    spread = ScoreDistribution("faithfulness", (), (0.5,), 2)
    assert spread.threshold(0.25) is None
    assert thresholds_line([spread], 0.25).startswith("#")
    assert distribution_table("dev", [spread], 0.25).row_count == 3


def test_the_line_for_the_config_is_one_that_the_system_takes() -> None:
    found = [ScoreDistribution("faithfulness", (0.61234,), (), 0), ScoreDistribution("relevance", (1.0,), (0.5,), 0)]
    settings = parse(Settings, yaml.safe_load(thresholds_line(found, 0.25)), "the test")
    assert settings.thresholds is not None
    assert (settings.thresholds.faithfulness, settings.thresholds.relevance) == (0.612, 1.0)


def test_wrong_answers_that_reach_it_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    wide_console(120).print(
        distribution_table("dev", [ScoreDistribution("relevance", (0.5, 1.0), (0.9, 0.1, 0.2, 0.3), 0)], 0.0)
    )
    shown = capsys.readouterr().out
    assert re.search(r"0\.500 +100\.0%", shown) and re.search(r"wrong +4 .* 25\.0%", shown)


class Command:
    """`python -m evaluation` on claims whose debate is scripted."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._patch, self._capsys, self.config = monkeypatch, capsys, folder / "config.yaml"
        save_tiny_tokenizer(folder / "model")
        tiny_index(folder, [{"id": "d", "text": "The lighthouse is kept."}])
        (folder / "questions.jsonl").write_text(QUESTION.model_dump_json() + "\n")
        script = [
            {"match": '"statements": {', "reply": '{"verdicts": [1, 0]}'},
            {"match": '"noncommittal"', "reply": "unreadable, so that no embedder is needed"},
            {"match": '"statements"', "reply": '{"statements": ["a", "b"]}'},
            {"prompt": "Write one query", "reply": "[lighthouse]"},
            {"default": "It is.\nSUPPORTS"},
        ]
        (folder / "script.jsonl").write_text("".join(json.dumps(rule) + "\n" for rule in script))
        split = {"path": str(folder / "questions.jsonl")}
        debate: dict[str, Any] = {"agents": ["rag", "rag"], "rounds": 1, "questions": 1}
        config = {
            "run": str(folder / "run"),
            "models": {
                "agent": {
                    "path": str(folder / "model"),
                    "engine": "scripted",
                    "script": str(folder / "script.jsonl"),
                }
            },
            "index": {"path": str(folder / "index")},
            "questions": {"train": split, "dev": split, "test": split},
            "system": {"name": "no_retrieval"},
            "rewards": {"weights": {"accuracy": 1.0}},
            "evaluation": {
                "scores": ["accuracy"],
                "resamples": 50,
                "baselines": {"debate": {"name": "tool_mad", "settings": debate}},
            },
        }
        self.config.write_text(yaml.safe_dump(config))

    def __call__(self, *words: str) -> tuple[int, str]:
        self._patch.setattr(sys, "argv", ["evaluation", *words, "--config", str(self.config)])
        status = 0
        try:
            run_command(main)
        except SystemExit as end:
            status = int(str(end.code))
        said = self._capsys.readouterr()
        return status, said.out + said.err


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    command = Command(tmp_path, monkeypatch, capsys)
    status, said = command("thresholds")
    assert status == 2 and "--split dev" in said
    assert command("run", "--split", "dev", "--base-only")[0] == 0
    status, said = command("thresholds", "--quantile", "0.5")
    assert status == 0
    assert "evaluation.baselines.debate.settings:\n  thresholds: {faithfulness: 0.5}" in said
    [flag] = re.findall(r"--set '(embedder\.thresholds=.*)'", said)
    calibrated = load_config(command.config, [flag]).embedder.thresholds
    assert (calibrated.faithfulness, calibrated.relevance) == (0.5, 0.8), "one setting, which every debate reads"
    assert command("thresholds", "--split", "test")[0] == 2
    assert "from 0 to 1" in command("thresholds", "--quantile", "25")[1]
