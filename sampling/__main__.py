"""Sample the training questions of a round.

    python -m sampling --config X [--round 1] [--adapter DIR] [--part K/N]

With --part, N commands share the questions, on one machine or on many: each writes a file of its own. Without it,
whatever is missing is sampled, whoever sampled the rest.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from agents.core.episode import Setting
from questions.guard import guard
from questions.load import load_questions
from ratchet.command import config_of, config_parser, part_of_work, run_command
from ratchet.records import content_key
from ratchet.runfolder import open_run
from sampling.pool import Pass, policy_name, sample
from sampling.store import FIRST_SEGMENT, TrajectoryStore


def seed_of(seed: int, number: int) -> int:
    """A round's own seed: a round that samples with the same model as the one before must not repeat it."""
    return seed if number == 1 else int(content_key("round", seed, number)[:8], 16)


def main(words: Sequence[str] | None = None, prog: str = "python -m sampling") -> None:
    parser = config_parser(prog, "Sample the training questions of a round.")
    parser.add_argument("--round", type=int, default=1, help="the round's number (default 1)")
    parser.add_argument("--adapter", help="sample from this LoRA folder instead of the base model")
    parser.add_argument(
        "--part", type=part_of_work, metavar="K/N", help="only every N-th question, from the K-th on (K: 0 to N-1)"
    )
    arguments = parser.parse_args(words)
    part, parts = arguments.part or (0, 1)
    config = config_of(arguments)
    for warning in guard(config):
        print(warning, file=sys.stderr)
    questions = load_questions(config.questions.train, config.seed)
    folder = open_run(config).round(arguments.round).trajectories
    setting = Setting(
        temperature=config.sampling.temperature,
        frozen_temperature=config.sampling.frozen_temperature,
        top_p=config.sampling.top_p,
        adapter=arguments.adapter,
        policy=policy_name(Path(arguments.adapter) if arguments.adapter else None),
        scope=f"train/round-{arguments.round}",
    )
    config = config.model_copy(update={"seed": seed_of(config.seed, arguments.round)})
    segment = f"part-{part}-of-{parts}.jsonl" if arguments.part else FIRST_SEGMENT
    made = Pass(config.system, setting, questions, config.sampling.samples, folder, segment=segment, part=(part, parts))
    [keys] = sample(config, [made], "sampling")
    counts = Counter(t.status for t in TrajectoryStore(folder).read(keys))
    states = ", ".join(f"{n} {name}" for name, n in counts.most_common())
    print(f"{len(keys)} trajectories of {len(questions[part::parts])} questions in {folder}: {states}")


if __name__ == "__main__":
    run_command(main)
