"""SIGKILLs while a round is exported or reported: what has its name is whole; the next run ends as a calm one does."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ratchet.core.config import load_config
from ratchet.core.runfolder import RunFolder
from tests.campaign import full_disk
from tests.campaign.kills import KILLS, moment
from tests.campaign.trial import Attack, Trial
from tests.helpers.zygote import shared_zygote

MODULE = "tests.campaign.export_work"
WORK = f"{MODULE}:run_export"
FORMS = (
    ("--merged",),
    ("--dataset", "all"),
    ("--adapter-only", "--merged", "--dataset"),
)
AT_ONCE = ("adapter", "merged", "dataset")
"""Folders that appear when they are complete."""
CARD = "README.md"


def files(folder: Path) -> dict[str, bytes]:
    """Every file of an export, by its path."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@contextmanager
def exporting(folder: Path) -> Iterator[Trial]:
    """Kills at file operations, and at random moments, of an export in one form or in all."""
    config = _trained(folder)
    zygote = shared_zygote(MODULE)

    def request(out: Path, forms: tuple[str, ...]) -> dict[str, Any]:
        return {"work": WORK, "folder": str(out), "words": ["--config", str(config), *forms]}

    calm: dict[tuple[str, ...], tuple[int, float, dict[str, bytes]]] = {}

    def trial(dice: random.Random) -> None:
        forms = dice.choice(FORMS)
        if forms not in calm:
            out, began = folder / f"calm{len(calm)}", time.monotonic()
            _, steps = zygote.run(request(out, forms), "never")
            calm[forms] = steps, time.monotonic() - began, files(out)
        steps, seconds, wanted = calm[forms]
        here = folder / f"{dice.getrandbits(64)}"
        for _ in range(KILLS):
            zygote.run(request(here, forms), moment(dice, steps, seconds))
            _check_whole(here, wanted)
        zygote.run(request(here, forms), "never")
        found = files(here)
        assert found.keys() == wanted.keys(), f"files differ: {sorted(found.keys() ^ wanted.keys())}"
        assert found == wanted, f"other content: {[name for name in wanted if found[name] != wanted[name]]}"

    yield trial


def _check_whole(out: Path, wanted: Mapping[str, bytes]) -> None:
    """What has a name of its own is there as a calm run leaves it."""
    hidden = {path for path in out.rglob("*") if any(part.startswith(".") for part in path.relative_to(out).parts)}
    for path in set(out.rglob("*")) - hidden:
        if path.is_file():
            name = str(path.relative_to(out))
            assert path.read_bytes() == wanted[name], f"{name} is not whole"
    for name in AT_ONCE:
        if (out / name).is_dir():
            own = {one for one in wanted if one.startswith(f"{name}/") and Path(one).name != CARD}
            missing = [one for one in own if not (out / one).exists()]
            assert not missing, f"{name} is there without {missing}"


@contextmanager
def reporting(folder: Path) -> Iterator[Trial]:
    """Kills at file operations, and at random moments, of a report of a run as training left it."""
    config, zygote = _trained(folder), shared_zygote(MODULE)
    run, trained = load_config(config).folder, folder / "as_trained"
    shutil.copytree(run, trained)
    request = {"work": f"{MODULE}:run_report", "folder": str(run), "words": ["--config", str(config)]}
    began = time.monotonic()
    _, steps = zygote.run(request, "never")
    seconds, names, page = time.monotonic() - began, files(run).keys(), RunFolder(run).report
    wanted = page.read_bytes()

    def trial(dice: random.Random) -> None:
        shutil.rmtree(run)
        shutil.copytree(trained, run)
        for _ in range(KILLS):
            zygote.run(request, moment(dice, steps, seconds))
            assert not page.exists() or page.read_bytes() == wanted, "the page is not whole"
        zygote.run(request, "never")
        assert page.read_bytes() == wanted, "the page differs"
        assert files(run).keys() == names, f"files differ: {sorted(files(run).keys() ^ names)}"

    yield trial


def _trained(folder: Path) -> Path:
    from tests.helpers.trained import make_trained  # late: it imports what trains

    return make_trained(folder / "trained")


def _request(folder: Path) -> Mapping[str, Any]:
    config = _trained(folder)
    return {"inner": WORK, "words": ["--config", str(config), *FORMS[-1]]}


EXPORTED = full_disk.Work((MODULE,), _request, files)
ATTACKS = (
    full_disk.attack("exports", EXPORTED, 0, 50, 120.0),
    Attack("kills of reports", reporting, 0, 100),
    Attack("kills of exports", exporting, 0, 100, 120.0, mark="slow"),
)
