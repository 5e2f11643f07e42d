"""python -m slurm scale --config X.yaml [--gpu-gb 80] [--gpus 1]: what each step needs, and where it stops fitting.

Every number is printed with its arithmetic. Sizes come from the models' config.json, the index and the run folder;
speeds from the run folder or from you. What is not known stays a letter, beside the command that measures it.

What a training step holds, in bytes, for n = micro_batch x length tokens on a device, b bytes a number of the frozen
weights (h hidden, f inner, q and k widths of queries and keys, L layers, V vocabulary size, m tokens with loss):

    weights      b x parameters; with FSDP over g GPUs 1/g of them, two complete layers, and b x h x V: the output head,
                 which every process holds complete until the backward pass ends (training/processes.py)
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
(`benchmarks/training.py` prints both). No GPU was measured: there an allocator's gaps and the CUDA context come on top.
"""

from __future__ import annotations

import json
import math
import shutil
import textwrap
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

from inference.footprint import DTYPE_BYTES, Footprint, footprint
from inference.serving.memory import (
    ACTIVATION_BYTES,
    CUDA_CONTEXT_BYTES,
    CUDA_GRAPH_BYTES,
    SPARE_FRACTION,
    estimate_memory,
)
from inference.serving.specs import ServerSpec
from ratchet.command import config_of, config_parser, positive_integer, positive_number
from ratchet.config import Config, SplitConfig, is_missing
from ratchet.errors import UserError
from ratchet.files import read_log
from ratchet.runfolder import RunFolder
from rewards.reward import judged
from sampling.store import TrajectoryStore

GB = 1e9
MAX_TRAJECTORIES = 2000
"""The limit of trajectories of a run that are read."""
TILE_TOKENS, TILE_VOCABULARY = 4096, 32_768
"""TRL's head on a GPU (trl/kernels/chunked_logprob.py)."""


@dataclass(frozen=True)
class Node:
    """The hardware of one node."""

    gpu: float
    """Memory of one GPU in bytes."""
    gpus: int
    """The number of GPUs."""
    memory: float | None
    """Main memory in bytes."""


@dataclass(frozen=True)
class TableRow:
    """One row of the table, and the arithmetic below it."""

    step: str
    needs: str
    limit: str
    arithmetic: tuple[str, ...] = ()


@dataclass(frozen=True)
class TrainingMemory:
    """Memory of training on one device, in bytes."""

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
    weight_bytes: int
    """Bytes of one number of the frozen weights."""
    rank: int
    checkpointing: bool = True
    shards: int = 1
    """GPUs that FSDP spreads the weights over."""
    tiled_head: bool = True
    """True where the head is computed in tiles, as on a GPU."""

    def memory(self, tokens: int, trained: int) -> TrainingMemory:
        """The memory with `tokens` on the device at once, of which `trained` contribute to the loss."""
        shape, b, is_16_bit = self.shape, self.weight_bytes, self.weight_bytes == 2
        h, f, layers, vocabulary = shape.hidden_size, shape.intermediate_size, shape.num_hidden_layers, shape.vocab_size
        heads = shape.num_attention_heads
        width = getattr(shape, "head_dim", None) or h // heads
        queries, keys = width * heads, width * (getattr(shape, "num_key_value_heads", None) or heads)
        saved = b * (4 * f + 5 * h + 2 * queries + 2 * keys) + 12 * h * is_16_bit
        passing = b * 2 * f + (b * f + 8 * h) * is_16_bit
        kept, layer = (b * h, saved + passing) if self.checkpointing else (saved, passing)
        head = 12 * trained * vocabulary
        if self.tiled_head:
            head = b * min(trained, TILE_TOKENS) * min(vocabulary, TILE_VOCABULARY) + trained * h * (4 + b)
        weights = self.size.parameters * b
        if self.shards > 1:
            weights = weights // self.shards + 2 * weights // layers + b * h * vocabulary
        return TrainingMemory(
            weights=weights,
            adapter=16 * self.size.lora_parameters(self.rank) // self.shards,
            residuals=layers * tokens * kept,
            layer=tokens * layer,
            head=head,
        )

    def max_tokens(self, room: float) -> int:
        """The most tokens, all of them with loss, that fit in `room` bytes; 0 where the weights alone do not fit."""
        return max(0, bisect_right(range(1 << 26), room, key=lambda count: self.memory(count, count).total) - 1)


