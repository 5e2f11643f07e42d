"""Trajectories for other tools: Parquet and logs of Inspect, each read by its own library."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml

from commands.logs import main
from ratchet.config import Config
from ratchet.errors import UserError
from ratchet.records import Trajectory
from ratchet.runfolder import RoundFolder
from rewards.store import stored_scores
from sampling.store import TrajectoryStore
from tests.helpers.handmade_run import SCORES, make_run, questions_of
from tests.helpers.pages import ROOT
from tests.helpers.tiny import save_tiny_tokenizer

INSPECT = ROOT / ".venv-inspect" / "bin"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Config, RoundFolder, Path]:
    """(config, the round's folder, the config's file)."""
    folder = tmp_path_factory.mktemp("run")
    config, number_one = make_run(folder, train=6, test=4)
    model = config.models["agent"].model_copy(update={"path": str(save_tiny_tokenizer(folder / "model"))})
    config = config.model_copy(update={"models": {"agent": model}})
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(json.loads(config.model_dump_json(exclude_unset=True))))
    return config, number_one, path


@pytest.fixture(scope="module")
def sampled(finished: tuple[Config, RoundFolder, Path]) -> list[Trajectory]:
    return list(TrajectoryStore(finished[1].trajectories).read())


def rewards_of(folder: RoundFolder) -> dict[str, float | None]:
    selection = folder.read_selection()
    assert selection is not None
    return {key: value for choice in selection.questions for key, value in choice.rewards.items()}


def test_parquet_holds_every_trajectory_of_every_store(
    finished: tuple[Config, RoundFolder, Path], sampled: list[Trajectory], tmp_path: Path
) -> None:
    _, folder, path = finished
    main(["--config", str(path), "--to", "parquet", "--out", str(tmp_path)])
    assert len(list(tmp_path.iterdir())) == 4
    rows = pq.read_table(tmp_path / "round-1_trajectories.parquet").to_pylist()
    assert [row["trajectory"] for row in rows] == [t.key for t in sampled]
    texts = {question.id: question.text for question in questions_of("train", 6)}
    scores = stored_scores(folder.scores, {t.key for t in sampled})
    rewards, kept = rewards_of(folder), set(folder.read_selection().kept)  # type: ignore[union-attr]
    for row, stored in zip(rows, sampled, strict=True):
        assert (row["status"], row["answer"], row["question"]) == (
            stored.status, stored.answer, texts[stored.question_id]
        )  # fmt: skip
        assert (row["reward"], row["kept"]) == (rewards[stored.key], stored.key in kept)
        assert dict(row["scores"]) == {name: scores[stored.key, name].value for name in SCORES}
        assert [talk["ids"] for talk in row["conversations"]] == [list(c.ids) for c in stored.conversations]
        assert json.loads(row["events"]) == [event.model_dump(mode="json") for event in stored.events]


def test_kept_and_round_choose_what_is_exported(finished: tuple[Config, RoundFolder, Path], tmp_path: Path) -> None:
    _, folder, path = finished
    main(["--config", str(path), "--to", "parquet", "--out", str(tmp_path), "--kept", "--round", "1"])
    [written] = tmp_path.iterdir()
    selection = folder.read_selection()
    assert selection is not None
    assert set(pq.read_table(written)["trajectory"].to_pylist()) == set(selection.kept)
    with pytest.raises(UserError, match="no such trajectories"):
        main(["--config", str(path), "--to", "parquet", "--round", "7"])


READ = """
import json, sys
from inspect_ai.log import list_eval_logs, read_eval_log, read_eval_log_sample_summaries

told = {}
for info in list_eval_logs(sys.argv[1]):
    log = read_eval_log(info, resolve_attachments="full")
    told[log.eval.metadata["store"]] = {
        "status": log.status,
        "means": {s.name: s.metrics["mean"].value for s in log.results.scores if s.metrics},
        "summaries": len(read_eval_log_sample_summaries(info)),
        "samples": [{
            "key": s.uuid, "id": s.id, "epoch": s.epoch, "input": s.input, "target": s.target,
            "output": s.output.completion, "error": s.error.message if s.error else "", "limit": bool(s.limit),
            "reward": s.metadata["reward"], "scores": sorted(s.scores), "messages": [m.text for m in s.messages],
            "calls": [e.output.completion for e in s.events if e.event == "model"],
            "inputs": [len(e.input) for e in s.events if e.event == "model"],
            "tools": [e.arguments["query"] for e in s.events if e.event == "tool"],
        } for s in log.samples],
    }
print(json.dumps(told))
"""


def in_inspect(*words: str) -> str:
    """What a program of Inspect's environment prints."""
    done = subprocess.run(
        [str(INSPECT / words[0]), *words[1:]], cwd=ROOT, text=True, capture_output=True, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def logs(finished: tuple[Config, RoundFolder, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("logs")
    in_inspect("python", "-m", "report", "logs", "--config", str(finished[2]), "--to", "inspect", "--out", str(folder))
    return folder


@pytest.mark.inspect
@pytest.mark.slow
def test_inspect_reads_its_logs(
    logs: Path, finished: tuple[Config, RoundFolder, Path], sampled: list[Trajectory]
) -> None:
    told = json.loads(in_inspect("python", "-c", READ, str(logs)))
    assert len(told) == 4
    one = told["round-1/trajectories"]
    assert one["status"] == "success" and one["summaries"] == len(sampled)
    scores = stored_scores(finished[1].scores, {t.key for t in sampled})
    f1 = [score.value for (_, name), score in scores.items() if name == "f1" and score.value is not None]
    assert one["means"]["f1"] == pytest.approx(sum(f1) / len(f1))
    rewards = rewards_of(finished[1])
    found = {sample["key"]: sample for sample in one["samples"]}
    assert set(found) == {t.key for t in sampled}
    for stored in sampled:
        sample = found[stored.key]
        assert (sample["id"], sample["epoch"]) == (stored.question_id, stored.sample + 1)
        assert sample["output"] == stored.answer and sample["reward"] == rewards[stored.key]
        assert sample["calls"] == [call.text for call in stored.model_calls]
        assert sample["tools"] == [search.query for search in stored.searches]
        assert bool(sample["error"]) == (stored.status in ("failed", "unparsed"))
        assert sample["limit"] == (stored.status == "out_of_budget")
        assert sample["inputs"][0] == 2 and sample["messages"] and sample["scores"] == sorted(SCORES)
