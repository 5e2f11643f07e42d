"""ratchet plan --config X.yaml [--gpu-gb 80] [--gpus 8]: what a run will take, and beside it what it took.

Two parts: which memory each step needs and where it stops fitting; and the trajectories and judge calls of every stage,
with the arithmetic and every assumption. Where a stage has run, its hours stand beside, and calls and tokens that were
measured replace the assumed ones.
"""

from __future__ import annotations

import math
import shutil
import textwrap
from collections.abc import Mapping, Sequence

from commands.arguments import config_of, config_parser, positive_integer, positive_number
from evaluation.question_sets import split_of
from inference.serving.specs import ModelUse
from ratchet.config import SplitConfig
from ratchet.errors import UserError
from rounds.ledger import latest_entries
from rounds.plan.memory import GB, Node, TableRow, format_gb, index_row, serving_row, training_row
from rounds.plan.stages import NumQuestions, PlannedStage, RunUse, count, plan_stages, run_use
from rounds.plan.usage import RoleUse, model_uses
from rounds.records import Entry, StageKey
from rounds.stage import ExperimentRun

ABOUT = """Print what a run will take: the memory of each step, the trajectories and judge calls of each stage, and the
arithmetic with every assumption. Where a stage has run, its hours stand beside. Nothing is written, and no model is
loaded."""


def main(arguments: Sequence[str], prog: str = "python -m rounds plan") -> None:
    """Print the plan."""
    parser = config_parser(prog, ABOUT)
    add = parser.add_argument
    add("--gpu-gb", type=positive_number, default=80.0, help="memory of one GPU in 10^9 bytes (default: 80)")
    add("--gpus", type=positive_integer, default=1, help="GPUs of a node (default: 1)")
    add("--memory-gb", type=positive_number, help="main memory of a node in 10^9 bytes")
    add("--questions", type=positive_integer, help="questions to sample (default: those of questions.train)")
    add(
        "--held-out", type=positive_integer, help="questions of dev and of the evaluation (default: those of the files)"
    )
    add("--documents", type=positive_integer, help="documents of the corpus (default: those of the built index)")
    options = parser.parse_args(arguments)
    config = config_of(options)
    if config.members:
        raise UserError(f"{options.config}: its tasks are its members'; plan each of them by its own config")
    node = Node(options.gpu_gb * GB, options.gpus, options.memory_gb * GB if options.memory_gb else None)
    sets = config.evaluation.question_sets
    evaluated = [split_of(config.questions, config.evaluation.benchmarks, name) for name in sets]
    questions = NumQuestions(
        options.questions or _split_size(config.questions.train, config.seed),
        options.held_out or _split_size(config.questions.dev, config.seed),
        options.held_out or sum(_split_size(split, config.seed) for split in evaluated),
    )
    experiment = ExperimentRun(config, ())
    use, uses = run_use(experiment), model_uses(experiment)
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
    lines = [*_stage_lines(stages, latest_entries(experiment.run)), "", *_use_lines(config.system.name, use)]
    print("\n" + _wrapped(lines))


def _stage_lines(stages: Sequence[PlannedStage], entries: Mapping[StageKey, Entry]) -> list[str]:
    """The table of the stages, and the arithmetic below it."""
    several = len({stage.key.round for stage in stages}) > 1
    names = [f"round {stage.key.round}: {stage.key.title}" if several else stage.key.title for stage in stages]
    width = max(map(len, [*names, "together"]))
    table = [(f"{'stage':<{width}}", "trajectories", "judge calls", "hours it took")]
    for name, stage in zip(names, stages, strict=True):
        entry = entries.get(stage.key)
        hours = _hours(entry.seconds) if entry else ""
        table.append((f"{name:<{width}}", _cell(stage.trajectories), _cell(stage.judge_calls), hours))
    calls = sum(stage.judge_calls for stage in stages)
    seconds = sum(entries[stage.key].seconds for stage in stages if stage.key in entries)
    table.append((f"{'together':<{width}}", "", _cell(calls), _hours(seconds) if seconds else ""))
    lines = [f"{name}  {cells[0]:>12}  {cells[1]:>11}  {cells[2]:>13}".rstrip() for name, *cells in table]
    for name, stage in zip(names, stages, strict=True):
        arithmetic = [stage.counted] if stage.counted else []
        if entry := entries.get(stage.key):
            arithmetic.append(_measured_line(entry))
        lines += ["", name, *(f"  {text}" for text in arithmetic)] if arithmetic else []
    return lines


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


def _hours(seconds: float) -> str:
    hours = seconds / 3600
    return f"{hours:,.2f}" if hours >= 0.01 else f"{hours:.4f}"


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
    widths = [max(len(getattr(line, key)) for line in rows) for key in ("step", "needs")]
    memory = f", {format_gb(node.memory)} of main memory" if node.memory else ""
    out = [
        f"{run} on nodes of {node.gpus} GPU{'s' * (node.gpus > 1)} of {format_gb(node.gpu)}{memory}; GB are 10^9 bytes",
        "",
    ]
    out += [f"{line.step:<{widths[0]}}  {line.needs:<{widths[1]}}  {line.limit}" for line in rows]
    for line in rows:
        out += [] if not line.arithmetic else ["", line.step, *(f"  {text}" for text in line.arithmetic)]
    return _wrapped(out)


def _wrapped(lines: Sequence[str]) -> str:
    """In a terminal lines are broken between words; in a file or pipe they are as long as they are."""
    columns = shutil.get_terminal_size((10_000, 0)).columns
    return "\n".join(textwrap.fill(line, columns, subsequent_indent="    ") for line in lines)


def _split_size(split: SplitConfig, seed: int) -> float:
    """Questions of a split, or NaN where its file is not here."""
    from questions.load import load_questions

    if split.on_hub:  # they would be downloaded
        return math.nan
    try:
        return len(load_questions(split, seed))
    except UserError:
        return math.nan
