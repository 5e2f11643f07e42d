"""Disks that are full or read-only: one error that names the file, nothing lost, and a finished run once there is room.

Each trial has a file system of its own in memory, which only root can mount.
"""

import importlib
import random
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from ratchet.core.config import IndexConfig
from ratchet.core.errors import UserError
from ratchet.core.files import count_lines
from ratchet.index_build.build import build_index
from ratchet.sampling.store import TrajectoryStore
from tests.campaign.kills import SAMPLING
from tests.campaign.sampling_work import outcomes
from tests.campaign.trial import Attack, Trial
from tests.helpers.building import SMALL, corpus, tree
from tests.helpers.tiny_index import index_config, shared_tokenizer
from tests.helpers.zygote import shared_zygote

ATTEMPT = "tests.campaign.full_disk:attempt"
PAGE = 4096
ROOM = 256 << 20


@dataclass(frozen=True)
class Work:
    """What writes to a disk."""

    modules: tuple[str, ...]
    """Loaded before it is forked."""
    prepare: Callable[[Path], Mapping[str, Any]]
    """The request of the work, from a folder for what it reads."""
    state: Callable[[Path], object]
    """What it has made in a folder."""


@contextmanager
def disk(folder: Path, size: int) -> Iterator[Callable[[str], None]]:
    """A file system of `size` bytes at `folder`; gives a function that changes its mount options."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "ratchet-campaign", str(folder)], check=True)
    try:
        yield lambda options: _mount(f"remount,{options}", folder)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def _mount(options: str, folder: Path) -> None:
    subprocess.run(["mount", "-o", options, str(folder)], check=True)


@cache
def missing() -> str:
    """Why no disk can be made here; empty where one can."""
    with tempfile.TemporaryDirectory() as name:
        try:
            with disk(Path(name) / "disk", PAGE):
                return ""
        except (OSError, subprocess.CalledProcessError) as error:
            return f"mounting a file system needs root ({error})"


def attempt(request: Mapping[str, Any]) -> None:
    """Do request["inner"], and write the UserError that ends it, if any, to request["said"]."""
    module, _, name = request["inner"].partition(":")
    said = Path(request["said"])
    said.unlink(missing_ok=True)
    try:
        getattr(importlib.import_module(module), name)(request)
    except UserError as error:
        said.write_text(str(error))


@contextmanager
def little_room(folder: Path, work: Work) -> Iterator[Trial]:
    """There is too little room, twice; sometimes no write at all; then there is enough."""
    request = {**work.prepare(folder), "work": ATTEMPT, "said": str(folder / "said")}
    zygote = shared_zygote("tests.campaign.full_disk", *work.modules)

    def run(here: Path) -> str:
        signal, _ = zygote.run(request | {"folder": str(here / "out")}, "never")
        assert signal == 0, f"ended by signal {signal}"
        said = folder / "said"
        return said.read_text() if said.exists() else ""

    calm = folder / "calm"
    calm.mkdir()
    assert (problem := run(calm)) == "", problem
    wanted = work.state(calm / "out")
    pages = sum(-(-path.stat().st_size // PAGE) for path in calm.rglob("*") if path.is_file())

    def trial(dice: random.Random) -> None:
        here = folder / f"{dice.getrandbits(64)}"
        with disk(here, PAGE * dice.randint(1, pages)) as remount:
            said = [run(here)]
            if dice.random() < 0.5:
                remount("ro")
                said.append(run(here))
                remount("rw")
            said.append(run(here))
            for one in filter(None, said):
                assert str(here) in one and len(one) < 2000, f"does not name the file: {one}"
            remount(f"size={ROOM}")
            assert (last := run(here)) == "", last
            assert work.state(here / "out") == wanted, "what is there now is not what a calm run leaves"

    yield trial


def _sampling(folder: Path) -> Mapping[str, Any]:
    return {**SAMPLING, "inner": SAMPLING["work"]}


def _sampled(folder: Path) -> object:
    found = outcomes(folder)
    assert count_lines(TrajectoryStore(folder).segments) == len(found), "trajectories were sampled twice"
    return found


def _building(folder: Path) -> Mapping[str, Any]:
    config = index_config(folder, corpus(40), shard_documents=8, **SMALL)
    return {"inner": "tests.campaign.full_disk:build", "config": config.model_dump(mode="json", exclude_defaults=True)}


def build(request: Mapping[str, Any]) -> None:
    """Build an index in request["folder"]."""
    build_index(IndexConfig(**request["config"] | {"path": request["folder"]}), shared_tokenizer(), "tiny")


def attack(name: str, work: Work, fast: int, whole: int, seconds: float = 60.0) -> Attack:
    """The attack of a full disk on a kind of work."""
    return Attack(
        f"full and read-only disks under {name}",
        partial(little_room, work=work),
        fast,
        whole,
        seconds,
        missing=missing,
    )


SAMPLED = Work(("tests.campaign.sampling_work",), _sampling, _sampled)
BUILT = Work((), _building, tree)
ATTACKS = (attack("sampling", SAMPLED, 1, 200), attack("an index build", BUILT, 1, 200))