@dataclass(frozen=True)
class RunStatistics:
    """Means over some trajectories of a run."""

    trajectories: int
    bytes_each: float
    calls_each: float
    tokens_each: float
    """New tokens of a trajectory."""
    max_concurrent: int
    tokens_per_second: float
    """New tokens a second of all in flight, if the concurrency were always reached; the run may have been slower."""


def run_statistics(config: Config) -> RunStatistics | None:
    """Statistics of the latest round that has trajectories; None if no round has."""
    for folder in reversed(RunFolder(config.folder).rounds()):
        first = islice(TrajectoryStore(folder.trajectories).read(), MAX_TRAJECTORIES)
        some = [one for one in first if one.status != "failed"]
        tokens = sum(call.new_tokens for one in some for call in one.model_calls)
        seconds, count = sum(one.seconds for one in some), len(some)
        max_concurrent = min(config.sampling.concurrency, count)
        if seconds > 0 and tokens > 0:
            return RunStatistics(
                trajectories=count,
                bytes_each=sum(len(one.model_dump_json()) + 1 for one in some) / count,
                calls_each=sum(len(one.model_calls) for one in some) / count,
                tokens_each=tokens / count,
                max_concurrent=max_concurrent,
                tokens_per_second=tokens * max_concurrent / seconds,
            )
    return None


def training_speed(config: Config) -> float | None:
    """The median tokens a second of the steps of the latest training; None without one."""
    for folder in reversed(RunFolder(config.folder).rounds()):
        lines = read_log(folder.training / "log.jsonl")
        if speeds := [speed for line in lines if (speed := line.get("tokens_per_second"))]:
            return median(speeds)
    return None


def main(arguments: Sequence[str], prog: str = "python -m slurm scale") -> None:
    """Print the table."""
    parser = config_parser(prog, "Print what each step needs and where it stops fitting, with the arithmetic.")
    add = parser.add_argument
    add("--gpu-gb", type=positive_number, default=80.0, help="memory of one GPU in 10^9 bytes (default: 80)")
    add("--gpus", type=positive_integer, default=1, help="GPUs of a node (default: 1)")
    add("--memory-gb", type=positive_number, help="main memory of a node in 10^9 bytes")
    add("--questions", type=positive_integer, help="questions to sample (default: those of questions.train)")
    add("--documents", type=positive_integer, help="documents of the corpus (default: those of the built index)")
    add("--tokens-per-second", type=positive_number, help="new tokens that the agents' servers give together")
    options = parser.parse_args(arguments)
    config = config_of(options)
    node = Node(options.gpu_gb * GB, options.gpus, options.memory_gb * GB if options.memory_gb else None)
    questions = options.questions or _split_size(config, config.questions.train)
    evaluated = _split_size(config, getattr(config.questions, config.evaluation.split))
    statistics, rate, arms = run_statistics(config), options.tokens_per_second, 2 + len(config.evaluation.baselines)
    samples, of_arm = config.sampling.samples, config.evaluation.samples
    rows = [
        _index_row(config, node, options.documents),
        *(_serving_row(config, name, node) for name in config.models),
        _hours_row("sample", questions, samples, f"{samples} samples", statistics, rate),
        *_judging_rows(config, questions),
        _training_row(config, node),
        _hours_row(
            "evaluate",
            evaluated,
            of_arm * arms,
            f"{of_arm} samples x {arms} arms (base, trained, {arms - 2} baselines)",
            statistics,
            rate,
            f"the same for a question of each of the {len(config.evaluation.benchmarks)} benchmarks; in a sweep, for "
            "every checkpoint",
        ),
        _disk_row(questions, samples, statistics),
    ]
    print(_render(rows, node, config.run))


def _index_row(config: Config, node: Node, documents: int | None) -> TableRow:
    if is_missing(config.index):
        return TableRow("index", "none", "the config has no index")
    if config.index.url is not None:
        return TableRow("index", "elsewhere", f"a search server answers: {config.index.url}")
    folder = Path(config.index.path)
    capacity = f"`python -m index_build capacity --config X --documents {documents or 'N'}`"
    try:
        there = json.loads((folder / "manifest.json").read_bytes())["documents"]
        each = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / there
    except (OSError, ValueError, KeyError, ZeroDivisionError):
        return TableRow("index", "B bytes", f"{folder} is not built; {capacity} measures B")
    wanted = documents or there
    text = f"{wanted:,} documents x {each * there:,.0f} bytes / {there:,} documents = {_gb(wanted * each)}"
    limit = "served from memory; `--memory-gb` says where that ends"
    if node.memory:
        limit = f"one node holds {node.memory / each:,.0f} documents in memory"
    return TableRow("index", _gb(wanted * each), limit, (text, f"hours, jobs, memory, latency: {capacity}"))


