"""ratchet gateway: sample a round with programs that come to the gateway by themselves.

    ratchet gateway --config X [--round 1] [--adapter DIR]
    ratchet gateway --config X --recorded

All trajectories that are missing are open at once, until a program finishes them (agents/external/app.py); Ctrl-C ends
the gateway, and the same command opens what is still missing. `--recorded` counts what was recorded, whoever started
the programs, and samples nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from ratchet.agents.core.system import load_system
from ratchet.commands.arguments import add_anyway_argument, add_round_argument, config_of, config_parser
from ratchet.commands.sample import sample_round
from ratchet.core.config import Config
from ratchet.core.errors import UserError
from ratchet.core.extras import need_extra
from ratchet.core.records import Trajectory
from ratchet.core.runfolder import RunFolder
from ratchet.questions.load import load_questions
from ratchet.sampling.store import TrajectoryStore

MAX_OPEN = 10_000
"""Trajectories that are open at once."""


def main(words: Sequence[str] | None = None, prog: str = "ratchet gateway") -> None:
    """Open the gateway, or count what it recorded."""
    parser = config_parser(prog, "Sample a round with programs that come to the gateway by themselves.")
    add_round_argument(parser, "the round's number")
    parser.add_argument("--adapter", help="sample from this LoRA folder instead of the base model")
    parser.add_argument("--recorded", action="store_true", help="count what was recorded, and sample nothing")
    add_anyway_argument(parser)
    arguments = parser.parse_args(words)
    if not arguments.recorded:
        need_extra("server", "ratchet gateway")
    config = config_of(arguments)
    if config.system.name != "external":
        raise UserError(f"system.name: {config.system.name!r} calls models itself; the gateway needs `external`")
    if not arguments.recorded:
        sample_round(_all_open(config), arguments.round, arguments.adapter or None, anyway=arguments.anyway)
    store = TrajectoryStore(RunFolder(config.folder).round(arguments.round).trajectories)
    print(recorded(store.read()))


def _all_open(config: Config) -> Config:
    settings = load_system(config.system).settings.model_dump()
    if started := next((key for key in ("command", "url") if settings[key]), None):
        raise UserError(f"system.settings.{started}: `ratchet sample` starts the programs; remove this setting")
    trajectories = len(load_questions(config.questions.train, config.seed)) * config.sampling.samples
    open_at_once = config.sampling.model_copy(update={"concurrency": min(trajectories, MAX_OPEN)})
    return config.model_copy(update={"sampling": open_at_once})


def recorded(trajectories: Iterable[Trajectory]) -> str:
    """What was recorded of programs, and what could only be recorded as text, a line each."""
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
