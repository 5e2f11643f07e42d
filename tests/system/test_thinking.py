"""Self-training of a model that thinks, through the real commands: sampled, judged, trained, evaluated, and again."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from inference.chat_formats import open_chat_format
from inference.thoughts import without_thoughts
from ratchet.config import load_config
from ratchet.files import read_segments
from ratchet.records import Trajectory
from ratchet.runfolder import RunFolder
from rewards.store import stored_scores
from tests.helpers.experiment import command, preloaded
from tests.helpers.reported import whole_text
from tests.helpers.thinking import BUDGET, make_thinking_experiment
from tests.helpers.vllm_real import UNCOMPILED, vllm_model
from training.rows import check_rows, read_rows, table_rows


def check_run(path: Path) -> None:
    """Check what two rounds left behind."""
    run, chat = RunFolder(path.parent / "run"), open_chat_format(load_config(path).models["agent"])
    closed, judged = 0, list[str]()
    for folder in (run.round(1), run.round(2)):
        played = {one.key: one for one in read_segments(folder.trajectories, Trajectory)}
        kept = list(table_rows(read_rows(folder.rows).table))
        assert check_rows(kept, played) >= len(kept) > 0
        for row in kept:
            trajectory, conversation = played[row.trajectory], played[row.trajectory].conversations[row.conversation]
            calls = {call.start: call for call in trajectory.model_calls if call.conversation == row.conversation}
            thoughts = [calls[start].thought_tokens for start, _ in conversation.actions()]
            assert not any(thoughts[:-1]), "behind a thought, which the template drops, a new row begins"
            assert conversation.rewritten == (row.conversation > 0)
            for start, end in conversation.actions():
                said = without_thoughts(chat.decode(row.ids[start : end - 1]))
                assert json.loads(said, strict=False)["answer"] and "<think>" not in said
                unlearnt = [n for n in range(start, end) if not row.loss_mask[n]]
                if chat.decode([row.ids[n] for n in unlearnt]) == "\n</think>\n\n":
                    assert calls[start].thought_tokens == BUDGET + len(unlearnt)
                    closed += 1
        scores = stored_scores(folder.scores, played.keys()).values()
        judged += [verdict["text"] for score in scores for verdict in score.verdicts]
    assert closed, "some thoughts reach their budget"
    assert all("score" in json.loads(without_thoughts(text), strict=False) for text in judged)
    assert any("</think>" in text for text in judged), "the judge thinks, and answers in form"
    arms = json.loads((run.round(2).evaluation / "results.json").read_text())["arms"]
    assert arms and all(arm["measures"]["thought_tokens"]["mean"] > 0 for arm in arms)
    page = whole_text(run.report.read_text())
    assert "conversations begin where the chat template wrote earlier turns in another way" in page
    assert "2 token rows of 1 dialogue:" in page and '"thought":' in page


@pytest.mark.slow
def test_two_rounds_of_a_model_that_thinks(tmp_path: Path) -> None:
    path = make_thinking_experiment(tmp_path)
    done = command("selftrain.py", "--config", str(path))
    assert done.returncode == 0, done.stdout
    check_run(path)


@pytest.mark.vllm
@pytest.mark.slow
def test_the_same_through_vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in preloaded(**UNCOMPILED).items():  # for the stages, which `serve-models` starts
        monkeypatch.setenv(name, value)
    served = vllm_model(str(tmp_path / "thinker"), 2048, lora_rank=16, adapters=4)
    path = make_thinking_experiment(tmp_path, **served)
    selftrain = [sys.executable, "selftrain.py", "--config", str(path)]
    done = command("-m", "inference", "serve", "--config", str(path), "--", *selftrain)
    assert done.returncode == 0, done.stdout
    check_run(path)
