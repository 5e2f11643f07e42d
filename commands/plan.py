"""ratchet plan --config X.yaml [--gpu H100] [--gpus 8]: what a run will take, and beside it what it took."""

from __future__ import annotations

import argparse
import math
import shutil
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from itertools import zip_longest
from typing import TextIO

from ratchet.core.config import Config, EncoderConfig, SplitConfig, is_missing
from ratchet.core.errors import UserError
from ratchet.core.tables import new_table, print_table
from ratchet.evaluation.arms import split_of
from ratchet.inference.serving.memory import CARDS, Card, card_asked
from ratchet.inference.serving.specs import GB
from ratchet.retrieval.footprint import dense_needs, encoder_shape
from ratchet.rounds.ledger import latest_entries
from ratchet.rounds.plan import (
    INSTRUCTION_TOKENS,
    ITEMS,
    NEW_TOKENS,
    REFERENCE_PARAMETERS,
    SHOWN_TOKENS,
    MemoryRow,
    NumQuestions,
    PlannedStage,
    SystemUse,
    Tokens,
    cost,
    count,
    index_size,
    measured_rate,
    memory_table,
    model_uses,
    plan_stages,
    system_use,
    with_teacher,
)
from ratchet.rounds.records import Entry, StageKey
from ratchet.rounds.stages import ExperimentRun

COMPARED = (("Flat", ""), ("HNSW32", ""), ("IVF4096,PQ64", "nprobe=64"))
"""Strings of `index.faiss`, with search parameters, that are planned beside the config's."""
READ_PER_SECOND = 1e10
"""Bytes of vectors or codes that one core compares with a query in a second: faiss-cpu 1.15 took 2.0e10 of `Flat` and
1.1e10 of `HNSW32` on 77 MB of vectors (one core, AVX-512, 28 November 2026), and main memory gives about 1e10."""


def plan(config: Config, options: argparse.Namespace) -> None:
    """Print the plan: memory, calls and tokens of each stage and model, and hours where a rate is known."""
    if config.members:
        raise UserError(f"{options.config}: the config has `members`; plan each member with its own config")
    card = card_asked(options.gpu, options.gpu_gb) or CARDS["A100-80"]
    questions = _num_questions(config, options.questions, options.held_out)
    experiment, use = ExperimentRun(config, ()), system_use(config)
    costs = {name: cost(model) for name, model in config.models.items()}
    entries = latest_entries(experiment.run)
    measured = measured_rate(entries.values(), with_teacher(use, config), costs)
    rate = options.tokens_per_second or measured or card.tokens_per_second
    source = "given" if options.tokens_per_second else "measured by the run's sampling" if measured else "published"
    stages = plan_stages(experiment, use, questions)
    where = f"{config.run} on {options.gpus} GPU{'s' * (options.gpus > 1)} of {card.gb:g} GB"
    print_memory(memory_table(config, card.gb * GB, options.gpus, model_uses(config), options.documents), where)
    print_dense(config, options.documents, rate)
    _print_stages(stages, entries, costs, rate)
    for line in (*_how_counted(stages, use, config.index.chunk_tokens), _rate_line(rate, source)):
        # In a terminal lines are broken between words; in a file or pipe they are as long as they are.
        print(textwrap.fill(line, shutil.get_terminal_size((10_000, 0)).columns, subsequent_indent="    "))


def hours_lines(config: Config, questions: int, card: Card) -> Iterator[str]:
    """A line for each stage of a run with so many training questions: its trajectories, and hours where a rate is
    known."""
    costs = {name: cost(model) for name, model in config.models.items()}
    for stage in plan_stages(ExperimentRun(config, ()), system_use(config), _num_questions(config, questions, None)):
        work = sum(tokens.computed * costs[model] for model, tokens in stage.models.items())
        number = f"{count(stage.trajectories)} trajectories, " if stage.trajectories else ""
        yield f"{stage.key.title}: {number}{_planned(work, card.tokens_per_second) or '?'} GPU hours"


def _num_questions(config: Config, train: int | None, held_out: int | None) -> NumQuestions:
    """The numbers that are given, else those of the files."""
    evaluated = [split_of(config, name) for name in config.evaluation.question_sets]
    return NumQuestions(
        train or _split_size(config.questions.train, config.seed),
        held_out or _split_size(config.questions.dev, config.seed),
        held_out or sum(_split_size(split, config.seed) for split in evaluated),
    )


def print_memory(rows: Sequence[MemoryRow], where: str, out: TextIO | None = None) -> None:
    """Print the table of the memory, in GB."""
    numbers = ("weights", "adapter", "cache or activations", "other", "together")
    table = new_table(f"{where}: GB (10^9 bytes) a GPU", ["part"], numbers)
    table.add_column("")
    for row in rows:
        sizes = (row.weights, row.adapter, row.working, row.overhead, row.total)
        table.add_row(row.part, *(f"{size / GB:.1f}" if size else "" for size in sizes), row.limit)
    print_table(table, out, wraps=True)


