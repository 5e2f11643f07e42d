"""docs/guides/python.md is run, block by block, on a small experiment in the places where `make demo` has its own."""

import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
import yaml

from ratchet import Experiment, __all__, load_config, read_run
from ratchet.commands.main import main as ratchet
from ratchet.core.config import ModelConfig
from ratchet.core.errors import UserError
from ratchet.evaluation.results import TRAINED
from ratchet.inference.scripted import ScriptedEngine
from ratchet.sampling.store import TrajectoryStore
from tests.helpers.experiment import ROOT, make_experiment

GUIDE = (ROOT / "docs" / "guides" / "python.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)
PUBLIC = [f"ratchet.{name}" for name in __all__]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with configs/demo.yaml, its model, index and run: one round, made by the commands."""
    folder = tmp_path_factory.mktemp("guide")
    made = make_experiment(folder)
    (folder / "models").mkdir()
    (folder / "model").rename(folder / "models" / "smollm2-135m-instruct")
    config = yaml.safe_load(made.read_text())
    with (folder / "corpus.jsonl").open("a") as corpus:
        corpus.write('{"id": "oarabel", "title": "Oarabel", "text": "Ada Torrin built the ferry Oarabel."}\n')
    config |= {"run": "runs/demo", "index": {**config["index"], "path": "indexes/demo"}}
    config["models"]["agent"]["path"] = "models/smollm2-135m-instruct"
    config["training"]["max_steps"] = 2
    (folder / "configs").mkdir()
    (folder / "configs" / "demo.yaml").write_text(yaml.safe_dump(config))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for command in ("index", "sample", "score", "train", "evaluate"):
            patch.setattr(sys, "argv", ["ratchet", command, "--config", "configs/demo.yaml"])
            ratchet()
    return folder


@pytest.mark.slow
def test_every_block_of_the_guide_runs(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    assert len(BLOCKS) == GUIDE.count("```") // 2 == 5
    for number, block in enumerate(BLOCKS, 1):
        exec(compile(block, f"block {number} of the guide", "exec"), {})
        assert capsys.readouterr().out.strip(), f"block {number} prints nothing"


@pytest.mark.slow
async def test_an_experiment_opens_the_model_once_in_a_notebook_too(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where an event loop runs already, as it does here."""
    monkeypatch.chdir(place)
    opened: list[ScriptedEngine] = []
    original = ScriptedEngine.from_config

    def open_once(model: ModelConfig) -> ScriptedEngine:
        opened.append(original(model))
        return opened[-1]

    monkeypatch.setattr(ScriptedEngine, "from_config", open_once)
    question = "Who built Velm's harbour?"
    with Experiment("configs/demo.yaml", ["run=runs/own"]) as experiment:
        assert opened == [], "nothing is opened before it is needed"
        seen: list[str] = []
        first = experiment.ask(question, watch=lambda event: seen.append(event.kind))
        assert seen == [event.kind for event in first.events] and "model" in seen and first.policy == "base"
        assert (await experiment.aask(question)).answer == first.answer and len(opened) == 1
        assert experiment.ask(question, adapter="runs/demo/round-1/adapter").policy != "base"
        assert [passage.id for passage in experiment.search(question, 1)] == ["velm#0"]
        sampled = experiment.sample(2)
        assert len(sampled) == 2 * 4 and [t.key for t in experiment.sample(2)] == [t.key for t in sampled]
        assert experiment.trajectories().num_rows == 8
        [results] = experiment.evaluate()
        [again] = experiment.evaluate("runs/demo/round-1/adapter")
        assert results.arm(TRAINED) is None and again.arm(TRAINED) is not None
        with pytest.raises(UserError, match="the question is empty"):
            experiment.ask(" ")
        with pytest.raises(UserError, match="runs/none: there is no adapter here"):
            experiment.evaluate("runs/none")
    with experiment:
        assert experiment.ask(question).answer == first.answer, "it opens again after it was closed"


@pytest.mark.slow
def test_a_run_is_a_table_with_a_row_for_each_trajectory(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    config = load_config("configs/demo.yaml")
    table = read_run("runs/demo")
    assert table.equals(read_run(config.folder)) and table.equals(read_run("runs/demo", round=1))
    found = {t.key: t for t in TrajectoryStore(place / "runs/demo/round-1/trajectories").read()}
    rows = {row["trajectory"]: row for row in table.to_pylist()}
    assert rows.keys() == found.keys() and len(table) == 8 * 4
    for key, row in rows.items():
        assert (row["question"], row["answer"]) == (found[key].question_id, found[key].answer)
        assert row["model_calls"] == len(found[key].model_calls)
    assert table.schema.field("f1").type == table.schema.field("lexical_support").type == pa.float64()
    assert {row["kept"] for row in rows.values()} == {True, False}
    assert all(row["reward"] is not None for row in rows.values() if row["kept"])
    for run, number in (("runs/none", None), ("runs/demo", 7)):
        with pytest.raises(UserError, match="is in this run folder"):
            read_run(run, number)


@pytest.mark.parametrize("name", PUBLIC)
def test_a_package_offers_its_names_without_importing_what_they_need(name: str) -> None:
    package, _, attribute = name.partition(".")
    script = f"""
import sys, {package}
early = [m for m in ("numpy", "pydantic", "pyarrow", "numba", "torch", "transformers") if m in sys.modules]
assert not early, early
assert callable({name})
try:
    {package}.none_such
except AttributeError as error:
    assert "none_such" in str(error)
else:
    raise AssertionError("none_such is there")
from {package} import {attribute}
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
