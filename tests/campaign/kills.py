"""SIGKILLs while a store is filled and while an index is built: nothing lost, nothing twice, nothing different."""

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ratchet.core.files import count_lines
from ratchet.sampling.store import TrajectoryStore
from tests.campaign.sampling_work import WORK, outcomes
from tests.campaign.trial import Attack, Trial
from tests.helpers.building import SMALL, corpus, tree
from tests.helpers.tiny_index import index_config
from tests.helpers.zygote import shared_zygote

KILLS = 3
"""In one trial, before what was killed may end."""
SAMPLING = {"work": WORK, "questions": 6, "samples": 2}


@contextmanager
def sampling(folder: Path) -> Iterator[Trial]:
    """Kills at file operations, and between the writes of trajectories."""
    zygote = shared_zygote("tests.campaign.sampling_work")
    began = time.monotonic()
    _, steps = zygote.run(SAMPLING | {"folder": str(folder / "calm")}, "never")
    seconds, wanted = time.monotonic() - began, outcomes(folder / "calm")

    def trial(dice: random.Random) -> None:
        here = folder / f"{dice.getrandbits(64)}"
        request = SAMPLING | {"folder": str(here)}
        for _ in range(KILLS):
            zygote.run(request, moment(dice, steps, seconds))
        zygote.run(request, "never")
        assert outcomes(here) == wanted, "trajectories are lost or different"
        assert count_lines(TrajectoryStore(here).segments) == len(wanted), "trajectories were sampled twice"

    yield trial


def moment(dice: random.Random, steps: int, seconds: float) -> str | float:
    """A file operation, or any moment."""
    return f"step{dice.randint(1, steps)}" if dice.random() < 0.5 else dice.uniform(0, seconds)


@contextmanager
def building(folder: Path, workers: int = 1) -> Iterator[Trial]:
    """Kills at file operations, and at random moments."""
    zygote = shared_zygote()
    config = index_config(folder, corpus(40), shard_documents=8, **SMALL)
    began = time.monotonic()
    _, steps = zygote.build(config, "never")
    seconds, wanted = time.monotonic() - began, tree(Path(config.path))

    def trial(dice: random.Random) -> None:
        here = config.model_copy(update={"path": str(folder / f"{dice.getrandbits(64)}")})
        for _ in range(KILLS):
            zygote.build(here, moment(dice, steps, seconds), workers)
        zygote.build(here, "never", workers)
        assert tree(Path(here.path)) == wanted, "the index is not the one of a calm build"

    yield trial


@contextmanager
def building_with_workers(folder: Path) -> Iterator[Trial]:
    """The same with two worker processes."""
    with building(folder, workers=2) as trial:
        yield trial


ATTACKS = (
    Attack("kills while sampling", sampling, 2, 200),
    Attack("kills while an index is built", building, 2, 200),
    Attack("kills while two workers build an index", building_with_workers, 0, 20, 120.0, mark="slow"),
)
