"""Flipped bits, cuts and foreign bytes in files that commands read."""

import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from ratchet.core.config import load_config
from ratchet.core.files import read_jsonl, read_log, read_segments
from ratchet.core.records import Trajectory
from ratchet.core.runfolder import RunFolder
from ratchet.inference.adapters import CONFIG, read_adapter
from ratchet.retrieval.loader import open_folder
from ratchet.rounds.ledger import read_ledger
from ratchet.training.rows import read_rows
from tests.campaign.trial import Attack, Trial, refusal
from tests.helpers.adapter_folders import save_adapter
from tests.helpers.handmade_run import make_run
from tests.helpers.tiny_index import tiny_index


def flip(dice: random.Random, data: bytes) -> bytes:
    """One bit differs."""
    at = dice.randrange(len(data))
    return data[:at] + bytes([data[at] ^ (1 << dice.randrange(8))]) + data[at + 1 :]


def garble(dice: random.Random, data: bytes) -> bytes:
    """A bit is flipped, the end is cut off, or bytes in the middle are others."""
    match dice.randrange(4):
        case 0:
            return flip(dice, data)
        case 1:
            return data[: dice.randrange(len(data))]
        case 2:
            at = dice.randrange(len(data))
            return data[:at] + dice.choice([b"\xff", b"\0" * 99, b"\n", b"[" * 5000, b"9" * 5000]) + data[at + 1 :]
        case _:
            return dice.randbytes(len(data))


@contextmanager
def adapters(folder: Path) -> Iterator[Trial]:
    """One bit of an adapter."""
    whole = save_adapter(folder / "whole")
    digest = read_adapter(whole).digest

    def trial(dice: random.Random) -> None:
        here = folder / "flipped"
        shutil.copytree(whole, here, dirs_exist_ok=True)
        file = dice.choice(sorted(path for path in here.iterdir() if path.is_file()))
        file.write_bytes(flip(dice, file.read_bytes()))
        said = refusal(lambda: read_adapter(here))
        assert not said or str(here) in said, said
        assert said or file.name == CONFIG or read_adapter(here).digest != digest, "other weights, same digest"

    yield trial


@contextmanager
def indexes(folder: Path) -> Iterator[Trial]:
    """Any file of an index."""
    tiny_index(folder, [{"id": f"d{i}", "text": f"harbour number {i} of Velm"} for i in range(30)])
    whole = folder / "index"
    open_folder(whole).search("harbour Velm", 5)  # which compiles what searching needs

    def trial(dice: random.Random) -> None:
        here = folder / "damaged"
        shutil.rmtree(here, ignore_errors=True)
        shutil.copytree(whole, here)
        file = dice.choice(sorted(path for path in here.rglob("*") if path.is_file() and path.stat().st_size))
        file.write_bytes(garble(dice, file.read_bytes()))
        said = refusal(lambda: open_folder(here).search("harbour Velm", 5))
        assert not said or str(here) in said, said

    yield trial


def _read_trajectories(path: Path) -> None:
    for _ in read_segments(path.parent, Trajectory):
        pass
    for _ in read_jsonl(path):
        pass


@contextmanager
def runs(folder: Path) -> Iterator[Trial]:
    """Any file of a run folder, read by what reads it."""
    config, one = make_run(folder / "made", train=3, test=3)
    run = RunFolder(config.folder)
    log = one.training / "log.jsonl"
    log.parent.mkdir(exist_ok=True)
    log.write_text('{"step": 0, "dev_loss": 1.5}\n{"step": 1, "loss": 1.25}\n')
    readers: dict[Path, Callable[[], object]] = {
        run.config: lambda: load_config(run.config),
        one.selection: one.read_selection,
        one.rows: lambda: read_rows(one.rows),
        run.ledger: lambda: list(read_ledger(run)),
        log: lambda: read_log(log),
        **{path: partial(_read_trajectories, path) for path in one.trajectories.glob("*.jsonl")},
    }
    files = {path: path.read_bytes() for path in readers if path.exists() and path.stat().st_size}

    def trial(dice: random.Random) -> None:
        path = dice.choice(sorted(files))
        path.write_bytes(garble(dice, files[path]))
        said = refusal(readers[path])
        path.write_bytes(files[path])
        assert not said or path.name in said, said

    yield trial


ATTACKS = (
    Attack("bit flips in adapters", adapters, 20, 5000),
    Attack("damage to an index", indexes, 10, 3000),
    Attack("damage to a run folder", runs, 20, 5000),
)
