"""Sample the training questions of a round.

    ratchet sample --config X [--round 1] [--adapter DIR] [--part K/N]

With --part, N commands share the questions, on one machine or on many: each writes a file of its own. Without it,
whatever is missing is sampled, whoever sampled the rest.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ratchet.agents.core.task import RunContext
from ratchet.commands.arguments import (
    add_anyway_argument,
    add_round_argument,
    config_of,
    config_parser,
    part_of_work,
    recorded_stages,
)
from ratchet.commands.extras import check_system_extras
from ratchet.core.config import Config
from ratchet.core.plugins import short_name
from ratchet.core.records import content_key
from ratchet.questions.leakage import check_leakage
from ratchet.questions.load import load_split
from ratchet.questions.manifest import open_run
from ratchet.rewards.check import TRAIN, check_questions
from ratchet.sampling.passes import Pass
from ratchet.sampling.pool import policy_name, sample
from ratchet.sampling.store import FIRST_SEGMENT, TrajectoryStore
from ratchet.sampling.work import Work


def seed_of(seed: int, number: int) -> int:
    """A round's own seed: a round that samples with the same model as the one before must not repeat it."""
    return seed if number == 1 else int(content_key("round", seed, number)[:8], 16)


@dataclass(frozen=True)
class SampledRound:
    """What a command sampled of a round, or found on disk."""

    folder: Path
    keys: Sequence[str]
    """The content keys of its trajectories."""
    questions: int
    work: Work
    """What this command sampled itself."""


def sample_round(
    config: Config,
    number: int = 1,
    adapter: str | Path | None = None,
    part: tuple[int, int] | None = None,
    first: int | None = None,
    anyway: bool = False,
) -> SampledRound:
    """Sample the training questions of a round. `part`: (K, N), only every N-th question from the K-th on. `first`:
    only so many of them now. `anyway`: also with an index or an adapter that is out of date."""
    check_system_extras(config)
    train = load_split(config.questions.train, config.seed)
    questions = train.questions
    index = config.index if config.questions.leakage.corpus == "off" else None
    leaks = check_leakage(config)
    for warning in [*leaks, *check_questions({TRAIN: train}, config.rewards.weights, (), index)]:
        print(warning, file=sys.stderr)
    folder = open_run(config).round(number).trajectories
    context = RunContext(
        temperature=config.sampling.temperature,
        frozen_temperature=config.sampling.frozen_temperature,
        top_p=config.sampling.top_p,
        adapter=None if adapter is None else str(adapter),
        policy=policy_name(None if adapter is None else Path(adapter)),
        scope=f"train/round-{number}",
    )
    at, parts = part or (0, 1)
    segment = f"part-{at}-of-{parts}.jsonl" if part else FIRST_SEGMENT
    made = Pass(
        config.system,
        context,
        questions,
        config.sampling.samples,
        folder,
        segment=segment,
        part=(at, parts),
    )
    start = None if adapter is None else Path(adapter)
    with recorded_stages(config, "sample", number=number, adapter=start, anyway=anyway):
        work, own = Work(), replace(made, first=first)
        seeded = config.model_copy(update={"seed": seed_of(config.seed, number)})
        try:
            [keys] = sample(seeded, [own], "sampling", work)
        finally:
            work.keep(folder, segment)
    return SampledRound(folder, keys, len(questions[at::parts][:first]), work)


def main(words: Sequence[str] | None = None, prog: str = "ratchet sample") -> None:
    """Sample the training questions of a round, and print how the trajectories ended and how many an hour it made."""
    parser = config_parser(prog, "Sample the training questions of a round.")
    add_round_argument(parser, "the round's number")
    parser.add_argument("--adapter", help="sample from this LoRA folder instead of the base model")
    parser.add_argument(
        "--part", type=part_of_work, metavar="K/N", help="only every N-th question, from the K-th on (K: 0 to N-1)"
    )
    add_anyway_argument(parser)
    given = parser.parse_args(words)
    config = config_of(given)
    made = sample_round(config, given.round, given.adapter or None, given.part, anyway=given.anyway)
    counts = Counter(t.status for t in TrajectoryStore(made.folder).read(made.keys))
    states = ", ".join(f"{n} {name}" for name, n in counts.most_common())
    print(f"{len(made.keys)} trajectories of {made.questions} questions in {made.folder}: {states}")
    if made.work.trajectories:
        print(f"{short_name(config.system.name)}: {made.work.text}")
