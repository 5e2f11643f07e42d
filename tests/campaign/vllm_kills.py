"""SIGKILLs of a real vLLM server while a round is sampled with an adapter."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from inference.adapters import adapter_digest
from tests.campaign.trial import Attack, Trial
from tests.conftest import SMOLLM2, missing_for
from tests.helpers.experiment import command


@contextmanager
def serving(folder: Path) -> Iterator[Trial]:
    """The server is killed once or twice, between any two trajectories."""
    from tests.helpers import vllm_sampling as real  # late: it imports PEFT

    config, adapter = real.make_config(folder, SMOLLM2), real.make_adapter(folder / "adapter", SMOLLM2)
    built = command("-m", "index_build", "--config", str(config))
    assert built.returncode == 0, built.stdout
    planned = real.QUESTIONS * real.SAMPLES

    def trial(dice: random.Random) -> None:
        # Not after the last but three, of which the end may come before the kill.
        counts = sorted(dice.sample(range(1, planned - 3), dice.randint(1, 2)))
        kills = [(count, dice.uniform(0.0, 0.5)) for count in counts]
        made = real.sample_and_kill(config, folder / f"{dice.getrandbits(64)}", adapter, kills)
        assert made.status == 0, made.said[-2000:]
        keys = [one.key for one in made.trajectories]
        assert len(keys) == len(set(keys)) == planned, "trajectories are lost or were sampled twice"
        assert made.before <= set(keys)
        assert {one.policy for one in made.trajectories} == {adapter_digest(adapter)}, "not all by the adapter"
        assert "failed" not in {one.status for one in made.trajectories}
        assert not made.servers, "a server was left behind"

    yield trial


ATTACKS = (
    Attack(
        "kills of a real vLLM server",
        "it is started again; every trajectory is sampled once, by the adapter",
        serving,
        0,
        5,
        900.0,
        missing=lambda: missing_for("vllm"),
    ),
)
