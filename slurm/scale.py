"""python -m slurm scale --config X.yaml [--gpu-gb 80] [--gpus 1]: what each step needs, and where it stops fitting.

Every number is printed with its arithmetic. Sizes come from the models' config.json, the index and the run folder;
speeds from the run folder or from you. What is not known stays a letter, with the command that measures it.

What a training step holds, in bytes, for n = micro_batch x length tokens on a device, b bytes a number of the frozen
weights (h hidden, f inner, q and k widths of queries and keys, L layers, V words, m of the n tokens learnt):

    weights      b x parameters; with FSDP over g GPUs 1/g of them, two layers whole, and b x h x V: the output head,
                 which every process has whole until the backward pass ends (training/processes.py)
    adapter      16 x its parameters: float32 weight and gradient, two moments of Adam
    residuals    L x n x h x b: the input of every layer, kept for the backward pass
    one layer    n x [b (4f + 5h + 2q + 2k) to go back through it + b 2f of gradients on the way]; in 16 bits
                 n x (20h + 2f) bytes more for norms and LoRA's inputs in float32
    or the head  whichever is larger, as they are not held together. On a GPU the head is computed in tiles:
                 4096 x 32768 x b + m x h x (4 + b); on a CPU in one piece: 12 x m x V

Without gradient checkpointing every layer keeps what the backward pass needs, instead of its input alone.

Against what steps allocate, counted tensor by tensor on a CPU: the activations computed are more than those there by 4%
(bfloat16) and 5% (float32) on two layers as wide as Qwen2.5-7B's, and by 15% on SmolLM2-135M (float32);
tests/slurm/test_scale.py counts a small model. The process itself took 1 to 8% more than this whole sum
(`benchmarks/training.py` prints both). No GPU was at hand: there an allocator's gaps and the CUDA context come on top.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

from inference.footprint import DTYPE_BYTES, Footprint, footprint
from ratchet.command import config_of, config_parser, positive, whole
from ratchet.config import JUDGED_SCORES, Config, SplitConfig
from ratchet.errors import UserError
from ratchet.runfolder import RunFolder
from sampling.store import TrajectoryStore

GB = 1e9
TRAJECTORIES = 2000
"""Trajectories of a run that are looked at."""
TILE_TOKENS, TILE_WORDS = 4096, 32_768
"""TRL's head on a GPU (trl/kernels/chunked_logprob.py)."""


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
    arithmetic: tuple[str, ...] = ()


@dataclass(frozen=True)
class TrainingMemory:
    """Bytes on one device."""

    weights: int
    adapter: int
    residuals: int
    layer: int
    head: int

    @property
    def activations(self) -> int:
        return self.residuals + max(self.layer, self.head)

    @property
    def total(self) -> int:
        return self.weights + self.adapter + self.activations


@dataclass(frozen=True)
class Step:
    """A training step of a model on one of some devices."""

    shape: Any
    """transformers' config of the text model."""
    size: Footprint
    number_bytes: int
    """Of a frozen weight."""
    rank: int
    checkpointing: bool = True
    shards: int = 1
    """GPUs that FSDP spreads the weights over."""
    tiled_head: bool = True
    """As on a GPU."""

    def memory(self, tokens: int, learnt: int) -> TrainingMemory:
        """With so many tokens on the device at once, and so many of them learnt."""
        shape, b, sixteen = self.shape, self.number_bytes, self.number_bytes == 2
        h, f, layers, words = shape.hidden_size, shape.intermediate_size, shape.num_hidden_layers, shape.vocab_size
        heads = shape.num_attention_heads
        width = getattr(shape, "head_dim", None) or h // heads
        queries, keys = width * heads, width * (getattr(shape, "num_key_value_heads", None) or heads)
        saved = b * (4 * f + 5 * h + 2 * queries + 2 * keys) + 12 * h * sixteen
        passing = b * 2 * f + (b * f + 8 * h) * sixteen
        kept, layer = (b * h, saved + passing) if self.checkpointing else (saved, passing)
        head = 12 * learnt * words
        if self.tiled_head:
            head = b * min(learnt, TILE_TOKENS) * min(words, TILE_WORDS) + learnt * h * (4 + b)
        weights = self.size.parameters * b
        if self.shards > 1:
            weights = weights // self.shards + 2 * weights // layers + b * h * words
        return TrainingMemory(
            weights=weights,
            adapter=16 * self.size.lora_parameters(self.rank) // self.shards,
            residuals=layers * tokens * kept,
            layer=tokens * layer,
            head=head,
        )

    def most_tokens(self, room: float) -> int:
        """Tokens on the device at once, all of them learnt, that fit `room` bytes; 0 where not even the weights do."""
        return max(0, bisect_right(range(1 << 26), room, key=lambda count: self.memory(count, count).total) - 1)


