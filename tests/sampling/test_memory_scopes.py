"""Whose evidence a question is given: that of its own experiment alone, whatever else was run in the folder."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from ratchet.core.config import MemoryConfig, load_config
from ratchet.core.errors import UserError
from ratchet.core.files import read_segments
from ratchet.core.records import Trajectory, content_key
from ratchet.core.runfolder import RunFolder
from ratchet.evaluation.arms import read_arms
from ratchet.evaluation.round_arms import evaluate
from ratchet.inference.engine import EngineError
from ratchet.inference.scripted import ScriptedEngine
from ratchet.questions.manifest import open_run
from ratchet.retrieval.memory import Memory
from ratchet.sampling.store import TrajectoryStore
from tests.helpers.commands import command_of
from tests.helpers.configs import SPLITS, scripted_model, write_config
from tests.helpers.tiny import save_tiny_tokenizer
from tests.helpers.tiny_index import tiny_index

main = command_of("sample")

MERMAID = {"name": "mermaid", "settings": {"decomposer": False, "steps": 2}}
OTHER = {"name": "mermaid", "settings": {"decomposer": False, "steps": 3}}
STEPS = [
    {"match": "Evidence found", "reply": '{"thought": "It says so.", "verdict": "true"}'},
    {"match": "", "reply": '{"thought": "", "action": "search", "arguments": {"query": "harbour"}}'},
]
Run = Callable[..., list[bool]]


@pytest.fixture
def config_path(tmp_path: Path) -> Path:
    """MERMAID on two claims about one town, one after the other, with the index as its only tool."""
    save_tiny_tokenizer(tmp_path / "model")
    tiny_index(tmp_path, [{"id": "d", "text": "The harbour of Velm is deep."}])
    labels = [{"name": name, "meaning": name, "stance": name} for name in ("true", "false")]
    claims = [
        {"id": f"q{i}", "form": "claim", "text": f"Velm has a {what}.", "labels": labels, "label": "true"}
        for i, what in enumerate(("harbour", "port"))
    ]
    (tmp_path / "claims.jsonl").write_text("".join(json.dumps(claim) + "\n" for claim in claims))
    (tmp_path / "script.jsonl").write_text("".join(json.dumps(rule) + "\n" for rule in STEPS))
    split = {"path": str(tmp_path / "claims.jsonl")}
    return write_config(
        tmp_path,
        models={"agent": scripted_model(tmp_path)},
        sources={"search": {"service": "tavily", "mode": "local"}},
        questions={**dict.fromkeys(SPLITS, split), "leakage": {"questions": "off"}},
        system=MERMAID,
        sampling={"samples": 1, "concurrency": 1},
        rewards={"weights": {"accuracy": 1.0}},
        evaluation={"baselines": {"other": OTHER}},
    )


def recalled(folder: Path) -> list[list[bool]]:
    """Of every trajectory in the order they were made: its question's number, and whether it was given evidence."""
    made = list(read_segments(folder, Trajectory))
    assert {one.status for one in made} <= {"finished", "failed"}
    return [[one.question_id == "q1", any(e.kind == "recall" and e.passages for e in one.events)] for one in made]


FRESH = [[False, False], [True, True]]
"""The first claim finds nothing in the memory, the second what the first one left."""


def evaluated(path: Path, arm: str = "base", **changes: Any) -> list[list[bool]]:
    """What an arm's new trajectories recalled."""
    config = load_config(path, [f"evaluation.{key}={json.dumps(value)}" for key, value in changes.items()])
    folder = open_run(config).round(1)
    before = {path.parent: len(recalled(path.parent)) for path in config.folder.glob("arms/**/part-*.jsonl")}
    evaluate(config, folder, ["dev"], None)
    place = read_arms(folder, "dev")[arm].folder
    return recalled(place)[before.get(place, 0) :]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arm", "changes"),
    [
        ("base", {"temperature": 0.9}),
        ("base", {"samples": 2}),
        ("other", {"baselines": {"other": {"name": "mermaid", "settings": {"decomposer": False, "steps": 4}}}}),
    ],
)
def test_an_arm_that_is_changed_begins_with_an_empty_memory(
    config_path: Path, arm: str, changes: dict[str, Any]
) -> None:
    assert evaluated(config_path, arm) == FRESH
    arms = read_arms(RunFolder(config_path.parent / "run").round(1), "dev")
    assert recalled(arms["other"].folder) == FRESH, "arms do not help each other"
    again = evaluated(config_path, arm, **changes)
    # The first sample of each claim is on disk already where there are more of them: the second ones begin anew.
    assert again == FRESH
    assert evaluated(config_path, arm, **changes) == [], "everything is on disk"


def test_an_arm_that_is_resumed_goes_on_with_its_own_memory(config_path: Path) -> None:
    assert evaluated(config_path) == FRESH
    [segment] = read_arms(RunFolder(config_path.parent / "run").round(1), "dev")["base"].segments
    segment.path.write_text(segment.path.read_text().splitlines(keepends=True)[0])
    assert evaluated(config_path) == FRESH[1:]


