"""Whatever a command writes appears whole or not at all: on full and read-only disks, under kills, and where something
is in the way."""

import ast
import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from ratchet.commands.config import open_config
from ratchet.core.config import load_config
from ratchet.core.errors import UserError
from ratchet.core.files import new_folder
from ratchet.core.runfolder import RunFolder
from ratchet.questions.evidence import Corpus
from ratchet.questions.manifest import open_run
from ratchet.training.adapter import publish
from tests.campaign.full_disk import PAGE, disk
from tests.helpers.commands import command_of
from tests.helpers.trained import make_trained

ROOT = Path(__file__).parents[2]

# Writers in the code

CALLS = {
    "write_text", "write_bytes", "write_table", "ParquetWriter", "save_file", "save_pretrained", "np.save", "np.savez",
    "tofile", "copyfile", "copyfileobj", "copy2", "copytree", "move", "savefig", "rename", "mkstemp",
}  # fmt: skip
IN_NEW_FOLDER = "into a folder of `new_folder`"
IN_MEMORY = "into memory, which `write_atomic` writes"
PERMITTED = {
    ("core/files.py", "write_bytes"): "the layer itself",
    ("core/files.py", "open"): "the layer itself: a segment is appended to",
    ("inference/serving/server.py", "open"): "the log of a model server, which appends to it as it runs",
    ("inference/smollm2.py", "open"): "into a temporary folder",
    ("inference/smollm2.py", "copyfileobj"): "into a temporary folder",
    ("inference/smollm2.py", "save_pretrained"): IN_NEW_FOLDER,
    ("index_build/shard.py", "open"): IN_NEW_FOLDER,
    ("index_build/postings.py", "open"): IN_NEW_FOLDER,
    ("training/adapter.py", "copyfile"): IN_NEW_FOLDER,
    ("training/adapter.py", "rename"): "a complete folder, which gets another name",
    ("training/checkpoints.py", "save_pretrained"): IN_NEW_FOLDER,
    ("training/checkpoints.py", "save_file"): IN_NEW_FOLDER,
    ("export/weights.py", "copyfile"): IN_NEW_FOLDER,
    ("export/weights.py", "save_pretrained"): IN_NEW_FOLDER,
    ("export/dataset.py", "write_table"): IN_NEW_FOLDER,
    ("export/dataset.py", "ParquetWriter"): IN_NEW_FOLDER,
    ("training/rows.py", "write_table"): IN_MEMORY,
    ("training/objective_trainer.py", "write_table"): IN_MEMORY,
    ("index_build/content.py", "np.save"): IN_MEMORY,
    ("retrieval/encoders/vectors.py", "np.savez"): IN_MEMORY,
    ("retrieval/trec.py", "open"): "a partial run, which is synced and gets its name when it is complete",
    ("retrieval/backends/lucene.py", "rename"): "Lucene writes and syncs its folder itself",
    ("commands/main.py", "open"): "/dev/null, in the place of a pipe whose reader has left",
}
"""By file and call, why it need not go through `write_atomic`."""


def writers(file: Path) -> Iterator[str]:
    """The calls that write to a file system."""
    for node in ast.walk(ast.parse(file.read_text())):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        name = name if name.startswith("np.") else name.rpartition(".")[2]
        given = ast.unparse(node) if name in ("open", "fdopen") else ""
        if name in CALLS or re.search(r"""['"][rbt]*[wax][bt+]*['"]|O_WRONLY|O_RDWR""", given):
            yield name


def test_whatever_writes_a_file_goes_through_the_layer() -> None:
    files = [file for folder in (ROOT / "src" / "ratchet").iterdir() for file in folder.resolve().rglob("*.py")]
    found = {(str(file.relative_to(ROOT)), name) for file in files for name in writers(file)}
    assert found - PERMITTED.keys() == set(), "use core/files.py: write_atomic, new_file, new_folder or Segment"
    assert PERMITTED.keys() - found == set(), "no such call is left: take it off the list"