@dataclass(frozen=True)
class Measured:
    """Means over some trajectories of a run."""

    trajectories: int
    bytes_each: float
    calls_each: float
    tokens_each: float
    """New tokens."""
    at_once: int
    tokens_per_second: float
    """Of all in flight together, had there always been as many as could be; where there were fewer, it was less."""


def measure(config: Config) -> Measured | None:
    """Of the latest round that has trajectories; None where none has."""
    for folder in reversed(RunFolder(config.folder).rounds()):
        first = islice(TrajectoryStore(folder.trajectories).read(), TRAJECTORIES)
        some = [one for one in first if one.status != "failed"]
        tokens = sum(call.new_tokens for one in some for call in one.model_calls)
        seconds, count = sum(one.seconds for one in some), len(some)
        at_once = min(config.sampling.concurrency, count)
        if seconds > 0 and tokens > 0:
            return Measured(
                trajectories=count,
                bytes_each=sum(len(one.model_dump_json()) + 1 for one in some) / count,
                calls_each=sum(len(one.model_calls) for one in some) / count,
                tokens_each=tokens / count,
                at_once=at_once,
                tokens_per_second=tokens * at_once / seconds,
            )
    return None


def training_speed(config: Config) -> float | None:
    """Tokens a second of the median step of the latest training; None where there is none."""
    for folder in reversed(RunFolder(config.folder).rounds()):
        log = folder.training / "log.jsonl"
        lines = log.read_text().splitlines(keepends=True) if log.exists() else []
        speeds = [s for line in lines if line.endswith("\n") and (s := json.loads(line).get("tokens_per_second"))]
        if speeds:
            return median(speeds)
    return None


def main(arguments: Sequence[str], prog: str = "python -m slurm scale") -> None:
    parser = config_parser(prog, "What each step needs and where it stops fitting, with arithmetic.")
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
    measured, rate, arms = measure(config), given.tokens_per_second, 2 + len(config.evaluation.baselines)
    lines = [
        index_line(config, node, given.documents),
        *(serving_line(config, name, node) for name in config.models),
        hours_line("sample", questions, config.sampling.samples, f"{config.sampling.samples} samples", measured, rate),
        *judging_lines(config, questions),
        training_line(config, node),
        hours_line(
            "evaluate",
            evaluated,
            config.evaluation.samples * arms,
            f"{config.evaluation.samples} samples x {arms} arms (base, trained, {arms - 2} baselines)",
            measured,
            rate,
            f"the same for a question of each of the {len(config.evaluation.benchmarks)} benchmarks; in a sweep, for "
            "every checkpoint",
        ),
        disk_line(questions, config.sampling.samples, measured),
    ]
    print(render(lines, node, config.run))


def index_line(config: Config, node: Node, documents: int | None) -> Line:
    if config.index.url is not None:
        return Line("index", "elsewhere", f"a search server answers: {config.index.url}")
    folder = Path(config.index.path)
    capacity = f"`python -m index_build capacity --config X --documents {documents or 'N'}`"
    try:
        there = json.loads((folder / "manifest.json").read_bytes())["documents"]
        each = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / there
    except (OSError, ValueError, KeyError, ZeroDivisionError):
        return Line("index", "B bytes", f"{folder} is not built; {capacity} measures B")
    wanted = documents or there
    text = f"{wanted:,} documents x {each * there:,.0f} bytes / {there:,} documents = {_gb(wanted * each)}"
    limit = "served from memory; `--memory-gb` says where that ends"
    if node.memory:
        limit = f"one node holds {node.memory / each:,.0f} documents in memory"
    return Line("index", _gb(wanted * each), limit, (text, f"hours, jobs, memory, latency: {capacity}"))


