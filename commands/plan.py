"""ratchet plan --config X.yaml [--gpu h100] [--gpus 8]: what a run will take, and beside it what it took.

Three parts: which memory each step needs and where it stops fitting; the hours of every stage; and the arithmetic of
both with every assumption. Where a stage has run, its hours stand beside the plan's, and calls and tokens that were
measured replace the assumed ones.
"""

from __future__ import annotations

import math
import shutil
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from commands.arguments import config_of, config_parser, positive_integer, positive_number
from evaluation.question_sets import split_of
from inference.footprint import footprint
from inference.serving.memory import SPARE_FRACTION, estimate_memory
from inference.serving.specs import ModelUse, ServerSpec
from ratchet.config import Config, SplitConfig
from ratchet.errors import UserError
from ratchet.files import read_log
from ratchet.runfolder import RunFolder
from rounds.ledger import latest_entries
from rounds.plan.hours import GPUS, GpuModel, ServingSpeed, serving_speed, training_speed
from rounds.plan.memory import GB, Node, TableRow, format_gb, index_row, serving_row, training_row
from rounds.plan.stages import NumQuestions, PlannedStage, RunUse, count, plan_stages, run_use
from rounds.plan.usage import RoleUse, model_uses
from rounds.records import Entry
from rounds.stage import ExperimentRun

ABOUT = """Print what a run will take: the memory of each step, the hours of each stage, and the arithmetic with every
assumption. Where a stage has run, what it took stands beside. Nothing is written, and no model is loaded."""


def main(arguments: Sequence[str], prog: str = "python -m rounds plan") -> None:
    """Print the plan."""
    parser = config_parser(prog, ABOUT)
    add = parser.add_argument
    add("--gpu", choices=sorted(GPUS), default="a100", help="the kind of GPU (default: a100, with 80 GB)")
    add("--gpu-gb", type=positive_number, help="memory of one GPU in 10^9 bytes (default: that of its kind)")
    add("--gpus", type=positive_integer, default=1, help="GPUs of a node (default: 1)")
    add("--memory-gb", type=positive_number, help="main memory of a node in 10^9 bytes")
    add("--questions", type=positive_integer, help="questions to sample (default: those of questions.train)")
    add(
        "--held-out", type=positive_integer, help="questions of dev and of the evaluation (default: those of the files)"
    )
    add("--documents", type=positive_integer, help="documents of the corpus (default: those of the built index)")
    add("--tokens-per-second", type=positive_number, help="new tokens a second of one server, prefill included")
    options = parser.parse_args(arguments)
    config = config_of(options)
    if config.members:
        raise UserError(f"{options.config}: its tasks are its members'; plan each of them by its own config")
    gpu = GPUS[options.gpu]
    node = Node(
        options.gpu_gb * GB if options.gpu_gb else gpu.memory,
        options.gpus,
        options.memory_gb * GB if options.memory_gb else None,
    )
    held_out = options.held_out
    questions = NumQuestions(
        options.questions or _split_size(config, config.questions.train),
        held_out or _split_size(config, config.questions.dev),
        held_out
        or sum(
            _split_size(config, split_of(config.questions, config.evaluation.benchmarks, name))
            for name in config.evaluation.question_sets
        ),
    )
    experiment = ExperimentRun(config, ())
    use, uses = run_use(config), model_uses(config)
    rows = [
        index_row(config, node, options.documents),
        *(serving_row(config, name, node, uses.get(name, ModelUse())) for name in config.models),
        training_row(config, node),
    ]
    speeds = {
        name: found
        for name in config.models
        if (found := _speed(config, name, node, gpu, uses, options.tokens_per_second)) is not None
    }
    stages = plan_stages(experiment, use, questions)
    hours = [
        _stage_hours(config, stage, speeds, gpu, node, latest_entries(experiment.run).get(stage.key))
        for stage in stages
    ]
    print(render(rows, node, config.run))
    print("\n" + _wrapped([*_hours_lines(hours), "", *_use_lines(config, use), "", *_speed_lines(speeds)]))


def _speed(
    config: Config, name: str, node: Node, gpu: GpuModel, uses: Mapping[str, ModelUse], given: float | None
) -> ServingSpeed | None:
    """The speed of one server of a model; None where it runs elsewhere or on the CPU, or fits no GPU."""
    model = config.models[name]
    if model.engine not in ("vllm", "local") or model.device == "cpu":
        return None
    use, serve = uses.get(name, ModelUse()), config.serve_config(name)
    size = footprint(model.path, model.revision, model.dtype)
    spec = ServerSpec((name,), model, serve, model.concurrency, use.calls, use.conversation_tokens)
    estimate = estimate_memory(spec, 1, size)
    kv = node.gpu * (1 - SPARE_FRACTION) - (estimate.total - estimate.kv)
    if kv <= 0:
        return None
    if given is not None:
        return ServingSpeed(given, math.inf, f"{given:,.0f} new tokens/s as given, prefill included")
    return serving_speed(size, estimate, kv, gpu)


@dataclass(frozen=True)
class StageHours:
    """The hours of a stage, planned and measured."""

    stage: PlannedStage
    planned: float | None
    """None where it is not planned in hours; NaN where something is not known."""
    measured: float | None
    arithmetic: tuple[str, ...]