def _serving_row(config: Config, name: str, node: Node) -> TableRow:
    model = config.models[name]
    if model.engine in ("openai", "chat-api", "scripted"):
        return TableRow(f"serve {name}", "elsewhere", f"engine: {model.engine}")
    spec = ServerSpec((name,), model, config.serve_config(name), model.concurrency)
    size, over = footprint(model.path, model.revision, model.dtype), spec.settings.tensor_parallel
    estimate, overhead = estimate_memory(spec, 1, size), ACTIVATION_BYTES + CUDA_GRAPH_BYTES + CUDA_CONTEXT_BYTES
    token = size.kv_bytes_per_token // min(over, size.kv_heads)
    one = token * model.max_context
    room = node.gpu * (1 - SPARE_FRACTION) - estimate.weights - estimate.adapters - overhead
    arithmetic = (
        f"weights {size.parameters:,} parameters x {DTYPE_BYTES[model.dtype]} bytes"
        + (f" / {over} GPUs" if over > 1 else "")
        + f" = {_gb(estimate.weights)}; adapters {_gb(estimate.adapters)}; "
        f"activations, CUDA graphs and context {_gb(overhead)}",
        f"keys and values {token:,} bytes a token x {model.max_context:,} tokens (models.{name}.max_context) = "
        f"{_gb(one)} a conversation; {model.concurrency} in flight: {_gb(one * model.concurrency)} if all were as long",
        f"left on a GPU of {_gb(node.gpu)} less {SPARE_FRACTION:.0%}: {_gb(room)} = "
        f"{max(0, int(room // token)):,} tokens",
    )
    if room < one:
        limit = f"DOES NOT FIT a GPU of {_gb(node.gpu)}: serve.tensor_parallel, or a shorter max_context"
    else:
        limit = f"{int(room // one)} complete conversations at once on {f'{over} GPUs' if over > 1 else 'one GPU'}"
    return TableRow(f"serve {name}", f"{_gb(estimate.fixed + CUDA_CONTEXT_BYTES + one)} a GPU", limit, arithmetic)


def _training_row(config: Config, node: Node) -> TableRow:
    from transformers import AutoConfig

    training, model = config.training, config.models[config.training.model]
    size = footprint(model.path, model.revision, model.dtype)
    loaded = AutoConfig.from_pretrained(model.path, revision=model.revision, trust_remote_code=False)
    shape, weight_bytes, rank = loaded.get_text_config(), DTYPE_BYTES[model.dtype], training.lora.r
    single = Step(shape, size, weight_bytes, rank, training.gradient_checkpointing)
    sharded = replace(single, shards=max(2, node.gpus))
    tokens, layers = training.micro_batch * training.max_length, shape.num_hidden_layers
    memory, with_fsdp = single.memory(tokens, tokens), sharded.memory(tokens, tokens).total
    max_tokens = single.max_tokens(node.gpu)
    speed = training_speed(config)
    arithmetic = (
        f"weights {size.parameters:,} x {weight_bytes} bytes = {_gb(memory.weights)}; adapter "
        f"{size.lora_parameters(rank):,} (rank {rank} x {size.linear_features:,}, on all linear layers) x 16 bytes = "
        f"{_gb(memory.adapter)}",
        f"residuals {layers} layers x {tokens:,} tokens (micro_batch x max_length) x "
        f"{memory.residuals // (layers * tokens):,} bytes = {_gb(memory.residuals)}; then one layer {tokens:,} x "
        f"{memory.layer // tokens:,} bytes = {_gb(memory.layer)} or the head {_gb(memory.head)} (slurm/scale.py)",
        f"{max_tokens:,} tokens fit: micro_batch {max_tokens // training.max_length} at max_length "
        f"{training.max_length:,}",
        f"on each of {sharded.shards} GPUs {_gb(with_fsdp)} with configs/accelerate/fsdp.yaml (two layers and the "
        f"output head are complete on each), {_gb(memory.total)} with ddp.yaml",
        f"this run trained {speed:,.0f} tokens/s: hours = tokens x epochs / {speed:,.0f} / 3600"
        if speed
        else "hours = tokens x epochs / S / 3600; `python benchmarks/training.py` measures S, tokens a second",
    )
    limit = f"micro_batch {max_tokens // training.max_length} at most on one GPU of {_gb(node.gpu)}"
    if memory.total > node.gpu:
        fits = "fits with FSDP" if with_fsdp <= node.gpu and node.gpus > 1 else "lower max_length or micro_batch"
        limit = f"DOES NOT FIT one GPU of {_gb(node.gpu)}: {fits}"
    return TableRow("train", f"{_gb(memory.total)} a GPU", limit, arithmetic)


