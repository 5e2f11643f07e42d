"""One adapter for two systems, through the real command: trained on what both kept, evaluated on the tasks of both."""

import json
from pathlib import Path

import pytest
import yaml

from ratchet.core.records import Selection
from ratchet.core.runfolder import RoundFolder
from ratchet.training.rows import read_rows
from tests.helpers.experiment import command, make_experiment, write_lines


@pytest.mark.slow
def test_one_adapter_is_trained_on_what_all_members_kept_and_evaluated_on_their_tasks(tmp_path: Path) -> None:
    (tmp_path / "mrag").mkdir()
    first = make_experiment(tmp_path / "mrag", questions=4)
    other = yaml.safe_load(first.read_text()) | {"run": str(tmp_path / "reader"), "system": {"name": "naive_rag"}}
    script = tmp_path / "reader.jsonl"
    write_lines(script, {"default": "Ada Torrin"})
    other["models"]["agent"]["script"] = str(script)
    second = tmp_path / "reader.yaml"
    second.write_text(yaml.safe_dump(other))
    shared = tmp_path / "shared.yaml"
    shared.write_text(
        yaml.safe_dump({"run": str(tmp_path / "shared"), "members": {"mrag": str(first), "reader": str(second)}})
    )
    done = command("selftrain.py", "--config", str(shared))
    assert done.returncode == 0, done.stdout
    assert "One adapter, 2 systems" in done.stdout

    round_folder = RoundFolder(tmp_path / "shared" / "round-1")
    folders = [RoundFolder(tmp_path / "mrag" / "run" / "round-1"), RoundFolder(tmp_path / "reader" / "round-1")]
    kept = [Selection.model_validate_json(folder.selection.read_bytes()).kept for folder in folders]
    trained = set(read_rows(round_folder.rows).table["trajectory"].to_pylist())
    assert trained & set(kept[0]) and trained & set(kept[1]) and trained <= {*kept[0], *kept[1]}
    assert set(json.loads((round_folder.adapter / "training_questions.json").read_bytes())["splits"]) == {
        "mrag",
        "reader",
    }
    for name in ("mrag", "reader"):
        results = json.loads((tmp_path / "shared" / name / "round-1" / "evaluation" / "results.json").read_bytes())
        assert [arm["name"] for arm in results["arms"]] == ["base", "adapter"]

    again = command("selftrain.py", "--config", str(shared), "--set", "members.mrag=nowhere.yaml")
    assert again.returncode == 2 and "nowhere.yaml" in again.stdout