def _stage_hours(
    config: Config,
    stage: PlannedStage,
    speeds: Mapping[str, ServingSpeed],
    gpu: GpuModel,
    node: Node,
    entry: Entry | None,
) -> StageHours:
    measured = entry.seconds / 3600 if entry is not None else None
    lines = [stage.counted] if stage.counted else []
    planned: float | None = None
    gpus = "1 GPU" if node.gpus == 1 else f"{node.gpus} GPUs"
    if stage.trained_tokens:
        speed, source = _training_speed(config, gpu)
        planned = stage.trained_tokens / (speed * node.gpus) / 3600
        if math.isnan(speed):
            lines.append("hours: not known for a CPU")
        else:
            lines.append(f"/ {speed:,.0f} tokens/s ({source}) / {gpus} = {planned:,.3g} hours")
    elif stage.work and all(one.model in speeds for one in stage.work):
        # Servers that share a GPU take turns; with more GPUs every model has replicas (serve.replicas).
        planned = sum(one.seconds(speeds[one.model]) for one in stage.work) / node.gpus / 3600
        models = ", ".join(sorted({one.model for one in stage.work}))
        lines.append(f"/ the speed of {models} / {gpus} = {planned:,.3g} hours")
    elif stage.work:
        planned = math.nan
        lines.append("hours: not known, since a model runs elsewhere or on the CPU, or does not fit the GPU")
    if entry is not None and stage.work:
        lines.append(_measured_line(stage, entry))
    return StageHours(stage, planned, measured, tuple(lines))


def _measured_line(stage: PlannedStage, entry: Entry) -> str:
    """What the ledger says of a stage that has run."""
    trajectories = entry.facts.get("trajectories")
    text = f"measured: {entry.seconds / 3600:,.3g} hours on {entry.machine}, servers' start included"
    if trajectories and stage.trajectories == stage.trajectories:
        new = sum(one.new_tokens for one in stage.work) * trajectories / stage.trajectories
        text += f", {trajectories:,} trajectories, {new / max(entry.seconds, 1e-9):,.0f} new tokens/s"
    elif stage.judge_calls == stage.judge_calls and stage.judge_calls:
        text += f", {stage.judge_calls / max(entry.seconds, 1e-9):,.1f} judge calls/s"
    return f"{text}; a stage that was resumed counts from its last start"


def _training_speed(config: Config, gpu: GpuModel) -> tuple[float, str]:
    """Tokens a second of one GPU, and where the number is from; NaN for a CPU that has not trained yet."""
    for folder in reversed(RunFolder(config.folder).rounds()):
        lines = read_log(folder.training / "log.jsonl")
        if speeds := [speed for line in lines if (speed := line.get("tokens_per_second"))]:
            return median(speeds), f"measured in round {folder.number}"
    model = config.models[config.training.model]
    if model.device == "cpu":
        return math.nan, ""
    size = footprint(model.path, model.revision, model.dtype)
    speed = training_speed(size, bool(config.training.gradient_checkpointing), gpu)
    return speed, f"assumed: {gpu.name} at a third of its data sheet; `python benchmarks/training.py` measures it"


def _hours_lines(hours: Sequence[StageHours]) -> list[str]:
    several = len({one.stage.key.round for one in hours}) > 1
    names = [f"round {one.stage.key.round}: {one.stage.key.title}" if several else one.stage.key.title for one in hours]
    width = max(map(len, [*names, "together"]))
    lines = [f"{'hours':<{width}}  planned  measured  judge calls"]
    for name, one in zip(names, hours, strict=True):
        calls = count(one.stage.judge_calls) if one.stage.judge_calls else ""
        lines.append(f"{name:<{width}}  {_hours(one.planned):>7}  {_hours(one.measured):>8}  {calls:>11}".rstrip())
    known = [one.planned for one in hours if one.planned is not None]
    took = [one.measured for one in hours if one.measured is not None]
    calls = count(sum(one.stage.judge_calls for one in hours))
    lines.append(
        f"{'together':<{width}}  {_hours(sum(known)):>7}  {_hours(sum(took) if took else None):>8}  {calls:>11}"
    )
    for name, one in zip(names, hours, strict=True):
        lines += ["", name, *(f"  {text}" for text in one.arithmetic)] if one.arithmetic else []
    return lines


def _hours(value: float | None) -> str:
    return "" if value is None else "?" if value != value else f"{value:,.2f}" if value >= 0.01 else f"{value:.4f}"


def _use_lines(config: Config, use: RunUse) -> list[str]:
    lines = [f"calls of a trajectory ({config.system.name}): {use.system.calls:,.1f}, {use.system.source}"]
    lines += [f"  {_role_line(role)}" for role in use.system.roles]
    lines += [f"{name}: {one.calls:,.1f} calls, {one.source}" for name, one in use.baselines.items()]
    for name, judged in (("rewards", use.rewards), ("evaluation", use.evaluation)):
        if judged.total:
            lines.append(f"judge calls of a trajectory ({name}): {judged.total:,.1f}, {judged.source}")
    return lines


def _role_line(role: RoleUse) -> str:
    return (
        f"{role.role} ({role.model}): {role.calls:,.1f} calls, {role.prompt_tokens:,.0f} prompt tokens "
        f"({role.cached_tokens:,.0f} cached), {role.new_tokens:,.0f} new; conversations of "
        f"{role.conversation_tokens:,.0f}"
    )


def _speed_lines(speeds: Mapping[str, ServingSpeed]) -> list[str]:
    about = "speed of one server that has its GPUs to itself, from data sheets and assumed parts of them:"
    return [about, *(f"  {name}: {speed.source}" for name, speed in speeds.items())] if speeds else []


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


def _split_size(config: Config, split: SplitConfig) -> float:
    """Questions of a split, or NaN where its file is not here."""
    from questions.load import load_questions

    if split.on_hub:  # they would be downloaded
        return math.nan
    try:
        return len(load_questions(split, config.seed))
    except UserError:
        return math.nan
