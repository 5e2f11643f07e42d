"""`ratchet generate` as a user runs it: its files, its refusals, a kill, and a model in its process."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from ratchet.core.config import SplitConfig
from ratchet.core.errors import UserError
from ratchet.questions.load import load_questions
from tests.helpers.commands import command_of
from tests.helpers.configs import SPLITS, scripted_model, write_config
from tests.helpers.making import corpus, write
from tests.helpers.tiny import save_tiny_tokenizer
from tests.helpers.tiny_index import write_documents

main = command_of("generate")

ROOT = Path(__file__).parents[2]


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str | Path) -> None:
    """The command in this process."""
    monkeypatch.setattr(sys, "argv", ["question_generation", *map(str, arguments)])
    main()


def config(folder: Path) -> Path:
    """A config over 40 documents, with a model that writes about whatever document it is shown."""
    documents = corpus(40)
    rules: list[dict[str, Any]] = [
        {"match": "Check them", "reply": '{"reason": "", "stands_alone": true, "answerable": true, "supported": true}'}
    ]
    for document in documents:
        material = {"documents": [{"title": document.title}]}
        rules.append({"match": f'"documents": [\n  {{\n   "title": "{document.title}"', "reply": write(material, "")})
    (folder / "script.jsonl").write_text("".join(json.dumps(rule) + "\n" for rule in rules))
    write_documents(folder / "documents.jsonl", [vars(d) for d in documents])
    simple = {
        "categorisations": {"about": {"anything": {"probability": 1, "definition": "Anything."}}},
        "common": ["about"],
        "combinations": [[]],
    }
    (folder / "categories.yaml").write_text(yaml.safe_dump(simple))
    save_tiny_tokenizer(folder / "model")
    return write_config(
        folder,
        models={"agent": scripted_model(folder)},
        index={"path": str(folder / "index"), "documents": [str(folder / "documents.jsonl")]},
        questions={split: {"path": str(folder / "out" / f"{split}.jsonl")} for split in SPLITS},
        generation={
            "out": str(folder / "out"),
            "questions": {"train": 6, "dev": 2, "test": 2},
            "document_words": [5, 200],
            "categories": str(folder / "categories.yaml"),
        },
    )


def test_it_writes_questions_that_the_other_commands_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, out = config(tmp_path), tmp_path / "out"
    run(monkeypatch, "--config", path)
    assert "train: 6 of 6 questions" in capsys.readouterr().out
    calls = [json.loads(line)["key"] for line in (out / "calls.jsonl").read_text().splitlines()]
    assert len(calls) == len(set(calls)) == 20
    before = (out / "calls.jsonl").read_bytes()
    run(monkeypatch, "--config", path)
    assert (out / "calls.jsonl").read_bytes() == before, "nothing is asked again"

    # The documents are the corpus's.
    known = {d.id for d in corpus(40)}
    gold: list[set[str]] = []
    for split, count in (("train", 6), ("dev", 2), ("test", 2)):
        questions = load_questions(SplitConfig(path=str(out / f"{split}.jsonl")))
        assert len(questions) == count and all(q.reference and set(q.gold_ids) <= known for q in questions)
        gold.append({d for q in questions for d in q.gold_ids})
    assert not gold[0] & gold[2] and not gold[0] & gold[1] and not gold[1] & gold[2]
    assert json.loads((out / "report.json").read_text())["splits"]["train"]["accepted"] == 6

    with pytest.raises(UserError) as refused:
        run(monkeypatch, "--config", path, "--set", "generation.max_tokens=500", "--set", "seed=3")
    for part in ("generation.max_tokens: 1024 there, 500 now", "seed: changed since", "generation.out="):
        assert part in str(refused.value)