# Commands that write


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A config with a trained round, documents and questions beside it."""
    config = make_trained(tmp_path_factory.mktemp("trained"))
    (config.parent / "notes").mkdir()
    (config.parent / "notes" / "a.md").write_text("The harbour of Velm is old.\n")
    rows = "".join(f"Who built {i}?,Name{i}\n" for i in range(10))
    (config.parent / "q.csv").write_text("question,answer\n" + rows)
    return config


def write_init(config: Path, out: Path) -> None:
    command_of("init")([str(config.parent / "notes"), str(config.parent / "q.csv"), "--out", str(out)])


def write_prompts(config: Path, out: Path) -> None:
    command_of("prompts")(["--config", str(config), "--out", str(out)])


def write_corpus(config: Path, out: Path) -> None:
    Corpus(parts={"a": {"text": None}}, titles={"a": "A"}).write(out)


def write_index(config: Path, out: Path) -> None:
    notes = str(config.parent / "notes")
    index = f"{{path: {out}, documents: [{notes}], tokenizer: words}}"
    run = f"run={config.parent / 'other-run'}"  # the trained round has an index of its own
    command_of("index")(["--config", str(config), "--set", f"index={index}", "--set", run])


def write_adapter(config: Path, out: Path) -> None:
    publish(load_config(config).folder / "round-1" / "adapter", out, read_facts(config), {})


def read_facts(config: Path) -> dict[str, Any]:
    facts: dict[str, Any] = yaml.safe_load((load_config(config).folder / "round-1/adapter/training.json").read_text())
    return facts


def export(*forms: str) -> Callable[[Path, Path], None]:
    return lambda config, out: command_of("export")(["--config", str(config), "--out", str(out), *forms])


WORK: dict[str, Callable[[Path, Path], None]] = {
    "init": write_init,
    "prompts": write_prompts,
    "corpus of evidence": write_corpus,
    "index": write_index,
    "published adapter": write_adapter,
    "export data set": export("--dataset", "all"),
    "export adapter": export("--adapter-only"),
    "export merged": export("--merged"),
}
FILES = {"init", "corpus of evidence"}
"""Work that writes one file; the others write folders."""
USUAL = ("prompts", "corpus of evidence", "published adapter")
"""A folder, a file and an adapter: work that is killed in every run of the tests; with CAMPAIGN set, all is
but the index, whose kills are an attack of the campaign."""
every_command = pytest.mark.parametrize("name", WORK)


def target(folder: Path, name: str) -> Path:
    return folder / "new" / ("out.jsonl" if name in FILES else "out")


def tree(folder: Path) -> dict[str, bytes]:
    """What is in a folder; a lock that a killed process has left is no part of the work, nor is a time."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and not path.name.endswith(".lock"))
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def left_behind(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob("*") if path.name.endswith(".tmp")]


def refused(work: Callable[[], None], out: Path) -> bool:
    """Whether the work ends in an error of the disk; any other is not caught."""
    try:
        work()
    except UserError as error:
        said = str(error)
    else:
        return False
    assert str(out.parent) in said and "cannot write" in said
    return True


@every_command
def test_something_in_the_way_is_named(trained: Path, tmp_path: Path, name: str) -> None:
    out = target(tmp_path, name)
    out.parent.mkdir()
    if name in FILES:
        out.mkdir()
        (out / "mine").touch()
    else:
        out.write_text("mine")
    with pytest.raises(UserError, match=str(out)):
        WORK[name](trained, out)
    assert not left_behind(tmp_path) and (out.is_file() or [path.name for path in out.iterdir()] == ["mine"])


@every_command
def test_a_file_in_the_place_of_a_folder_above_is_named(trained: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "new").write_text("mine")
    assert refused(lambda: WORK[name](trained, target(tmp_path, name)), target(tmp_path, name))
    assert (tmp_path / "new").read_text() == "mine"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount a small disk")
