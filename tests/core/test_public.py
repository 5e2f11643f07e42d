"""The names that users may rely on, and no others at the top."""

import subprocess
import sys
from pathlib import Path

import ratchet

ROOMS = sorted(path.name for path in (Path(ratchet.__file__).parent).iterdir() if (path / "__init__.py").exists())


def test_the_public_names_are_these() -> None:
    assert ratchet.__all__ == [
        "Conversation",
        "Experiment",
        "Passage",
        "Question",
        "Score",
        "Selection",
        "Trajectory",
        "load_config",
        "open_index",
        "play",
        "read_run",
    ]
    for name in ratchet.__all__:
        assert getattr(ratchet, name).__name__ == name


def test_ratchet_is_the_only_module_that_is_importable_from_another_folder(tmp_path: Path) -> None:
    """Other projects have an `agents` too: OpenAI's SDK."""
    program = "import sys; from importlib.util import find_spec; print([n for n in sys.argv[1:] if find_spec(n)])"
    names = [*ROOMS, "train", "selftrain", "ratchet"]
    done = subprocess.run([sys.executable, "-c", program, *names], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.strip() == "['ratchet']", done.stderr