def _hours_row(
    step: str,
    questions: float,
    each: int,
    of: str,
    statistics: RunStatistics | None,
    given_rate: float | None,
    *more: str,
) -> TableRow:
    """The row of a step in which agents answer: trajectories x new tokens of each / new tokens a second."""
    total, limit = questions * each, "time, not memory"
    counted = f"{_count(questions, 'Q')} questions x {of} = {_count(total)} trajectories"
    times = f"T / {given_rate or 'R'} / 3600, T new tokens each; T: sample a few questions, run this again"
    if statistics is not None:
        rate = given_rate or statistics.tokens_per_second
        here = f"as in this run, if always {statistics.max_concurrent} trajectories were in flight"
        times = (
            f"{statistics.tokens_each:,.0f} new tokens ({statistics.calls_each:.1f} calls) each, as in this run / "
            f"{rate:,.0f} a second ({'as given' if given_rate else here}) / 3600"
        )
        if not math.isnan(total):
            limit = f"{total * statistics.tokens_each / rate / 3600:,.3g} hours"
            times += f" = {limit}"
    hours = f"hours = {_count(total, 'trajectories')} x {times}"
    return TableRow(step, f"{_count(total)} trajectories", limit, (counted, hours, *more))


def _judging_rows(config: Config, questions: float) -> list[TableRow]:
    scores = sorted(judged(config.rewards.weights))
    if not scores:
        return []
    samples, runs = config.sampling.samples, config.rewards.runs
    verdicts = f"{_count(questions * samples * len(scores) * runs)} verdicts"
    arithmetic = (
        f"{_count(questions, 'Q')} questions x {samples} samples x {len(scores)} scores ({', '.join(scores)}) x {runs} "
        f"runs = {verdicts}; more of them where a score goes claim by claim",
        "hours = verdicts / J / 3600; `python -m rewards` shows J, verdicts a second, while it runs",
    )
    return [TableRow("judge", verdicts, "time, not memory", arithmetic)]


def _disk_row(questions: float, samples: int, statistics: RunStatistics | None) -> TableRow:
    counted = f"{_count(questions, 'Q')} questions x {samples} samples x"
    if statistics is None:
        text = f"{counted} D bytes; D: sample a few questions, run this again"
        return TableRow("disk", "D bytes a trajectory", "not measured yet", (text,))
    total = _gb(questions * samples * statistics.bytes_each)
    text = f"{counted} {statistics.bytes_each:,.0f} bytes (of {statistics.trajectories:,} in this run) = {total}"
    return TableRow("disk", total, "a round; scores and evaluation come on top", (text,))


def _render(rows: Sequence[TableRow], node: Node, run: str) -> str:
    widths = [max(len(getattr(line, key)) for line in rows) for key in ("step", "needs")]
    memory = f", {_gb(node.memory)} of main memory" if node.memory else ""
    out = [
        f"{run} on nodes of {node.gpus} GPU{'s' * (node.gpus > 1)} of {_gb(node.gpu)}{memory}; GB are 10^9 bytes",
        "",
    ]
    out += [f"{line.step:<{widths[0]}}  {line.needs:<{widths[1]}}  {line.limit}" for line in rows]
    for line in rows:
        out += [] if not line.arithmetic else ["", line.step, *(f"  {text}" for text in line.arithmetic)]
    # In a terminal lines are broken between words; in a file or pipe they are as long as they are.
    columns = shutil.get_terminal_size((10_000, 0)).columns
    return "\n".join(textwrap.fill(line, columns, subsequent_indent="    ") for line in out)


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
