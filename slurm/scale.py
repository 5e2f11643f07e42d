"""python -m slurm scale --config X.yaml [--gpu-gb 80] [--gpus 1]: what each step needs, and where it stops fitting.

Every number is printed with its arithmetic. Sizes come from the models' config.json, the index and the run folder;
speeds from the run folder or from you. What is not known stays a letter, with the command that measures it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ratchet.command import config_of, config_parser, positive, whole
from ratchet.config import JUDGED_SCORES, Config, SplitConfig
from ratchet.errors import UserError
from slurm.measured import Measured, index_sizes, measure, training_speed

GB = 1e9


@dataclass(frozen=True)
class Node:
    gpu: float
    """Bytes of one GPU."""
    gpus: int
    memory: float | None
    """Main memory in bytes."""


@dataclass(frozen=True)
class Line:
    """One row of the table, and the arithmetic below it."""

    step: str
    needs: str
    limit: str
    arithmetic: tuple[str, ...]


def main(arguments: Sequence[str]) -> None:
    parser = config_parser("python -m slurm scale", "What each step needs and where it stops fitting, with arithmetic.")
    parser.add_argument("--gpu-gb", type=positive, default=80.0, help="memory of one GPU in 10^9 bytes (default: 80)")
    parser.add_argument("--gpus", type=whole, default=1, help="GPUs of a node (default: 1)")
    parser.add_argument("--memory-gb", type=positive, help="main memory of a node in 10^9 bytes")
    parser.add_argument("--questions", type=whole, help="questions to sample (default: those of questions.train)")
    parser.add_argument("--documents", type=whole, help="documents of the corpus (default: of the index there is)")
    parser.add_argument("--tokens-per-second", type=positive, help="new tokens that the agents' servers give together")
    given = parser.parse_args(arguments)
    config = config_of(given)
    node = Node(given.gpu_gb * GB, given.gpus, given.memory_gb * GB if given.memory_gb else None)
    questions = given.questions or _split_size(config, config.questions.train)
    evaluated = _split_size(config, getattr(config.questions, config.evaluation.split))
    measured = measure(config)
    lines = [
        index_line(config, node, given.documents),
        *(serving_line(config, name, node) for name in config.models),
        sampling_line(config, questions, measured, given.tokens_per_second),
        *judging_lines(config, questions),
        training_line(config, node),
        evaluation_line(config, evaluated, measured, given.tokens_per_second),
        disk_line(config, questions, measured),
    ]
    print(render(lines, node, config.run))


def index_line(config: Config, node: Node, documents: int | None) -> Line:
    if config.index.url is not None:
        return Line("index", "elsewhere", f"a search server answers: {config.index.url}", ())
    found = index_sizes(Path(config.index.path))
    capacity = f"`python -m index_build capacity --config X --documents {documents or 'N'}`"
    if found is None:
        return Line("index", "B bytes", f"{config.index.path} is not built; {capacity} measures B", ())
    size, there = found
    wanted = documents or there
    each = size / there
    text = f"{wanted:,} documents x {size:,} bytes / {there:,} documents = {_gb(wanted * each)}"
    limit = "served from memory; `--memory-gb` says where that ends"
    if node.memory:
        limit = f"one node holds {node.memory / each:,.0f} documents in memory"
    return Line("index", _gb(wanted * each), limit, (text, f"hours, jobs, memory, latency: {capacity}"))


def serving_line(config: Config, name: str, node: Node) -> Line:
    from inference.footprint import DTYPE_BYTES, footprint
    from inference.serving.plan import Serving
    from inference.serving.settings import serve_config
    from inference.serving.split import ACTIVATIONS, CONTEXT, GRAPHS, SPARE, need

    model = config.models[name]
    if model.engine in ("openai", "scripted"):
        return Line(f"serve {name}", "elsewhere", f"engine: {model.engine}", ())
    serving = Serving((name,), model, serve_config(config, name), model.concurrency)
    size, over = footprint(model.path, model.revision, model.dtype), serving.settings.tensor_parallel
    own, overhead = need(serving, 1, size), ACTIVATIONS + GRAPHS + CONTEXT
    token = size.kv_bytes_per_token // min(over, size.kv_heads)
    one = token * model.max_context
    room = node.gpu * (1 - SPARE) - own.weights - own.adapters - overhead
    arithmetic = (
        f"weights {size.parameters:,} parameters x {DTYPE_BYTES[model.dtype]} bytes"
        + (f" / {over} GPUs" if over > 1 else "")
        + f" = {_gb(own.weights)}; adapters {_gb(own.adapters)}; activations, CUDA graphs and context {_gb(overhead)}",
        f"keys and values {token:,} bytes a token x {model.max_context:,} tokens (models.{name}.max_context) = "
        f"{_gb(one)} a conversation; {model.concurrency} in flight: {_gb(one * model.concurrency)} if all were as long",
        f"left on a GPU of {_gb(node.gpu)} less {SPARE:.0%}: {_gb(room)} = {max(0, int(room // token)):,} tokens",
    )
    if room < one:
        limit = f"DOES NOT FIT a GPU of {_gb(node.gpu)}: serve.tensor_parallel, or a shorter max_context"
    else:
        limit = f"{int(room // one)} whole conversations at once on {f'{over} GPUs' if over > 1 else 'one GPU'}"
    return Line(f"serve {name}", f"{_gb(own.fixed + CONTEXT + one)} a GPU", limit, arithmetic)


def training_line(config: Config, node: Node) -> Line:
    from transformers import AutoConfig

    from inference.footprint import DTYPE_BYTES, footprint
    from slurm.sizes import Step, shape_of

    training, model = config.training, config.models[config.training.model]
    size = footprint(model.path, model.revision, model.dtype)
    config_json = AutoConfig.from_pretrained(model.path, revision=model.revision, trust_remote_code=False)
    shape = shape_of(config_json.get_text_config())
    number = DTYPE_BYTES[model.dtype]
    alone = Step(number, training.lora.r, training.gradient_checkpointing)
    tokens = training.micro_batch * training.max_length
    memory = alone.memory(shape, size, tokens, tokens)
    most = alone.most_tokens(shape, size, node.gpu)
    lora = size.lora_parameters(training.lora.r)
    arithmetic = [
        f"weights {size.parameters:,} x {number} bytes = {_gb(memory.weights)}; adapter {lora:,} (rank "
        f"{training.lora.r} x {size.linear_features:,}, on all linear layers) x 16 bytes = {_gb(memory.adapter)}",
        f"residuals {shape.layers} layers x {tokens:,} tokens (micro_batch x max_length) x "
        f"{memory.residuals // (shape.layers * tokens):,} bytes = {_gb(memory.residuals)}; then one layer {tokens:,} x "
        f"{memory.layer // tokens:,} bytes = {_gb(memory.layer)} or the head {_gb(memory.head)} (slurm/sizes.py)",
        f"{most:,} tokens fit: micro_batch {most // training.max_length} at max_length {training.max_length:,}",
    ]
    sharded = Step(number, training.lora.r, training.gradient_checkpointing, shards=max(2, node.gpus))
    with_fsdp = sharded.memory(shape, size, tokens, tokens).total
    arithmetic.append(
        f"on each of {sharded.shards} GPUs {_gb(with_fsdp)} with configs/accelerate/fsdp.yaml, "
        f"{_gb(memory.total)} with ddp.yaml"
    )
    speed = training_speed(config)
    arithmetic.append(
        f"this run trained {speed:,.0f} tokens/s: hours = tokens x epochs / {speed:,.0f} / 3600"
        if speed
        else "hours = tokens x epochs / S / 3600; `python benchmarks/training.py` measures S, tokens a second"
    )
    limit = f"micro_batch {most // training.max_length} at most on one GPU of {_gb(node.gpu)}"
    if memory.total > node.gpu:
        fits = "fits with FSDP" if with_fsdp <= node.gpu and node.gpus > 1 else "lower max_length or micro_batch"
        limit = f"DOES NOT FIT one GPU of {_gb(node.gpu)}: {fits}"
    return Line("train", f"{_gb(memory.total)} a GPU", limit, tuple(arithmetic))


def sampling_line(config: Config, questions: int | None, measured: Measured | None, given: float | None) -> Line:
    samples = config.sampling.samples
    total = None if questions is None else questions * samples
    return Line(
        "sample", _many(total, "trajectories"), *_hours(questions, f"{samples} samples", total, measured, given)
    )


def evaluation_line(config: Config, questions: int | None, measured: Measured | None, given: float | None) -> Line:
    arms = 2 + len(config.evaluation.baselines)
    total = None if questions is None else questions * config.evaluation.samples * arms
    of = f"{config.evaluation.samples} samples x {arms} arms (base, trained, {arms - 2} baselines)"
    limit, arithmetic = _hours(questions, of, total, measured, given)
    benchmarks = len(config.evaluation.benchmarks)
    more = f"the same for a question of each of the {benchmarks} benchmarks; in a sweep, for every checkpoint"
    return Line("evaluate", _many(total, "trajectories"), limit, (*arithmetic, more))


def judging_lines(config: Config, questions: int | None) -> list[Line]:
    scores = sorted(JUDGED_SCORES & {*config.rewards.weights})
    if not scores:
        return []
    each = len(scores) * config.rewards.runs
    total = None if questions is None else questions * config.sampling.samples * each
    named = f"{len(scores)} scores ({', '.join(scores)}) x {config.rewards.runs} runs"
    arithmetic = (
        f"{_letter(questions)} questions x {config.sampling.samples} samples x {named} = {_many(total, 'verdicts')}; "
        "more of them where a score goes claim by claim",
        "hours = verdicts / J / 3600; `python -m rewards` shows J, verdicts a second, while it runs",
    )
    return [Line("judge", _many(total, "verdicts"), "time, not memory", arithmetic)]


def disk_line(config: Config, questions: int | None, measured: Measured | None) -> Line:
    samples = config.sampling.samples
    if measured is None:
        text = (
            f"{_letter(questions)} questions x {samples} samples x D bytes; D: sample a few questions, run this again"
        )
        return Line("disk", "D bytes a trajectory", "not measured yet", (text,))
    total = None if questions is None else questions * samples * measured.bytes_each
    text = (
        f"{_letter(questions)} questions x {samples} samples x {measured.bytes_each:,.0f} bytes "
        f"(of {measured.trajectories:,} in this run) = {_gb(total)}"
    )
    return Line("disk", _gb(total), "a round; scores and evaluation come on top", (text,))


def _hours(
    questions: int | None, of: str, total: int | None, measured: Measured | None, given: float | None
) -> tuple[str, tuple[str, ...]]:
    """(what it takes, the arithmetic): trajectories x new tokens of each / new tokens a second."""
    counted = f"{_letter(questions)} questions x {of} = {_many(total, 'trajectories')}"
    if measured is None:
        tokens = "T new tokens each; T: sample a few questions, run this again"
        return "time, not memory", (counted, f"hours = trajectories x T / {given or 'R'} / 3600, {tokens}")
    rate = given or measured.tokens_per_second
    source = "as you say" if given else f"as in this run, if its {measured.at_once} places were always taken"
    each = f"{measured.tokens_each:,.0f} new tokens ({measured.calls_each:.1f} calls) each, as in this run"
    if total is None:
        return "time, not memory", (counted, f"hours = trajectories x {each} / {rate:,.0f} a second ({source}) / 3600")
    hours = total * measured.tokens_each / rate / 3600
    line = f"{total:,} x {each} / {rate:,.0f} a second ({source}) / 3600 = {hours:,.3g} hours"
    return f"{hours:,.3g} hours", (counted, line)


def render(lines: Sequence[Line], node: Node, run: str) -> str:
    widths = [max(len(getattr(line, key)) for line in lines) for key in ("step", "needs")]
    memory = f", {_gb(node.memory)} of main memory" if node.memory else ""
    out = [
        f"{run} on nodes of {node.gpus} GPU{'s' * (node.gpus > 1)} of {_gb(node.gpu)}{memory}; GB are 10^9 bytes",
        "",
    ]
    out += [f"{line.step:<{widths[0]}}  {line.needs:<{widths[1]}}  {line.limit}" for line in lines]
    for line in lines:
        out += [] if not line.arithmetic else ["", line.step, *(f"  {text}" for text in line.arithmetic)]
    return "\n".join(out)


def _split_size(config: Config, split: SplitConfig) -> int | None:
    """Questions of a split, or None where its file is not here."""
    from questions.load import load_questions

    try:
        return len(load_questions(split, config.seed))
    except UserError:
        return None


def _gb(size: float | None) -> str:
    return "?" if size is None else f"{size / GB:,.3f} GB" if size < GB else f"{size / GB:,.1f} GB"


def _many(count: int | None, what: str) -> str:
    return f"? {what}" if count is None else f"{count:,} {what}"


def _letter(count: int | None) -> str:
    return "Q" if count is None else f"{count:,}"