@pytest.mark.parametrize("name", ["corpus of evidence", "published adapter"])
def test_a_full_or_read_only_disk_is_one_error_and_keeps_no_half(trained: Path, tmp_path: Path, name: str) -> None:
    calm = tmp_path / "calm"
    WORK[name](trained, target(calm, name))  # its parent is made
    assert not left_behind(calm)
    pages = sum(-(-path.stat().st_size // PAGE) for path in calm.rglob("*") if path.is_file())
    small = tmp_path / "small"
    with disk(small, PAGE) as remount:
        out = target(small, name)
        (small / "filler").write_bytes(bytes(PAGE))
        assert refused(lambda: WORK[name](trained, out), out) and not left_behind(small)
        (small / "filler").unlink()
        for share in (0.4, 0.8):
            remount(f"size={PAGE * max(1, int(share * pages))}")
            refused(lambda: WORK[name](trained, out), out)
            assert not left_behind(small)
        remount("size=64m")
        WORK[name](trained, out)
        assert tree(small).keys() == tree(calm).keys()
    shut = tmp_path / "shut"
    with disk(shut, 64 << 20) as remount:
        remount("ro")
        assert refused(lambda: WORK[name](trained, target(shut, name)), target(shut, name))
        assert not list(shut.iterdir())


def test_a_report_that_cannot_be_written(trained: Path) -> None:
    report = RunFolder(load_config(trained).folder).report
    report.mkdir()
    (report / "mine").touch()
    with pytest.raises(UserError, match=f"{report}: cannot write"):
        command_of("report")(["--config", str(trained)])
    (report / "mine").unlink()
    report.rmdir()
    assert not left_behind(report.parent)


KILLED = ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir")


def killed_at(number: int, work: Callable[[], object]) -> bool:
    """Do the work in a process that is killed at its `number`th change of a file system; False where it has fewer."""
    if not (child := os.fork()):
        seen = 0

        def count(event: str, details: tuple[Any, ...]) -> None:
            nonlocal seen
            if event not in KILLED or (event == "open" and not details[2] & (os.O_WRONLY | os.O_RDWR)):
                return
            seen += 1
            if seen == number:
                os.kill(os.getpid(), signal.SIGKILL)

        status = 1
        try:
            sys.addaudithook(count)
            work()
            status = 0
        finally:
            os._exit(status)
    _, ended = os.waitpid(child, 0)
    assert ended in (0, signal.SIGKILL), "it failed by itself"
    return ended != 0


@pytest.mark.parametrize("name", WORK.keys() - {"index"} if os.environ.get("CAMPAIGN") else USUAL)
def test_a_kill_leaves_all_or_nothing(trained: Path, tmp_path: Path, name: str) -> None:
    out = target(tmp_path / "calm", name)
    WORK[name](trained, out)
    wanted = tree(out) if out.is_dir() else {"": out.read_bytes()}
    number = 1
    while True:
        out = target(tmp_path / str(number), name)
        if not killed_at(number, lambda out=out: WORK[name](trained, out)):  # type: ignore[misc]
            break
        for path in [out] if out.is_file() else [path for path in out.rglob("*") if path.is_file()]:
            if not any(part.startswith(".") for part in path.relative_to(out.parent).parts):
                assert path.read_bytes() == wanted["" if path == out else str(path.relative_to(out))]
        if name.startswith("export"):  # which ends what was begun; the others refuse to overwrite a file
            WORK[name](trained, out)
            assert tree(out) == wanted
        number += 1 + number // 2  # later changes are like the first ones
    assert number > 2


def test_a_run_folder_whose_making_was_killed_is_made_by_the_next_command(trained: Path, tmp_path: Path) -> None:
    number = 1
    while True:
        config = open_config(trained, [f"run={tmp_path / str(number)}", "sampling.samples=3"])
        is_killed = killed_at(number, lambda config=config: open_run(config))  # type: ignore[misc]
        run = open_run(config)
        assert run.config.exists() and run.manifest.exists(), number
        assert json.loads(run.overrides.read_text()) == ["sampling.samples=3"], number
        if not is_killed:
            break
        number += 1
    assert number > 3


def test_a_new_folder_is_gone_where_its_writer_fails(tmp_path: Path) -> None:
    from safetensors import SafetensorError

    for error in (OSError(28, "No space left on device"), SafetensorError("I/O error: No space left")):
        with (
            pytest.raises(UserError, match=rf"{tmp_path}/one: .*No space left"),
            new_folder(tmp_path / "one"),
        ):
            raise error
    with pytest.raises(KeyboardInterrupt), new_folder(tmp_path / "one"):
        raise KeyboardInterrupt
    assert not list(tmp_path.iterdir())
