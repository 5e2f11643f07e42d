"""A SLURM whose commands only write down how they were called."""

import contextlib
import io
import json
import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from tests.helpers.experiment import ROOT, run_words

__all__ = ["ROOT", "Slurm", "changed"]
SBATCH = """#!{python}
import json, os, sys
calls = {calls!r}
with open(calls, "a+") as file:
    file.seek(0)
    number = 100 + len(file.readlines())
    if any("refused" in word for word in sys.argv):
        sys.exit("sbatch: error: invalid partition")
    known = {{k: v for k, v in os.environ.items() if k.startswith("RATCHET_") or k == "CACHE"}}
    file.write(json.dumps([sys.argv[1:], known]) + "\\n")
print(f"{{number}};cluster")
"""


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


class Slurm:
    """`calls` are sbatch's: the arguments and the environment of each."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self._calls = folder, folder / "calls"
        (folder / "bin").mkdir()
        self.program("sbatch", SBATCH.format(python=sys.executable, calls=str(self._calls)))
        self.program("squeue", "#!/bin/sh\n")
        monkeypatch.setenv("PATH", f"{folder / 'bin'}:{os.environ['PATH']}")

    def program(self, name: str, text: str) -> None:
        path = self.folder / "bin" / name
        path.write_text(text)
        path.chmod(0o755)

    @property
    def calls(self) -> list[Any]:
        return [json.loads(line) for line in self._calls.read_text().splitlines()] if self._calls.exists() else []

    def forget(self) -> None:
        self._calls.unlink()

    def site(self, text: str) -> Path:
        path = self.folder / "site file.yaml"
        path.write_text(text)
        return path

    def command(self, *arguments: str | Path) -> Done:
        """ratchet slurm, as a user types it; in this process, since starting one takes seconds."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = run_words(("-m", "ratchet", "slurm", *map(str, arguments)))
        return Done(status, out.getvalue(), err.getvalue())


def changed(config: Path, target: Path, **sections: Any) -> Path:
    """The config with other sections, as a file of its own."""
    data = yaml.safe_load(config.read_text()) | sections
    target.write_text(yaml.safe_dump(data, sort_keys=False))
    return target
