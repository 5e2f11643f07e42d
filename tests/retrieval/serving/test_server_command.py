"""`ratchet index serve` with an index on disk."""

import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from ratchet.core.errors import UserError
from ratchet.retrieval.backends.remote import RemoteIndex
from ratchet.retrieval.loader import open_folder
from tests.helpers.commands import command_of
from tests.helpers.experiment import preloaded
from tests.helpers.served import TEXTS
from tests.helpers.tiny_index import tiny_index

main = command_of("index", "serve")

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("served")
    tiny_index(path, [{"id": name, "text": text} for name, text in TEXTS.items()])
    return path / "index"


def command(*arguments: object) -> subprocess.Popen[str]:
    line = [sys.executable, "-m", "ratchet", "index", "serve", *map(str, arguments)]
    return subprocess.Popen(line, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=preloaded())


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    return process.stderr.readline()


@pytest.mark.slow
def test_the_command_serves_folders_and_ends_in_order(folder: Path) -> None:
    process = command(
        "--index", f"one={folder}", "--index", f"two={folder}", "--port", 0, "--threads", 2, "--depth", 50
    )
    try:
        line = first_line(process)
        assert line.startswith("serving one (") and ", two (" in line
        url = line.split()[-1]
        local, remote = open_folder(folder), RemoteIndex(url, "two")
        assert remote.digest == local.digest
        for query in ("harbour of Velm", "number 7", "", "unknown"):
            wanted = local.search(query, 6, 2)  # first: it compiles what may not be in the cache yet
            assert remote.search(query, 6, 2) == wanted
        assert httpx.get(f"{url}/indexes").json()["indexes"][0]["chunks"] == len(local) == 60
        with pytest.raises(UserError, match="the limit is 50"):
            remote.search("a", 51)
        again = command("--index", f"one={folder}", "--port", httpx.URL(url).port)
        assert "is in use" in again.communicate(timeout=300)[1].partition("\n")[0] and again.returncode == 2
        process.send_signal(signal.SIGTERM)
        assert process.wait(300) == 0
        assert "Traceback" not in process.communicate()[1]
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "either --config X.yaml or --index"),
        (["--index", "nowhere"], "expected NAME=FOLDER"),
        (["--index", "a/b=x"], r"character 2 is '/' \(U\+002F SOLIDUS\); expected NAME of letters"),
        (["--index", "vеlm=x"], r"character 2 is 'е' \(U\+0435 CYRILLIC SMALL LETTER IE\)"),
        (["--index", "=x"], "the name is empty"),
        (["--index", "a={}", "--index", "a={}"], "already an index 'a'"),
    ],
)
def test_mistakes_on_the_command_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["server", *[argument.format(folder) for argument in arguments]])
    with pytest.raises(UserError, match=words):
        main()


def test_missing_uvicorn_names_the_extra(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["server", "--index", f"one={folder}"])
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(UserError, match=r"needs uvicorn: pip install 'ratchet-agents\[server\]'"):
        main()
