"""The pages on a reward and a system of one's own, done as they say in a folder that holds nothing of ours."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from tests.helpers.experiment import command, make_experiment
from tests.helpers.pages import ROOT, commands_in

FILE = re.compile(r"^`(?P<path>\w+\.py)`[^\n]*:\n\n```python\n(?P<text>.*?)^```", re.MULTILINE | re.DOTALL)
SECTIONS = re.compile(r"^```yaml\n(?P<text>.*?)^```", re.MULTILINE | re.DOTALL)
COMMANDS = re.compile(r"^<!-- own folder: run -->\n```bash\n(?P<text>.*?)^```", re.MULTILINE | re.DOTALL)


def follow(page: str, folder: Path) -> dict[str, str]:
    """Write the page's files and config into the folder and run its commands there; what each of them printed."""
    text = (ROOT / "docs/guides" / page).read_text()
    config = yaml.safe_load(make_experiment(folder).read_text())
    judge = folder / "judge.jsonl"
    judge.write_text(json.dumps({"default": '{"polite": true}'}) + "\n")
    config["models"]["judge"] = {**config["models"]["agent"], "engine": "scripted", "script": str(judge)}
    script = folder / "script.jsonl"
    brief = {"prompt": "in as few words as possible", "replies": ["It was Ada Torrin", "Ada Torrin"]}
    script.write_text(json.dumps(brief) + "\n" + script.read_text())
    start = text.index("## In a folder of your own") if "## In a folder of your own" in text else 0
    files = {match["path"]: match["text"] for match in FILE.finditer(text, start)}
    for path, source in files.items():
        (folder / path).write_text(source)
    match = SECTIONS.search(text, start)
    assert match is not None and files
    for name, section in yaml.safe_load(match["text"]).items():
        # A page's system replaces the experiment's; its other sections add to them.
        config[name] = section if name == "system" else {**config.get(name, {}), **section}
    (folder / "experiment.yaml").write_text(yaml.safe_dump(config))
    found = COMMANDS.search(text, start)
    assert found is not None
    printed = {}
    build = ["ratchet", "index", "--config", "experiment.yaml"]
    for words in (build, *commands_in(found["text"])):
        assert words[0] == "ratchet"
        done = command("-m", *words, folder=folder)
        assert done.returncode == 0, f"{' '.join(words)}\n{done.stdout}"
        printed[" ".join(words[1:3])] = done.stdout
    return printed


@pytest.mark.slow
def test_a_reward_of_ones_own_scores_selects_and_is_shown(tmp_path: Path) -> None:
    printed = follow("own-reward.md", tmp_path)
    assert all(title in printed["score --config"] for title in ("Brevity", "Politeness", "Consensus"))
    assert "./politeness.py=1" in printed["whatif --config"]
    assert "Brevity (rule)" in printed["evaluate --config"] and "Politeness (judge)" in printed["evaluate --config"]
    [selection] = tmp_path.rglob("selection.json")
    assert json.loads(selection.read_text())["weights"] == {"f1": 2.0, "./brevity.py": 1.0}


@pytest.mark.slow
def test_a_system_of_ones_own_is_asked_sampled_and_scored(tmp_path: Path) -> None:
    printed = follow("own-system.md", tmp_path)
    assert printed["ask Who built the harbour of Velm?"]
    [part] = tmp_path.glob("run*/**/trajectories/part-0.jsonl")
    trajectory = json.loads(part.read_text().splitlines()[0])
    assert re.fullmatch(r"shortest-[0-9a-f]{8}", trajectory["system"])
    assert sum(event["kind"] == "model" for event in trajectory["events"]) == 2
    assert len(trajectory["passages"]) == 2, "an answer's documents are those that were read"
