"""ratchet plan --config X.yaml [--gpu-gb 80] [--gpus 8]: what a run will take, and beside it what it took.

Two parts: which memory each step needs and where it stops fitting; and the trajectories and judge calls of every stage,
with the arithmetic and every assumption. Where a stage has run, its hours stand beside, and calls and tokens that were
measured replace the assumed ones.
"""

from __future__ import annotations

import math
import shutil
import textwrap
from collections.abc import Callable, Mapping, Sequence

from ratchet.commands.arguments import (
    add_card_arguments,
    card_asked,
    config_of,
    config_parser,
    positive_integer,
    positive_number,
)
from ratchet.core.config import SplitConfig
from ratchet.core.errors import UserError
from ratchet.evaluation.question_sets import split_of
from ratchet.inference.serving.devices import CARDS
from ratchet.inference.serving.specs import ModelUse
from ratchet.rounds.ledger import latest_entries
from ratchet.rounds.plan.memory import GB, Node, TableRow, format_gb, index_row, serving_row, training_row
from ratchet.rounds.plan.stages import NumQuestions, PlannedStage, RunUse, count, measured_rate, plan_stages, run_use
from ratchet.rounds.plan.usage import RoleUse, model_uses
from ratchet.rounds.records import Entry, StageKey
from ratchet.rounds.stage import ExperimentRun

ABOUT = """Print what a run will take: the memory of each step, the trajectories and judge calls of each stage, and the
arithmetic with every assumption. Where a stage has run, its hours stand beside. Nothing is written, and no model is
loaded."""


def main(arguments: Sequence[str], prog: str = "ratchet plan") -> None:
    """Print the plan."""
    parser = config_parser(prog, ABOUT)
    add = parser.add_argument
    add_card_arguments(parser)
    add(
        "--tokens-per-second",
        type=positive_number,
        metavar="N",
        help="prompt and new tokens together that one GPU computes of a model of 7 billion parameters (default: what "
        "the run's sampling took, else what is published for the GPU; the GPU is A100-80 where none is named)",
    )
    add("--memory-gb", type=positive_number, help="main memory of a node in 10^9 bytes")
    add("--questions", type=positive_integer, help="questions to sample (default: those of questions.train)")
    add(
        "--held-out", type=positive_integer, help="questions of dev and of the evaluation (default: those of the files)"
    )
    add("--documents", type=positive_integer, help="documents of the corpus (default: those of the built index)")
    options = parser.parse_args(arguments)
    config = config_of(options)
    if config.members:
        raise UserError(f"{options.config}: the config has `members`; plan each member with its own config")
    card = card_asked(options) or CARDS["A100-80"]
    node = Node(card.gb * GB, options.gpus, options.memory_gb * GB if options.memory_gb else None)
    sets = config.evaluation.question_sets
    evaluated = [split_of(config, name) for name in sets]
    questions = NumQuestions(
        options.questions or _split_size(config.questions.train, config.seed),
        options.held_out or _split_size(config.questions.dev, config.seed),
        options.held_out or sum(_split_size(split, config.seed) for split in evaluated),
    )
    experiment = ExperimentRun(config, ())
    use, uses = run_use(config), model_uses(config)
    rows = [
        index_row(config.index, node, options.documents),
        *(
            serving_row(name, model, config.serve_config(name), node, uses.get(name, ModelUse()))
            for name, model in config.models.items()
        ),
        training_row(config.training, config.models[config.training.model], node),
    ]
    stages = plan_stages(experiment, use, questions)
    print(render(rows, node, config.run))
    entries = latest_entries(experiment.run)
    measured = measured_rate(entries.values(), use)
    rate = options.tokens_per_second or measured or card.tokens_per_second
    source = "given" if options.tokens_per_second else "measured by the run's sampling" if measured else "published"
    lines = [*_stage_lines(stages, entries, rate), "", _rate_line(rate, source), *_use_lines(config.system.name, use)]
    print("\n" + _wrapped(lines))


def _rate_line(rate: float | None, source: str) -> str:
    if rate is None:
        return "GPU hours: nothing is published for this GPU here; give --tokens-per-second"
    return (
        f"GPU hours: {rate:,.0f} tokens a second of a model of 7 billion parameters, prompt and new ones together "
        f"({source}); others in proportion to their parameters; a trained token is two forward passes and a backward "
        "pass of one; searches, the index and the start of servers are not counted"
    )


