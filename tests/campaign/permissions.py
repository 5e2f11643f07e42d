"""Files and folders that a user may not read or write: one error that names them, and what only reads runs."""

import contextlib
import random
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.campaign.trial import Attack, Trial
from tests.helpers.experiment import Done, command, make_experiment
from tests.helpers.unprivileged import unprivileged

READING: tuple[tuple[str, ...], ...] = (("search", "harbour"), ("status",))
"""Commands that need nothing but to read."""
WRITING: tuple[tuple[str, ...], ...] = (
    ("index",),
    ("sample",),
    ("score",),
    ("train",),
    ("evaluate",),
    ("export", "--adapter-only"),
    ("report",),
    ("ask", "Who built Velm's harbour?"),
)
MADE_BY = ("index", "sample", "score", "train", "evaluate", "report")


@contextmanager
def mode(path: Path, bits: int) -> Iterator[None]:
    """A file's permissions in the block."""
    before = stat.S_IMODE(path.stat().st_mode)
    path.chmod(bits)
    try:
        yield
    finally:
        path.chmod(before)


@contextmanager
def forbidding(folder: Path) -> Iterator[Trial]:
    """One file cannot be read, or one folder cannot be read or written, or the run and its index can only be read."""
    config = make_experiment(folder, questions=3)

    def run(words: tuple[str, ...]) -> Done:
        with pytest.MonkeyPatch.context() as patch, unprivileged():
            patch.setenv("HOME", "/nonexistent")
            return command("-m", "ratchet", *words, "--config", str(config))

    for made in MADE_BY:
        done = run((made,))
        assert done.returncode == 0, done.stdout
    paths = sorted(folder.rglob("*"))

    def trial(dice: random.Random) -> None:
        if dice.random() < 0.2:
            words = dice.choice(READING)
            with contextlib.ExitStack() as stack:
                for path in (folder / "run", folder / "index"):
                    for below in (path, *path.rglob("*")):
                        stack.enter_context(mode(below, 0o555 if below.is_dir() else 0o444))
                done = run(words)
            assert done.returncode == 0, f"{words} on folders that can only be read\n{done.stdout}"
            return
        words, path = dice.choice(READING + WRITING), dice.choice([path for path in paths if path.exists()])
        with mode(path, dice.choice((0o000, 0o555)) if path.is_dir() else 0o000):
            done = run(words)
        said = done.stdout
        is_named = str(path) in said or (str(path.parent) in said and path.name in said)
        assert done.returncode == 0 or (done.returncode == 2 and is_named), f"{words} without {path}\n{said}"

    yield trial


ATTACKS = (Attack("files without permission", forbidding, 6, 1000, 60.0),)
