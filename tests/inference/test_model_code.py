"""Code that comes with a model never runs, whatever stands on standard input: transformers asks there."""

import ast
import subprocess
from pathlib import Path

import pytest

from tests.helpers.experiment import ROOT
from tests.helpers.model_code import add_code, add_generation_code
from tests.helpers.run_code import run_code
from tests.inference.test_local_engine import make_model

LOADERS = {
    "the sampling engine": "from ratchet.inference.local.model import PackedModel as load; load(MODEL)",
    "training": "from ratchet.training.lora import load_model as load; load(MODEL)",
    "the tokenizer": "from ratchet.inference.tokenizer import load_tokenizer as load; load(MODEL.path)",
    "sizes": "from ratchet.inference.footprint import footprint as load; load(MODEL.path, None, 'float32')",
    "the sparse encoder": "from ratchet.retrieval.encoders.sparse import load_encoder as load; "
    "from ratchet.retrieval.encoders.sparse import EncoderConfig as C; load(C(path=MODEL.path))",
    "the dense encoder": "from ratchet.retrieval.encoders.dense import load_dense_encoder as load, EncoderConfig as C; "
    "load(C(path=MODEL.path))",
}
SCRIPT = """
import sys
from ratchet.core.config import ModelConfig
from ratchet.core.errors import UserError
MODEL = ModelConfig(path=sys.argv[1], dtype="float32", device="cpu")
for name, loader in __LOADERS__.items():
    try:
        exec(loader)
        print(name, "| loaded")
    except UserError as error:
        print(name, "|", error)
"""


def load_with_yes(folder: Path, loaders: dict[str, str]) -> dict[str, str]:
    """What each loader makes of the model, in a process whose standard input says yes to everything."""
    done = run_code(SCRIPT.replace("__LOADERS__", repr(loaders)), folder, typed="y\n" * 1000)
    said = dict(line.split(" | ", 1) for line in done.stdout.splitlines() if " | " in line)
    assert done.returncode == 0 and said.keys() == loaders.keys(), done.stdout + done.stderr
    return said


@pytest.mark.slow
def test_every_loader_refuses_a_model_that_needs_its_own_code(tmp_path: Path) -> None:
    marker = add_code(make_model(tmp_path))
    for message in load_with_yes(tmp_path, LOADERS).values():
        assert str(tmp_path) in message and "code that comes with a model is never run" in message
    assert not marker.exists()


@pytest.mark.slow
def test_a_model_that_can_do_without_its_code_is_loaded_without_it(tmp_path: Path) -> None:
    marker = add_generation_code(make_model(tmp_path))
    loaders = {name: LOADERS[name] for name in ("the sampling engine", "training", "the tokenizer", "sizes")}
    assert set(load_with_yes(tmp_path, loaders).values()) == {"loaded"}
    assert not marker.exists()


LOADING = {"SentenceTransformer", "CrossEncoder", "pipeline", "LLM"}
READ_NO_CODE = {"PeftConfig", "PeftModel"}
"""Classes whose from_pretrained reads an adapter's JSON and weights, and takes no such argument."""


def forgetful(source: str) -> list[int]:
    """Lines that load a model or a part of one and do not say trust_remote_code=False."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        called = node.func
        name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
        owner = ast.unparse(called.value).rpartition(".")[2] if isinstance(called, ast.Attribute) else ""
        loads = name == "from_pretrained" and owner not in READ_NO_CODE
        if loads or name in LOADING or (name == "from_config" and owner.startswith("Auto")):
            said = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
            if said.get("trust_remote_code") != "False":
                found.append(node.lineno)
    return found


@pytest.mark.slow
def test_every_call_that_loads_a_model_says_that_its_code_is_not_run() -> None:
    tracked = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True)
    files = [name for name in tracked.stdout.split() if not name.startswith("tests/")]
    assert len(files) > 100
    found = [f"{name}:{line}" for name in files for line in forgetful((ROOT / name).read_text())]
    assert not found, "say trust_remote_code=False there"
