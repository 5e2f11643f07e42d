"""A hub that cannot be reached costs seconds and one line, for models, encoders and data sets."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from ratchet.core.config import EncoderConfig
from ratchet.core.errors import UserError
from ratchet.core.http import environment as hub
from ratchet.inference.footprint import footprint
from ratchet.inference.tokenizer import load_tokenizer
from ratchet.inference.weights import load_causal_model
from ratchet.questions.benchmark import HubDataset
from ratchet.questions.load import _hub_rows
from ratchet.retrieval.encoders.dense import model_folder
from tests.helpers.commands import command_of
from tests.helpers.pages import ROOT
from tests.helpers.tiny_index import write_documents

main = command_of("index")

NAME = "nobody/no-such-thing-7b"


@pytest.fixture(autouse=True)
def closed_hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The hub is a port where nothing listens, and its libraries are online until they are told otherwise."""
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    import datasets.config
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    hub._is_reachable.cache_clear()
    yield
    hub._is_reachable.cache_clear()
    hub._unreachable.clear()


@pytest.mark.parametrize(
    "load",
    [
        lambda: load_tokenizer(NAME),
        lambda: load_causal_model(NAME),
        lambda: footprint(NAME, None, "bfloat16"),
        lambda: model_folder(EncoderConfig(path=NAME)),
        lambda: list(_hub_rows(HubDataset(NAME, None, {"test": "test"}), "test")),
    ],
    ids=["tokenizer", "model", "footprint", "encoder", "data set"],
)
def test_it_is_one_line_within_seconds(load: Callable[[], object]) -> None:
    begun = time.monotonic()
    with pytest.raises(UserError, match=r"^[^\n]*the hub http://127.0.0.1:9 cannot be reached[^\n]*$"):
        load()
    assert time.monotonic() - begun < 30
    assert os.environ["HF_HUB_OFFLINE"] == "1"


PROGRAM = """
import sys
from ratchet.commands.main import run, run_command
try:
    run_command(lambda: run(["index", "--config", "c.yaml"]))
finally:
    print([name for name in ("transformers", "torch", "datasets") if name in sys.modules])
"""


@pytest.mark.slow
def test_an_index_whose_tokenizer_is_nowhere_imports_nothing_that_takes_seconds(tmp_path: Path) -> None:
    write_documents(tmp_path / "d.jsonl", [{"id": "a", "text": "The harbour of Velm"}])
    config = {"run": "run", "models": {"agent": {"path": NAME}}, "index": {"path": "i", "documents": ["d.jsonl"]}}
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(config))
    python, variables = [sys.executable, "-c", PROGRAM], {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(python, cwd=tmp_path, env=variables, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "[]\n")
    assert done.stderr.count("\n") == 1 and "http://127.0.0.1:9 cannot be reached" in done.stderr