def serving_line(config: Config, name: str, node: Node) -> Line:
    from inference.serving.plan import Serving
    from inference.serving.settings import serve_config
    from inference.serving.split import ACTIVATIONS, CONTEXT, GRAPHS, SPARE, need

    model = config.models[name]
    if model.engine in ("openai", "scripted"):
        return Line(f"serve {name}", "elsewhere", f"engine: {model.engine}")
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

    training, model = config.training, config.models[config.training.model]
    size = footprint(model.path, model.revision, model.dtype)
    loaded = AutoConfig.from_pretrained(model.path, revision=model.revision, trust_remote_code=False)
    shape, number, rank = loaded.get_text_config(), DTYPE_BYTES[model.dtype], training.lora.r
    alone = Step(shape, size, number, rank, training.gradient_checkpointing)
    sharded = replace(alone, shards=max(2, node.gpus))
    tokens, layers = training.micro_batch * training.max_length, shape.num_hidden_layers
    memory, with_fsdp = alone.memory(tokens, tokens), sharded.memory(tokens, tokens).total
    most = alone.most_tokens(node.gpu)
    speed = training_speed(config)
    arithmetic = (
        f"weights {size.parameters:,} x {number} bytes = {_gb(memory.weights)}; adapter "
        f"{size.lora_parameters(rank):,} (rank {rank} x {size.linear_features:,}, on all linear layers) x 16 bytes = "
        f"{_gb(memory.adapter)}",
        f"residuals {layers} layers x {tokens:,} tokens (micro_batch x max_length) x "
        f"{memory.residuals // (layers * tokens):,} bytes = {_gb(memory.residuals)}; then one layer {tokens:,} x "
        f"{memory.layer // tokens:,} bytes = {_gb(memory.layer)} or the head {_gb(memory.head)} (slurm/scale.py)",
        f"{most:,} tokens fit: micro_batch {most // training.max_length} at max_length {training.max_length:,}",
        f"on each of {sharded.shards} GPUs {_gb(with_fsdp)} with configs/accelerate/fsdp.yaml (two layers and the "
        f"output head are whole on each), {_gb(memory.total)} with ddp.yaml",
        f"this run trained {speed:,.0f} tokens/s: hours = tokens x epochs / {speed:,.0f} / 3600"
        if speed
        else "hours = tokens x epochs / S / 3600; `python benchmarks/training.py` measures S, tokens a second",
    )
    limit = f"micro_batch {most // training.max_length} at most on one GPU of {_gb(node.gpu)}"
    if memory.total > node.gpu:
        fits = "fits with FSDP" if with_fsdp <= node.gpu and node.gpus > 1 else "lower max_length or micro_batch"
        limit = f"DOES NOT FIT one GPU of {_gb(node.gpu)}: {fits}"
    return Line("train", f"{_gb(memory.total)} a GPU", limit, arithmetic)


def hours_line(
    step: str, questions: float, each: int, of: str, measured: Measured | None, given: float | None, *more: str
) -> Line:
    """A step in which agents answer: trajectories x new tokens of each / new tokens a second."""
    total, limit = questions * each, "time, not memory"
    counted = f"{_count(questions, 'Q')} questions x {of} = {_count(total)} trajectories"
    times = f"T / {given or 'R'} / 3600, T new tokens each; T: sample a few questions, run this again"
    if measured is not None:
        rate = given or measured.tokens_per_second
        source = "as you say" if given else f"as in this run, if its {measured.at_once} places were always taken"
        times = (
            f"{measured.tokens_each:,.0f} new tokens ({measured.calls_each:.1f} calls) each, as in this run / "
            f"{rate:,.0f} a second ({source}) / 3600"
        )
        if not math.isnan(total):
            limit = f"{total * measured.tokens_each / rate / 3600:,.3g} hours"
            times += f" = {limit}"
    hours = f"hours = {_count(total, 'trajectories')} x {times}"
    return Line(step, f"{_count(total)} trajectories", limit, (counted, hours, *more))


def judging_lines(config: Config, questions: float) -> list[Line]:
    scores = sorted(JUDGED_SCORES & {*config.rewards.weights})
    if not scores:
        return []
    samples, runs = config.sampling.samples, config.rewards.runs
    verdicts = f"{_count(questions * samples * len(scores) * runs)} verdicts"
    arithmetic = (
        f"{_count(questions, 'Q')} questions x {samples} samples x {len(scores)} scores ({', '.join(scores)}) x {runs} "
        f"runs = {verdicts}; more of them where a score goes claim by claim",
        "hours = verdicts / J / 3600; `python -m rewards` shows J, verdicts a second, while it runs",
    )
    return [Line("judge", verdicts, "time, not memory", arithmetic)]


def disk_line(questions: float, samples: int, measured: Measured | None) -> Line:
    counted = f"{_count(questions, 'Q')} questions x {samples} samples x"
    if measured is None:
        text = f"{counted} D bytes; D: sample a few questions, run this again"
        return Line("disk", "D bytes a trajectory", "not measured yet", (text,))
    total = _gb(questions * samples * measured.bytes_each)
    text = f"{counted} {measured.bytes_each:,.0f} bytes (of {measured.trajectories:,} in this run) = {total}"
    return Line("disk", total, "a round; scores and evaluation come on top", (text,))


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


def _split_size(config: Config, split: SplitConfig) -> float:
    """Questions of a split, or NaN where its file is not here."""
    from questions.load import load_questions

    try:
        return len(load_questions(split, config.seed))
    except UserError:
        return math.nan


def _gb(size: float) -> str:
    return "?" if math.isnan(size) else f"{size / GB:,.3f} GB" if size < GB else f"{size / GB:,.1f} GB"


def _count(number: float, unknown: str = "?") -> str:
    return unknown if math.isnan(number) else f"{number:,.0f}"
