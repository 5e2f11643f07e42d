"""Sample the training questions of a round, with programs that come to the gateway by themselves too.

With --part, N commands share the questions, on one machine or on many: each writes a file of its own. Without it,
whatever is missing is sampled, whoever sampled the rest.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ratchet.agents.core.system import load_system
from ratchet.agents.core.task import RunContext
from ratchet.commands.checks import check_system_extras
from ratchet.commands.recording import recorded_stages
from ratchet.core.config import Config
from ratchet.core.errors import UserError
from ratchet.core.installed import need_extra
from ratchet.core.plugins import short_name
from ratchet.core.records import Trajectory, content_key
from ratchet.core.runfolder import RunFolder
from ratchet.questions.leakage import check_leakage
from ratchet.questions.load import load_questions, load_split
from ratchet.questions.manifest import open_run
from ratchet.rewards.check import TRAIN, check_questions
from ratchet.rewards.scoring import Scorer, check_enough
from ratchet.sampling.pool import Enough, Pass, policy_name
from ratchet.sampling.pool import sample as sample_passes
from ratchet.sampling.store import FIRST_SEGMENT, TrajectoryStore
from ratchet.sampling.work import Work

MAX_OPEN = 10_000
"""Trajectories that are open at once for programs of the gateway."""


def seed_of(seed: int, number: int) -> int:
    """Return a round's own seed: a round that samples with the same model as the one before must not repeat it."""
    return seed if number == 1 else int(content_key("round", seed, number)[:8], 16)


@dataclass(frozen=True)
class SampledRound:
    """A round's trajectories, sampled by a command or found on disk."""

    folder: Path
    keys: Sequence[str]
    """The content keys of its trajectories."""
    questions: int
    work: Work
    """The part that this command sampled itself."""


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
    if config.sampling.enough:
        check_enough(config.rewards)
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
        explore=config.sampling.explore,
        curriculum=config.sampling.curriculum,
        first=first,
        teacher=config.sampling.teacher,
    )
    start = None if adapter is None else Path(adapter)
    with recorded_stages(config, "sample", number=number, adapter=start, anyway=anyway), Scorer(config) as scorer:
        work = Work()
        if config.sampling.enough:
            made = replace(made, enough=Enough(config.sampling.enough, scorer.is_good))
        seeded = config.model_copy(update={"seed": seed_of(config.seed, number)})
        try:
            [keys] = sample_passes(seeded, [made], "sampling", work)
        finally:
            work.keep(folder, segment)
    return SampledRound(folder, keys, len(questions[at::parts][:first]), work)


def sample(config: Config, options: argparse.Namespace) -> None:
    """Sample the training questions of a round, and print how the trajectories ended and how many an hour it made."""
    made = sample_round(config, options.round, options.adapter or None, options.part, anyway=options.anyway)
    counts = Counter(t.status for t in TrajectoryStore(made.folder).read(made.keys))
    states = ", ".join(f"{n} {name}" for name, n in counts.most_common())
    print(f"{len(made.keys)} trajectories of {made.questions} questions in {made.folder}: {states}")
    if made.work.trajectories:
        print(f"{short_name(config.system.name)}: {made.work.text}")


def gateway(config: Config, options: argparse.Namespace) -> None:
    """Open all trajectories that are missing until programs finish them (agents/external/app.py), or count what was
    recorded of programs, whoever started them. Ctrl-C ends it, and the same command opens what is still missing."""
    if not options.recorded:
        need_extra("server", "ratchet gateway")
    if config.system.name != "external":
        raise UserError(f"system.name: {config.system.name!r} calls models itself; the gateway needs `external`")
    if not options.recorded:
        sample_round(_all_open(config), options.round, options.adapter or None, anyway=options.anyway)
    store = TrajectoryStore(RunFolder(config.folder).round(options.round).trajectories)
    print(recorded(store.read()))


def _all_open(config: Config) -> Config:
    settings = load_system(config.system).settings.model_dump()
    if started := next((key for key in ("command", "url") if settings[key]), None):
        raise UserError(f"system.settings.{started}: `ratchet sample` starts the programs; remove this setting")
    trajectories = len(load_questions(config.questions.train, config.seed)) * config.sampling.samples
    open_at_once = config.sampling.model_copy(update={"concurrency": min(trajectories, MAX_OPEN)})
    return config.model_copy(update={"sampling": open_at_once})


def recorded(trajectories: Iterable[Trajectory]) -> str:
    """Count what was recorded of programs, and what could only be recorded as text."""
    counts: Counter[str] = Counter()
    states: Counter[str] = Counter()
    for trajectory in trajectories:
        states[trajectory.status] += 1
        calls, conversations = trajectory.model_calls, trajectory.conversations
        counts["calls"] += len(calls)
        counts["malformed"] += sum(call.parse == "malformed" for call in calls)
        counts["conversations"] += len(conversations)
        counts["rewritten"] += sum(conversation.foreign_turns > 0 for conversation in conversations)
        counts["foreign"] += sum(conversation.foreign_turns for conversation in conversations)
        counts["sampled"] += sum(s.end - s.start for c in conversations for s in c.spans if s.sampled)
    ended = ", ".join(f"{number} {state}" for state, number in states.most_common()) or "none"
    return (
        f"{states.total()} trajectories: {ended}\n"
        f"{counts['calls']} model calls, {counts['malformed']} of them malformed or cut off; "
        f"{counts['sampled']} sampled tokens in {counts['conversations']} conversations\n"
        f"{counts['rewritten']} conversations have {counts['foreign']} assistant turns that the model did not say there"
    )
