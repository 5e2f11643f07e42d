"""The page on code of one's own, done as it says in a folder that holds nothing of ours."""

import json
import re
from pathlib import Path

import pytest
import yaml

from tests.helpers.experiment import command, make_experiment
from tests.helpers.pages import ROOT, blocks, commands_in

FILE = re.compile(r"^`(?P<path>\w+\.py)`[^\n]*:\n\n```python\n(?P<text>.*?)^```", re.MULTILINE | re.DOTALL)
SECTIONS = re.compile(r"^```yaml\n(?P<text>.*?)^```", re.MULTILINE | re.DOTALL)
JSONL = re.compile(r"^```jsonl\n(?P<text>.*?)^```", re.MULTILINE | re.DOTALL)
COMMANDS = re.compile(r"^<!-- own folder: run -->\n```bash\n(?P<text>.*?)^```", re.MULTILINE | re.DOTALL)


def follow(page: str, folder: Path) -> dict[str, str]:
    """Write the page's files and config into the folder and run its commands there; what each of them printed."""
    text = (ROOT / "docs/guides" / page).read_text()
    config = yaml.safe_load(make_experiment(folder).read_text())
    judge = folder / "judge.jsonl"
    judge.write_text(json.dumps({"default": '{"polite": true}'}) + "\n")
    config["models"]["judge"] = {**config["models"]["agent"], "engine": "scripted", "script": str(judge)}
    script = folder / "script.jsonl"
    script.write_text(JSONL.search(text)["text"])  # type: ignore[index]
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
    chosen = json.loads(selection.read_text())
    assert chosen["weights"] == {"f1": 2.0, "./brevity.py": 1.0, "./found.py": 1.0, "model_calls": -0.05}
    assert {role for choice in chosen["roles"] for role in choice["learners"]} == {"answerer", "searcher"}
    [part] = tmp_path.glob("run*/**/round-1/trajectories/part-0.jsonl")
    trajectory = json.loads(part.read_text().splitlines()[0])
    assert re.fullmatch(r"hops-[0-9a-f]{8}", trajectory["system"])
    roles = [event["role"] for event in trajectory["events"] if event["kind"] == "model"]
    assert roles[0] == "searcher" and trajectory["events"][1]["query"] == "harbour"


def test_the_files_of_the_page_are_those_that_the_command_writes(tmp_path: Path) -> None:
    shown = {file["path"]: file["text"] for file in FILE.finditer((ROOT / "docs/guides/extend.md").read_text())}
    names = {"system": "hops", "reward": "brevity", "objective": "reward_weighted", "benchmark": "lakes"}
    for kind, name in names.items():
        written = command("-m", "ratchet", "new", kind, name, folder=tmp_path)
        assert written.returncode == 0 and f"written to {name}.py" in written.stdout
        assert (tmp_path / f"{name}.py").read_text() == shown[f"{name}.py"]


def test_what_the_page_shows_of_a_test_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command("-m", "ratchet", "new", "system", "hops", folder=tmp_path)
    monkeypatch.chdir(tmp_path)
    page = ROOT / "docs/guides/extend.md"
    [example] = [block for block in blocks(page, "python") if "import play" in block]
    exec(example, {})
