"""What is said of the code that runs."""

import subprocess
from pathlib import Path

from ratchet.core.installed import code_version


def git(folder: Path, *words: str) -> str:
    settings = ("-c", "user.name=t", "-c", "user.email=t@t", "-c", "commit.gpgsign=false")
    return subprocess.run(["git", *settings, *words], cwd=folder, capture_output=True, text=True, check=True).stdout


def test_uncommitted_changes_are_said(tmp_path: Path) -> None:
    (tmp_path / "alone").mkdir()
    checkout = tmp_path / "checkout"
    for name in ("clean", "patched", "added"):
        code = checkout / name / "code"
        code.mkdir(parents=True)
        (code / "a.py").write_text("one = 1\n")
        git(code.parent, "init", "-q")
        git(code.parent, "add", "-A")
        git(code.parent, "commit", "-qm", "first")
        (code / {"clean": "a.py", "patched": "a.py", "added": "b.py"}[name]).write_text(
            "one = 1\n" if name == "clean" else "one = 2\n"
        )
        commit = git(code, "rev-parse", "HEAD").strip()
        assert code_version(code) == commit + ("" if name == "clean" else "+changes")
    assert code_version(tmp_path / "alone") is None
