"""The first hour with one's own data: an installed wheel, an empty folder, files of five kinds, ten questions, and the
commands of the guides alone.

The wheel's environment, which has another project's `agents` as well, has the same path and its files the same times in
every session, so Numba compiles the kernels once for each version of their sources, as for a user: some 20 seconds of a
core.

`RATCHET_TIMES=1 python -m pytest -s tests/system/test_own_data.py` prints what each command takes a user, who has no
libraries loaded beforehand.
"""

import fcntl
import json
import os
import re
import resource
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ratchet.core.records import content_key
from tests.helpers.pages import ROOT
from tests.helpers.pdf import pdf
from tests.helpers.small_models import terse_model
from tests.helpers.wheel import Installed, install_wheel

TOWNS = ("Velm", "Tarn", "Oskel", "Brimm", "Duvay", "Harrow", "Quill", "Sallow", "Ember", "Gale")
BUILDERS = ("Torrin", "Maddock", "Fenwright", "Askel", "Brandt", "Corvey", "Dunmore", "Elstow", "Farrow", "Garrick")
ROWS = [f"Who built the harbour of {town}?,{builder}" for town, builder in zip(TOWNS, BUILDERS, strict=True)]
CONFIG = ("--config", "notes.yaml")
IS_TIMED = "RATCHET_TIMES" in os.environ
# Less of all, and every trajectory is kept: one of a question need not be a good one.
LESS = ("sampling.samples=1", "rewards.select.min_reward=-1", "training.max_steps=1")
PLUGIN = re.compile(r"^`(?P<path>\w+\.py)`[^\n]*:\n\n```python\n(?P<text>.*?)^```", re.MULTILINE | re.DOTALL)


@dataclass
class Walk:
    """Runs commands in the folder and notes how long each took: seconds, and seconds of a core."""

    installed: Installed
    took: list[tuple[str, float, float]] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        return self.installed.folder

    def __call__(self, *words: str, status: int = 0) -> str:
        begun, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
        # The stages that `selftrain` starts are preloaded; itself it has to be a process of the environment.
        started = ("ratchet",) if IS_TIMED or words[0] == "selftrain" else ("python", "-m", "ratchet")
        said = self.installed.run(*started, *words, status=status, is_preloaded=not IS_TIMED)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        core = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        self.took.append((" ".join(words[:2]), time.monotonic() - begun, core))
        return said

    def table(self) -> str:
        rows = [f"{seconds:6.1f} s  {core:6.1f} s of a core  {words}" for words, seconds, core in self.took]
        total = [sum(column) for column in zip(*(row[1:] for row in self.took), strict=True)]
        return "\n".join([*rows, f"{total[0]:6.1f} s  {total[1]:6.1f} s of a core  {len(rows)} commands"])


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    """The wheel in an environment whose folder is always the same, which this process has for itself."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    place = cache / "ratchet" / f"wheel-of-tests-{content_key(str(ROOT))[:8]}"
    place.mkdir(parents=True, exist_ok=True)
    with (place / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        folder = tmp_path_factory.mktemp("wheel")
        install_wheel(folder, place / "environment")
        work = folder / "work"
        work.mkdir()
        yield Installed(place / "environment", work)


@pytest.fixture
def walk(installed: Installed, smollm2: Path) -> Walk:
    (installed.folder / "models").mkdir()
    terse_model(smollm2, installed.folder / "models" / smollm2.name)
    return Walk(installed)


def write_documents(notes: Path) -> None:
    notes.mkdir()
    for town, builder in zip(TOWNS, BUILDERS, strict=True):
        text = f"# The harbour of {town}\n\nThe harbour of {town} was built by {builder} after the great storm.\n"
        (notes / f"{town.lower()}.md").write_text(text)
    page = "<p>The lighthouse of Velm was lit by Torrin.</p><table><tr><td>Height</td><td>41 m</td></tr></table>"
    (notes / "light.html").write_text(f"<html><head><title>Light</title></head><body>{page}</body></html>")
    (notes / "ferry.pdf").write_bytes(pdf("The ferry of Tarn was built by Maddock."))
    (notes / "bridge.txt").write_bytes("Die Brücke von Oskel wurde von Fenwright gebaut.".encode("latin-1"))
    (notes / "slides.pptx").touch()


def hints(said: str) -> list[list[str]]:
    """The commands that `init` tells to type next."""
    return [line.split()[1:] for line in said.partition("\nnext:\n")[2].splitlines() if line.startswith("  ratchet ")]


def plugin(name: str, folder: Path) -> str:
    """Write a file of the guide into the folder, as the page says for an installed package; how a config names it."""
    page = (ROOT / "docs/guides/extend.md").read_text()
    [text] = [found["text"] for found in PLUGIN.finditer(page) if found["path"] == name]
    (folder / name).write_text(text)
    return f"./{name}"


@pytest.mark.slow
def test_every_module_of_the_wheel_is_below_ratchet_and_imports_only_there(installed: Installed) -> None:
    script = str(ROOT / "tests" / "helpers" / "import_wheel.py")
    assert installed.run("python", script).strip().endswith("site-packages/ratchet")


@pytest.mark.model
@pytest.mark.slow
def test_from_a_wheel_and_a_folder_to_a_report(walk: Walk, capsys: pytest.CaptureFixture[str]) -> None:
    folder, notes, table = walk.folder, walk.folder / "notes", walk.folder / "questions.csv"
    assert "is complete already" in walk("models", "build")

    write_documents(notes)
    # A spreadsheet's table.
    table.write_bytes("\r\n".join(["Question;Answer", *(row.replace(",", ";") for row in ROWS)]).encode("utf-8-sig"))
    said = walk("init", "notes", "questions.csv")
    assert said.count("1 .pptx") == 1 and said.count("bridge.txt: not UTF-8; read as windows-1252") == 1
    assert "documents   13 in notes" in said and "7 train, 1 dev, 2 test" in said
    checking, training = hints(said)
    assert checking[:2] == ["questions", "check"] and training[0] == "selftrain"
    assert "questions.train: 7 questions of questions.csv: 7 with answers" in walk(*checking)

    said = walk("index", *CONFIG)
    assert said.count("1 .pptx") == 1 and said.count("bridge.txt: not UTF-8; read as windows-1252") == 1
    assert "41 m" in walk("search", "Height of the lighthouse", *CONFIG)
    assert "model calls" in walk("ask", "Who built Velm's harbour?", *CONFIG)
    assert "trajectories" in walk("plan", *CONFIG)

    less = [word for one in LESS for word in ("--set", one)]
    assert "7 trajectories of 7 questions" in walk(*training, *less)
    assert json.loads((folder / "runs/notes/manifest.json").read_text())["code"].startswith("wheel ")
    assert "report" in walk("status", *CONFIG)
    assert (folder / "runs/notes/report.html").is_file()
    assert "written to" in walk("export", *CONFIG, "--merged")
    assert list(folder.glob("runs/notes/export/round-1/merged/*.safetensors"))

    # A reward and a system of the user's own.
    assert "Brevity" in walk("score", *CONFIG, "--also", plugin("brevity.py", folder))
    system = plugin("hops.py", folder)
    own = (*CONFIG, "--set", "run=runs/mine", "--set", f"system={{name: {system}, settings: {{searches: 1}}}}")
    assert "model calls 2," in walk("ask", "Who built Velm's harbour?", *own)
    if IS_TIMED:
        with capsys.disabled():
            print(f"\n{walk.table()}")