def _stage_lines(stages: Sequence[PlannedStage], entries: Mapping[StageKey, Entry], rate: float | None) -> list[str]:
    """The table of the stages, and the arithmetic below it."""
    several = len({stage.key.round for stage in stages}) > 1
    rows = [("stage", "trajectories", "judge calls", "GPU hours", "hours it took")]
    arithmetic: list[str] = []
    for stage in stages:
        name = f"round {stage.key.round}: {stage.key.title}" if several else stage.key.title
        entry = entries.get(stage.key)
        counts = _cell(stage.trajectories), _cell(stage.judge_calls), _planned_hours(stage.work, rate)
        rows.append((name, *counts, _hours(entry.seconds) if entry else ""))
        texts = [*([stage.counted] if stage.counted else []), *([_measured_line(entry)] if entry else [])]
        arithmetic += ["", name, *(f"  {text}" for text in texts)] if texts else []
    calls = _cell(sum(stage.judge_calls for stage in stages))
    seconds = sum(entries[stage.key].seconds for stage in stages if stage.key in entries)
    planned = _planned_hours(sum(stage.work for stage in stages), rate)
    rows.append(("together", "", calls, planned, _hours(seconds) if seconds else ""))
    return [*_aligned(rows, str.rjust), *arithmetic]


def _aligned(rows: Sequence[Sequence[str]], pad: Callable[[str, int], str] = str.ljust) -> list[str]:
    """The lines of a table, whose cells `pad` fills up; those of the first column stand on the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ((row[0].ljust(widths[0]), *map(pad, row[1:], widths[1:])) for row in rows)
    return ["  ".join(line).rstrip() for line in lines]


def _measured_line(entry: Entry) -> str:
    """What the ledger says of a stage that has run."""
    trajectories = entry.facts.get("trajectories")
    done = f", {trajectories:,} trajectories" if trajectories else ""
    return (
        f"took {_hours(entry.seconds)} hours on {entry.machine}, servers' start included{done}; a stage that was "
        "resumed counts from its last start"
    )


def _cell(number: float) -> str:
    return count(number) if number else ""


def _planned_hours(work: float, rate: float | None) -> str:
    if not work or not rate:
        return ""
    return "?" if math.isnan(work) else _hours(work / rate)


def _hours(seconds: float) -> str:
    hours = seconds / 3600
    return f"{hours:,.0f}" if hours >= 10 else f"{hours:,.2f}" if hours >= 0.01 else f"{hours:.4f}"


def _use_lines(system: str, use: RunUse) -> list[str]:
    lines = [f"calls of a trajectory ({system}): {use.system.calls:,.1f}, {use.system.source}"]
    lines += [f"  {_role_line(role)}" for role in use.system.roles]
    lines += [f"{name}: {baseline.calls:,.1f} calls, {baseline.source}" for name, baseline in use.baselines.items()]
    for name, judged in (("rewards", use.rewards), ("evaluation", use.evaluation)):
        if judged.total:
            lines.append(f"judge calls of a trajectory ({name}): {judged.total:,.1f}, {judged.source}")
    return lines


def _role_line(role: RoleUse) -> str:
    thoughts = f" ({role.thought_tokens:,.0f} of thoughts)" if role.thought_tokens else ""
    return (
        f"{role.role} ({role.model}): {role.calls:,.1f} calls, {role.prompt_tokens:,.0f} prompt tokens "
        f"({role.cached_tokens:,.0f} cached), {role.new_tokens:,.0f} new{thoughts}; conversations of "
        f"{role.conversation_tokens:,.0f}"
    )


def render(rows: Sequence[TableRow], node: Node, run: str) -> str:
    """The table of what fits, and the arithmetic below it."""
    memory = f", {format_gb(node.memory)} of main memory" if node.memory else ""
    out = [
        f"{run} on nodes of {node.gpus} GPU{'s' * (node.gpus > 1)} of {format_gb(node.gpu)}{memory}; GB are 10^9 bytes",
        "",
        *_aligned([(line.step, line.needs, line.limit) for line in rows]),
    ]
    for line in rows:
        out += [] if not line.arithmetic else ["", line.step, *(f"  {text}" for text in line.arithmetic)]
    return _wrapped(out)


def _wrapped(lines: Sequence[str]) -> str:
    """In a terminal lines are broken between words; in a file or pipe they are as long as they are."""
    columns = shutil.get_terminal_size((10_000, 0)).columns
    return "\n".join(textwrap.fill(line, columns, subsequent_indent="    ") for line in lines)


def _split_size(split: SplitConfig, seed: int) -> float:
    """Questions of a split, or NaN where its file is not here."""
    from ratchet.questions.load import load_questions

    if split.on_hub:  # they would be downloaded
        return math.nan
    try:
        return len(load_questions(split, seed))
    except UserError:
        return math.nan