def sampled(path: Path, monkeypatch: pytest.MonkeyPatch, number: int, *words: str) -> list[list[bool]]:
    folder = RunFolder(path.parent / "run").round(number).trajectories
    before = len(recalled(folder))
    monkeypatch.setattr(sys, "argv", ["sampling", "--config", str(path), "--round", str(number), *words])
    main()
    return recalled(folder)[before:]


@pytest.mark.slow
def test_a_round_begins_with_an_empty_memory_and_its_parts_share_it(
    config_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert sampled(config_path, monkeypatch, 1, "--part", "0/2") == FRESH[:1]
    assert sampled(config_path, monkeypatch, 1, "--part", "1/2") == FRESH[1:]
    assert sampled(config_path, monkeypatch, 1) == []
    assert sampled(config_path, monkeypatch, 2) == FRESH


def test_a_round_whose_rule_is_changed_begins_with_an_empty_memory(
    config_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = config_path.parent / "rule.py"
    config = yaml.safe_load(config_path.read_text())
    config["sampling"]["explore"] = {"samples": 1, "rules": [str(rule)]}
    config_path.write_text(yaml.safe_dump(config))
    for made in ("None", "dict(point.schema)"):
        rule.write_text(f"def narrow(point):\n    return {made}\n")
        assert sampled(config_path, monkeypatch, 1) == FRESH


def in_sequence(path: Path, **changes: Any) -> Path:
    """The config with claims in sequence and room for many at once; the first claim takes the longest."""
    rules = [{"prompt": "has a harbour", "delay": 0.3, **STEPS[0]}, *STEPS]
    (path.parent / "script.jsonl").write_text("".join(json.dumps(rule) + "\n" for rule in rules))
    config = yaml.safe_load(path.read_text())
    config |= {"sampling": {"samples": 1, "concurrency": 8}, "memory": {"sequential": True} | changes}
    path.write_text(yaml.safe_dump(config))
    return path


@pytest.mark.slow
@pytest.mark.parametrize(("sequential", "expected"), [(False, [[True, False], [False, False]]), (True, FRESH)])
def test_claims_in_sequence_each_find_what_the_ones_before_left(
    config_path: Path, sequential: bool, expected: list[list[bool]]
) -> None:
    """At once, the second claim ends first, and neither finds anything."""
    assert evaluated(in_sequence(config_path, sequential=sequential)) == expected


@pytest.mark.slow
def test_a_sequence_begins_with_an_empty_memory_or_not_at_all(
    config_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = in_sequence(config_path)
    assert evaluated(path) == FRESH
    store = read_arms(RunFolder(path.parent / "run").round(1), "dev")["base"]
    lines = store.segments[0].path.read_text().splitlines(keepends=True)
    store.segments[0].path.write_text(lines[0])
    assert evaluated(path) == FRESH[1:], "interrupted between evidence and trajectory, it resumes"
    store.segments[0].path.unlink()
    with pytest.raises(UserError, match="already holds evidence of this experiment"):
        evaluated(path)
    with pytest.raises(UserError, match="sample without --part"):
        sampled(path, monkeypatch, 1, "--part", "0/2")


@pytest.mark.slow
def test_a_sequence_whose_questions_have_enough_goes_on_after_them(
    config_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = in_sequence(config_path)
    config = yaml.safe_load(path.read_text())
    config["sampling"] |= {"samples": 3, "enough": 1}
    path.write_text(yaml.safe_dump(config))
    assert sampled(path, monkeypatch, 1) == FRESH
    [segment] = TrajectoryStore(RunFolder(path.parent / "run").round(1).trajectories).segments
    segment.path.write_text(segment.path.read_text().splitlines(keepends=True)[0])
    assert sampled(path, monkeypatch, 1) == FRESH[1:], "interrupted between evidence and trajectory, it resumes"


@pytest.mark.slow
def test_a_sequence_stops_at_a_claim_that_failed_and_goes_on_from_there(
    config_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generate = ScriptedEngine.generate

    async def lose_the_first(self: ScriptedEngine, prompt: Any, *rest: Any, **keys: Any) -> Any:
        if "has a harbour" in str(rest) + str(keys):
            raise EngineError("the server went away")
        return await generate(self, prompt, *rest, **keys)

    path = in_sequence(config_path)
    with monkeypatch.context() as lost:
        lost.setattr(ScriptedEngine, "generate", lose_the_first)
        with pytest.raises(UserError, match=r"base .*: q0 failed .*went away.*, 1 after it"):
            evaluated(path)
    assert evaluated(path) == FRESH, "after the failed one, each is asked in its place"


def test_the_digest_of_a_memory_that_is_not_in_sequence_is_what_it_was(tmp_path: Path) -> None:
    limits = {"most": 10, "per_entity": 50, "pieces": 100_000, "characters": 4000}
    before = limits | {"path": "", "across": False, "similarity": 0.5, "name_similarity": 0.55}
    assert Memory(MemoryConfig(), tmp_path).digest == content_key("memory", before)
    assert Memory(MemoryConfig(sequential=True), tmp_path).digest != Memory(MemoryConfig(), tmp_path).digest
