"""python -m sampling --config X.yaml: sample the training questions of a round."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

from agents.episode import Setting
from questions.guard import guard
from questions.load import load_questions
from ratchet.command import config_of, config_parser, run_command
from ratchet.records import content_key
from ratchet.runfolder import open_run
from sampling.pool import Pass, policy_name, sample, stored


def seed_of(seed: int, number: int) -> int:
    """A round's own seed: a round that samples with the same model as the one before must not repeat it."""
    return seed if number == 1 else int(content_key("round", seed, number)[:8], 16)


def main() -> None:
    parser = config_parser("python -m sampling", "sample the training questions of a round")
    parser.add_argument("--round", type=int, default=1, help="the round's number (default 1)")
    parser.add_argument("--adapter", help="sample from this LoRA folder instead of the base model")
    arguments = parser.parse_args()
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
    )
    config = config.model_copy(update={"seed": seed_of(config.seed, arguments.round)})
    made = Pass(config.system, setting, questions, config.sampling.samples, folder)
    [keys] = sample(config, [made], "sampling")
    counts = Counter(t.status for t in stored(folder, keys))
    states = ", ".join(f"{n} {name}" for name, n in counts.most_common())
    print(f"{len(keys)} trajectories of {len(questions)} questions in {folder}: {states}")


if __name__ == "__main__":
    run_command(main)
