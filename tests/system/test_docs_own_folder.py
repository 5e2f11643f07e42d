"""The page on code of one's own, done as it says in a folder that holds nothing of ours."""

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
    brief = {"prompt": "in as few words as possible", "replies": ["Ada Torrin", "It was Ada Torrin", "Ada Torrin"]}
    script.write_text(json.dumps(brief) + "\n" + script.read_text())
    for file in FILE.finditer(text):
        (folder / file["path"]).write_text(file["text"])
    (folder / "data/lakes").mkdir(parents=True)
    (folder / "data/lakes/lakes.csv").write_text("Q,A,Page\nWhere is the lake Inari?,Finland,inari\n")
    match = SECTIONS.search(text)
    assert match is not None
    for name, section in yaml.safe_load(match["text"]).items():
        # The page's system replaces the experiment's; its other sections add to them.
        config[name] = section if name == "system" else {**config.get(name, {}), **section}
    (folder / "experiment.yaml").write_text(yaml.safe_dump(config))
    found = COMMANDS.search(text)
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
def test_the_files_of_the_page_are_asked_sampled_scored_and_evaluated(tmp_path: Path) -> None:
    printed = follow("extend.md", tmp_path)
    assert printed["ask Who built the harbour of Velm?"]
    assert all(title in printed["score --config"] for title in ("Brevity", "Politeness"))
    assert "./politeness.py=1" in printed["score whatif"]
    assert all(word in printed["evaluate --config"] for word in ("Brevity", "Politeness", "lakes: 1 questions"))
    [selection] = tmp_path.rglob("selection.json")
    assert json.loads(selection.read_text())["weights"] == {"f1": 2.0, "./brevity.py": 1.0}
    [part] = tmp_path.glob("run*/**/round-1/trajectories/part-0.jsonl")
    trajectory = json.loads(part.read_text().splitlines()[0])
    assert re.fullmatch(r"self_consistency-[0-9a-f]{8}", trajectory["system"])
    assert sum(event["kind"] == "model" for event in trajectory["events"]) == 3, "three votes, three calls"
    assert len(trajectory["passages"]) == 3, "an answer's documents are those that were read"