def print_dense(config: Config, documents: int | None, rate: float | None) -> None:
    """Print what the dense indexes of a config need, by `index.faiss`: nothing where faiss is not installed, or the
    number of documents or the encoder is not known."""
    parts = {} if is_missing(config.index) else config.index.built
    for name, part in parts.items():
        if (part.kind, part.engine) != ("dense", "ratchet") or find_spec("faiss") is None:
            continue
        chunks, number = index_size(part, documents)
        encoder = part.encoder or EncoderConfig()
        shape, parameters = encoder_shape(encoder)
        if not chunks or shape is None:
            continue
        shards = math.ceil(number / part.shard_documents)
        tokens = min(part.chunk_tokens, encoder.max_length or part.chunk_tokens)
        key = f"index.parts.{name}" if name else "index"
        title = f"{key}: {chunks:,} vectors of {shape.hidden_size} numbers, {shards} shard{'s' * (shards > 1)}"
        table = new_table(title, ["index.faiss"], ["GB of main memory", "GB read a query", "ms a query on one core"])
        own = part.faiss, part.faiss_search
        for factory, search in dict.fromkeys((own, *COMPARED)):
            need = dense_needs(shape.hidden_size, chunks, shards, factory, search)
            milliseconds = need.read / READ_PER_SECOND * 1000
            shown = f"{milliseconds:,.0f}" if milliseconds >= 10 else f"{milliseconds:.2g}"
            asked = f"{factory} {search}".strip()
            table.add_row(asked, f"{need.size / GB:,.1f}", f"{need.read / GB:.3g}", shown)
        print_table(table)
        hours = _planned(chunks * tokens * parameters / REFERENCE_PARAMETERS, rate) or "?"
        print(
            f"encoding: {hours} GPU hours at most ({tokens:,.0f} tokens a chunk, {parameters / 1e6:,.0f} million "
            "parameters, in bfloat16)"
        )


def _print_stages(
    stages: Sequence[PlannedStage], entries: Mapping[StageKey, Entry], costs: Mapping[str, float], rate: float | None
) -> None:
    numbers = ("trajectories", "calls", "million prompt", "million new", "million trained", "GPU hours", "hours taken")
    table = new_table("", ["stage", "model"], numbers)
    several = len({stage.key.round for stage in stages}) > 1
    total = 0.0
    for stage in stages:
        name = f"round {stage.key.round}: {stage.key.title}" if several else stage.key.title
        took = _hours(entries[stage.key].seconds) if stage.key in entries else ""
        number = count(stage.trajectories) if stage.trajectories else ""
        for first, (model, tokens) in zip_longest([True], stage.models.items() or [("", Tokens())]):
            work = tokens.computed * costs.get(model, 0.0)
            total += work
            millions = (_millions(tokens.prompt), _millions(tokens.new), _millions(tokens.trained))
            calls = count(tokens.calls) if tokens.calls else ""
            shown = (name, number, took) if first else ("", "", "")
            table.add_row(shown[0], model, shown[1], calls, *millions, _planned(work, rate), shown[2])
    seconds = sum(entries[stage.key].seconds for stage in stages if stage.key in entries)
    table.add_row("together", *[""] * 6, _planned(total, rate), _hours(seconds) if seconds else "")
    print_table(table)


def _how_counted(stages: Sequence[PlannedStage], use: SystemUse, passage_tokens: float) -> Iterator[str]:
    counted: dict[str, list[str]] = {}
    for stage in stages:
        counted.setdefault(stage.counted, []).append(stage.key.title)
    yield from (f"{', '.join(dict.fromkeys(titles))}: {text}" for text, titles in counted.items())
    roles = ", ".join(f"{role.role} {role.calls:,.3g}" for role in use.roles)
    yield f"calls of a trajectory, {use.source or 'assumed'}: {use.calls:,.1f} ({roles})"
    yield (
        f"assumed of what is not measured: {INSTRUCTION_TOKENS:g} tokens of instructions, {SHOWN_TOKENS:g} shown and "
        f"{NEW_TOKENS:g} new ones a call, {passage_tokens:,.0f} a passage; {ITEMS:g} nuggets of an answer"
    )


def _rate_line(rate: float | None, source: str) -> str:
    if rate is None:
        return "GPU hours: nothing is published for this GPU here; give --tokens-per-second"
    return (
        f"GPU hours: {rate:,.0f} tokens a second of a model of 7 billion parameters ({source}), others in proportion "
        "to theirs; a trained token is two or three passes; searches and the start of servers are not counted"
    )


def _millions(tokens: float) -> str:
    return "" if not tokens else count(tokens / 1e6) if not tokens < 1e7 else f"{tokens / 1e6:,.1f}"


def _planned(work: float, rate: float | None) -> str:
    if not work or not rate:
        return ""
    return "?" if math.isnan(work) else _hours(work / rate)


def _hours(seconds: float) -> str:
    hours = seconds / 3600
    return f"{hours:,.0f}" if hours >= 10 else f"{hours:,.2f}" if hours >= 0.01 else f"{hours:.4f}"


def _split_size(split: SplitConfig, seed: int) -> float:
    """Questions of a split, or NaN where its file is not here."""
    from ratchet.questions.load import load_questions

    if split.on_hub:  # they would be downloaded
        return math.nan
    try:
        return len(load_questions(split, seed))
    except UserError:
        return math.nan
