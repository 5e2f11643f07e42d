"""Sample the training questions of a round.

    python -m sampling --config X [--round 1] [--adapter DIR] [--part K/N]

With --part, N commands share the questions, on one machine or on many: each writes a file of its own. Without it,
whatever is missing is sampled, whoever sampled the rest.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from agents.core.system import RunContext
from questions.leakage import check_leakage
from questions.load import load_questions
from ratchet.command import add_round_argument, config_of, config_parser, part_of_work, recorded_stages, run_command
from ratchet.config import Config
from ratchet.records import content_key
from ratchet.runfolder import open_run
from rewards.check import check_questions
from sampling.pool import Pass, policy_name, sample
from sampling.store import FIRST_SEGMENT, TrajectoryStore


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


def sample_round(
    config: Config,
    number: int = 1,
    adapter: str | Path | None = None,
    part: tuple[int, int] | None = None,
    first: int | None = None,
) -> SampledRound:
    """Sample the training questions of a round. `part`: (K, N), only every N-th question from the K-th on. `first`:
    only so many of them now."""
    for warning in [*check_leakage(config), *check_questions(config, ["questions.train"])]:
        print(warning, file=sys.stderr)
    questions = load_questions(config.questions.train, config.seed)
    folder = open_run(config).round(number).trajectories
    context = RunContext(
        temperature=config.sampling.temperature,
        frozen_temperature=config.sampling.frozen_temperature,
        top_p=config.sampling.top_p,
        adapter=None if adapter is None else str(adapter),
        policy=policy_name(None if adapter is None else Path(adapter)),
        scope=f"train/round-{number}",
    )
    seeded = config.model_copy(update={"seed": seed_of(config.seed, number)})
    at, parts = part or (0, 1)
    segment = f"part-{at}-of-{parts}.jsonl" if part else FIRST_SEGMENT
    made = Pass(config.system, context, questions, config.sampling.samples, folder, segment=segment, part=(at, parts))
    with recorded_stages(config, "sample", number=number, adapter=None if adapter is None else Path(adapter)):
        [keys] = sample(seeded, [replace(made, first=first)], "sampling")
    return SampledRound(folder, keys, len(questions[at::parts][:first]))


def main(words: Sequence[str] | None = None, prog: str = "python -m sampling") -> None:
    """Sample the training questions of a round, and print how the trajectories ended."""
    parser = config_parser(prog, "Sample the training questions of a round.")
    add_round_argument(parser, "the round's number")
    parser.add_argument("--adapter", help="sample from this LoRA folder instead of the base model")
    parser.add_argument(
        "--part", type=part_of_work, metavar="K/N", help="only every N-th question, from the K-th on (K: 0 to N-1)"
    )
    arguments = parser.parse_args(words)
    made = sample_round(config_of(arguments), arguments.round, arguments.adapter or None, arguments.part)
    counts = Counter(t.status for t in TrajectoryStore(made.folder).read(made.keys))
    states = ", ".join(f"{n} {name}" for name, n in counts.most_common())
    print(f"{len(made.keys)} trajectories of {made.questions} questions in {made.folder}: {states}")


if __name__ == "__main__":
    run_command(main)
