"""What the README and docs/ tell the reader to do is done here, word for word."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
import yaml
from tiny import save_tiny_tokenizer
from tiny_index import tiny_index

import agents
import questions.benchmarks
from evaluation.__main__ import main

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
LINK = re.compile(r"\]\((?!https?://|#)([^)#]+)[^)]*\)")
BLOCK = re.compile(r"^`(?P<path>[\w/.]+)`[^\n]*:\n\n```\w+\n(?P<text>.*?)^```", re.MULTILINE | re.DOTALL)


def test_the_readme_is_one_page() -> None:
    assert len(README.read_text()) <= 10_000


def test_every_link_of_the_pages_outside_docs_leads_to_a_file() -> None:
    """mkdocs checks those within docs/."""
    for page in (README, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"):
        for target in LINK.findall(page.read_text()):
            assert (ROOT / target).exists(), f"{page.name} links to {target}"


def test_a_method_and_a_benchmark_are_added_by_one_file_and_one_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    guides = "".join(page.read_text() for page in sorted((ROOT / "docs/guides").glob("own-*.md")))
    told = {match["path"]: match["text"] for match in BLOCK.finditer(guides)}
    assert set(told) == {"agents/self_consistency.py", "questions/benchmarks/lakes.py", "configs/lakes.yaml"}
    for path, text in told.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(agents, "__path__", [*agents.__path__, str(tmp_path / "agents")])
    found = [*questions.benchmarks.__path__, str(tmp_path / "questions/benchmarks")]
    monkeypatch.setattr(questions.benchmarks, "__path__", found)

    save_tiny_tokenizer(tmp_path / "model")
    tiny_index(tmp_path, [{"id": "inari", "text": "The lake Inari lies in Finland."}])
    (tmp_path / "data/lakes").mkdir(parents=True)
    (tmp_path / "data/lakes/lakes.csv").write_text("Q,A,Page\nWhere is the lake Inari?,Finland,inari\n")
    (tmp_path / "test.jsonl").write_text(json.dumps({"id": "q", "text": "Where?", "answers": ["there"]}) + "\n")
    script = [{"match": "Inari?", "replies": ["Finland", "Finland", "Norway"]}, {"default": "there"}]
    (tmp_path / "script.jsonl").write_text("".join(json.dumps(rule) + "\n" for rule in script))
    config = {
        "run": "run",
        "models": {"agent": {"path": str(tmp_path / "model"), "engine": "scripted", "script": "script.jsonl"}},
        "index": {"path": str(tmp_path / "index")},
        "questions": {split: {"path": "test.jsonl"} for split in ("train", "dev", "test")},
        "system": {"name": "naive_rag"},
        "rewards": {"weights": {"f1": 1.0}},
        "evaluation": {"scores": ["em", "f1"], **yaml.safe_load(told["configs/lakes.yaml"])["evaluation"]},
    }
    (tmp_path / "configs/lakes.yaml").write_text(yaml.safe_dump(config))
    monkeypatch.setattr(sys, "argv", ["evaluation", "--config", "configs/lakes.yaml", "--base-only"])
    main()
    lakes = capsys.readouterr().out.partition("lakes: 1 questions")[2]
    row = next(line for line in lakes.splitlines() if line.strip().startswith("self-consistency")).split()
    assert "3.0" in row, "three votes, three calls"
    assert "100.0" in row, "the answer is in what was found"
