"""A closed model from end to end: evaluated with a closed judge, its dialogues in the report, and never trained."""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ratchet.commands.sample import sample_round
from ratchet.commands.train import train_round
from ratchet.core.config import load_config
from ratchet.core.errors import UserError
from ratchet.core.files import write_json
from ratchet.core.records import QuestionChoice, Selection
from ratchet.core.runfolder import RunFolder
from ratchet.evaluation.arms import read_arms
from ratchet.inference.chat import Dialogue
from ratchet.inference.completion import Completion
from ratchet.inference.http.chat_api import TextFormat
from ratchet.questions.manifest import open_run
from ratchet.report.view import DetailReader, MessageDecoder, make_view
from ratchet.sampling.store import TrajectoryStore
from ratchet.training.rows import build_rows
from tests.helpers.closed_service import KEY, Service, any_answer, closed_service
from tests.helpers.commands import command_of
from tests.helpers.configs import write_config
from tests.helpers.experiment import ROOT, environment, write_lines
from tests.helpers.reported import gathered, unpack

evaluate = command_of("evaluate")

pytestmark = pytest.mark.server
GPT_5_MINI = {"request": {"temperature": None, "top_p": None}, "reasoning_tokens": 500}


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    monkeypatch.setenv("LOCAL_KEY", KEY)
    with closed_service() as service:
        service.say = reply
        yield service


def reply(body: dict[str, Any]) -> str:
    return "Ada Torrin" if body["model"] == "gpt-4o-mini" else any_answer(body)


def make_config(folder: Path, service: Service) -> Path:
    words = {"train": "Who built {}'s harbour?", "dev": "{}: whose work?", "test": "Name {}'s engineer?"}
    right = {"answers": ["Ada Torrin"], "reference": "Ada Torrin did."}
    for split, asked in words.items():
        rows = [{"id": f"{split}-{name}", "text": asked.format(name), **right} for name in ("Velm", "Orra")]
        write_lines(folder / f"{split}.jsonl", *rows)
    model = {"engine": "chat-api", "url": service.url, "api_key_env": "LOCAL_KEY"}
    return write_config(
        folder,
        models={
            "agent": {"path": "gpt-4o-mini", **model},
            "judge": {"path": "gpt-5-mini", **model, **GPT_5_MINI},
        },
        index=None,
        system={"name": "no_retrieval"},
        rewards={"judge": "judge", "weights": {"em": 1.0, "correctness": 1.0}},
    )


def test_a_closed_agent_is_evaluated_by_a_closed_judge(
    tmp_path: Path, service: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    path = make_config(tmp_path, service)
    evaluate(["--config", str(path), "--base-only", "--all-measures"])
    printed = capsys.readouterr().out
    assert re.search(r"Nugget correctness strict +\d", printed) and re.search(r"New tokens +300\b", printed)
    round_folder = RunFolder(tmp_path / "run").round(1)
    [(_, store)] = read_arms(round_folder, "test").items()
    done = list(store.read())
    assert [one.answer for one in done] == ["Ada Torrin"] * 2 and not any(one.token_exact for one in done)
    assert {call.new_tokens for one in done for call in one.model_calls} == {300}, "what the service counted"
    config = load_config(path)
    view = make_view(gathered(config, round_folder), DetailReader(config))
    shown = unpack(view.chunks[0])["runs"][0]["conversations"]
    assert [one["text"] for one in shown] == [True], "the report says that it is text"
    judged = [body for body in service.taken if body["model"] == "gpt-5-mini"]
    assert judged and all("temperature" not in body for body in judged)


def test_its_trajectories_are_refused_by_training_before_torch_is_loaded(tmp_path: Path, service: Service) -> None:
    config = load_config(make_config(tmp_path, service))
    sampled = sample_round(config)
    for command in ("train.py", "selftrain.py"):
        check = (
            f"import sys; sys.argv = [{command!r}, '--config', {str(tmp_path / 'config.yaml')!r}]\n"
            f"import {command[:-3]} as command\n"
            "from ratchet.core.errors import UserError\n"
            "try:\n    command.main()\n"
            "except UserError as error:\n    print(error)\n"
            "assert 'torch' not in sys.modules"
        )
        done = subprocess.run(
            [sys.executable, "-c", check], cwd=ROOT, env=environment(), capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert "models.agent: gpt-4o-mini is a closed model" in done.stdout.strip()

    # The same trajectories in the run folder of a config of an open model, copied there.
    agent = config.models["agent"].model_copy(update={"engine": "scripted", "path": "elsewhere"})
    copied = tmp_path / "copied"
    shutil.copytree(RunFolder(config.folder).round(1).path, RunFolder(copied).round(1).path)
    other = config.model_copy(update={"models": {**config.models, "agent": agent}, "run": str(copied)})
    round_folder = RunFolder(copied).round(1)
    choice = QuestionChoice(question_id="train-Velm", kept=(sampled.keys[0],), cause="kept", reason="", rewards={})
    selection = Selection(weights={}, rule={}, questions=(choice,))
    write_json(round_folder.selection, selection.model_dump(mode="json"))
    with pytest.raises(UserError, match=r"cannot be trained on: its role answerer .* closed model 'agent'"):
        train_round(other, 1)
    with pytest.raises(UserError, match="cannot be trained on"):
        build_rows(next(TrajectoryStore(round_folder.trajectories).read()), 1000)
    assert open_run(config).path == config.folder


def test_a_dialogue_that_was_recorded_as_text_is_shown_without_a_tokenizer(tmp_path: Path, service: Service) -> None:
    config = load_config(make_config(tmp_path, service))
    chat = TextFormat()
    dialogue = Dialogue("answerer", "agent", chat, True, "Be brief.")
    dialogue.user("Who?")
    dialogue.assistant(Completion(chat.encode("Ada\nTorrin"), "Ada\nTorrin", "stop", 9, billed_tokens=4), parsed=True)
    conversation = dialogue.freeze()
    assert (conversation.ids, conversation.text) == ((), "Be brief.\nWho?\nAda\nTorrin\n")
    decoder = MessageDecoder(config.models)
    shown = [
        (span.author, "".join(t)) for span, t in zip(conversation.spans, decoder.decode(conversation), strict=True)
    ]
    assert [text for author, text in shown if author != "template"] == ["Be brief.", "Who?", "Ada\nTorrin"]
    assert not decoder.problems
