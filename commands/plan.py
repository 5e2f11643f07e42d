"""ratchet plan --config X.yaml [--gpu H100] [--gpus 8]: what a run will take, and beside it what it took."""

from __future__ import annotations

import argparse
import math
import shutil
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec

from ratchet.core.config import Config, EncoderConfig, SplitConfig, is_missing
from ratchet.core.errors import UserError
from ratchet.core.runfolder import RunFolder
from ratchet.core.tables import new_table, print_table
from ratchet.evaluation.arms import split_of
from ratchet.inference.serving.cards import A100, CARDS, Card, Range, Rates, Tokens, card_asked
from ratchet.inference.serving.specs import GB
from ratchet.retrieval.footprint import dense_needs, encoder_shape
from ratchet.rounds.ledger import latest_entries
from ratchet.rounds.plan import (
    ASSUMED,
    MemoryRow,
    PlannedStage,
    SystemUse,
    Usage,
    count,
    encoding_stages,
    index_size,
    measured_rates,
    memory_table,
    model_costs,
    model_uses,
    plan_stages,
)
from ratchet.rounds.records import Entry, StageKey
from ratchet.rounds.stages import ExperimentRun

COMPARED = (("Flat", ""), ("HNSW32", ""), ("IVF4096,PQ64", "nprobe=64"))
"""Strings of `index.faiss`, with search parameters, that are planned beside the config's."""


def plan(config: Config, options: argparse.Namespace) -> None:
    """Print the plan: memory, calls and tokens of each stage and model, and hours where rates are known."""
    if config.members:
        raise UserError(f"{options.config}: the config has `members`; plan each member with its own config")
    card = card_asked(options.gpu, options.gpu_gb) or CARDS["A100-80"]
    experiment, measured = ExperimentRun(config, ()), Usage(config, RunFolder(options.source or config.folder))
    use = measured.system(config.system, is_own=True)
    if options.source and not use.source:
        raise UserError(f"--from {options.source}: no run folder with trajectories of {config.system.name}")
    costs = model_costs(config)
    entries = latest_entries(experiment.run)
    rates, source = card.rates, "published"
    if given := options.tokens_per_second:
        slow, fast = (replace(one, prompt=given[0], new=given[1]) for one in card.rates or (Rates(0, 0), Rates(0, 0)))
        rates, source = (slow, fast), "given"
    elif own := measured_rates(measured, use, costs):
        rates, source = (own, own), "measured by the run's sampling, "
        source += f"{own.prompt / A100[0].prompt:.2g} times those of an A100"
    questions = _num_questions(config, options.questions, options.dev, options.test)
    encoding = list(encoding_stages(config, options.documents))
    costs |= {model: billions for stage, billions in encoding for model in stage.models}
    stages = [*(stage for stage, _ in encoding), *plan_stages(experiment, measured, questions)]
    where = f"{config.run} on {options.gpus} GPU{'s' * (options.gpus > 1)} of {card.gb:g} GB"
    print_memory(memory_table(config, card.gb * GB, options.gpus, model_uses(config), options.documents), where)
    print_dense(config, options.documents)
    _print_stages(stages, entries, costs, rates)
    for line in (*_how_counted(stages, use, config.index.chunk_tokens), _rate_line(rates, source)):
        # In a terminal lines are broken between words; in a file or pipe they are as long as they are.
        print(textwrap.fill(line, shutil.get_terminal_size((10_000, 0)).columns, subsequent_indent="    "))


def hours_lines(config: Config, questions: int, card: Card) -> Iterator[str]:
    """A line for each stage of a run with so many training questions: its trajectories, and hours where rates are
    known."""
    costs, measured = model_costs(config), Usage(config, RunFolder(config.folder))
    for stage in plan_stages(ExperimentRun(config, ()), measured, _num_questions(config, questions)):
        number = f"{count(stage.trajectories)} trajectories, " if stage.trajectories else ""
        yield f"{stage.title}: {number}{_planned(stage.models, costs, card.rates) or '?'} GPU hours"


def _num_questions(
    config: Config, train: int | None, dev: int | None = None, evaluated: int | None = None
) -> dict[str, float]:
    """The numbers that are given, else those of the files; `evaluated`: of the split and all benchmarks together."""
    sets = [split_of(config, name) for name in config.evaluation.question_sets]
    return {
        "train": train or _split_size(config.questions.train, config.seed),
        "dev": dev or _split_size(config.questions.dev, config.seed),
        "evaluated": evaluated or sum(_split_size(split, config.seed) for split in sets),
    }


def print_memory(rows: Sequence[MemoryRow], where: str) -> None:
    """Print the table of the memory, in GB."""
    numbers = ("weights", "adapter", "cache or activations", "other", "together")
    table = new_table(f"{where}: GB (10^9 bytes) a GPU", ["part"], numbers)
    table.add_column("")
    for row in rows:
        sizes = (f"{size / GB:.1f}" if size else "" for size in (*row.sizes, sum(row.sizes)))
        table.add_row(row.part, *sizes, row.limit)
    print_table(table, wraps=True)


def print_dense(config: Config, documents: int | None) -> None:
    """Print what the dense indexes of a config need, by `index.faiss`: nothing where faiss is not installed, or the
    number of documents or the encoder is not known."""
    parts = {} if is_missing(config.index) else config.index.built
    for name, part in parts.items():
        if (part.kind, part.engine) != ("dense", "ratchet") or find_spec("faiss") is None:
            continue
        chunks, number = index_size(part, documents)
        encoder = part.encoder or EncoderConfig()
        shape, _ = encoder_shape(encoder)
        if not chunks or shape is None:
            continue
        shards = math.ceil(number / part.shard_documents)
        key = f"index.parts.{name}" if name else "index"
        title = f"{key}: {chunks:,} vectors of {shape.hidden_size} numbers, {shards} shard{'s' * (shards > 1)}"
        table = new_table(title, ["index.faiss"], ["GB of main memory", "GB read a query", "ms a query on one core"])
        own = part.faiss, part.faiss_search
        for factory, search in dict.fromkeys((own, *COMPARED)):
            need = dense_needs(shape.hidden_size, chunks, shards, factory, search)
            shown = f"{need.milliseconds:,.0f}" if need.milliseconds >= 10 else f"{need.milliseconds:.2g}"
            asked = f"{factory} {search}".strip()
            table.add_row(asked, f"{need.size / GB:,.1f}", f"{need.read / GB:.3g}", shown)
        print_table(table)


def _print_stages(
    stages: Sequence[PlannedStage], entries: Mapping[StageKey, Entry], costs: Mapping[str, float], rates: Range | None
) -> None:
    columns = ("trajectories", "searches", "calls", "million prompt", "million new", "million trained")
    table = new_table("", ["stage", "model"], (*columns, "GPU hours", "hours taken"))
    several = len({stage.key.round for stage in stages if stage.key}) > 1
    together, seconds = dict[str, Tokens](), 0.0
    for stage in stages:
        entry = entries.get(stage.key) if stage.key else None
        seconds += entry.seconds if entry else 0.0
        first = [f"round {stage.key.round}: {stage.title}" if several and stage.key else stage.title]
        numbers = [count(number) if number else "" for number in (stage.trajectories, stage.searches)]
        for model, tokens in stage.models.items() or [("", Tokens())]:
            together[model] = together.get(model, Tokens()) + tokens
            calls = count(tokens.calls) if tokens.calls else ""
            millions = (_millions(tokens.prompt), _millions(tokens.new), _millions(tokens.trained))
            took = _hours(entry.seconds) if entry and first else ""
            shown = [*numbers, calls] if first else ["", "", calls]
            table.add_row(
                first.pop() if first else "", model, *shown, *millions, _planned({model: tokens}, costs, rates), took
            )
    table.add_row("together", *[""] * 7, _planned(together, costs, rates), _hours(seconds) if seconds else "")
    print_table(table)


def _how_counted(stages: Sequence[PlannedStage], use: SystemUse, passage_tokens: float) -> Iterator[str]:
    counted: dict[str, list[str]] = {}
    for stage in stages:
        counted.setdefault(stage.counted, []).append(stage.title)
    yield from (f"{', '.join(dict.fromkeys(titles))}: {text}" for text, titles in counted.items())
    roles = ", ".join(f"{role.role} {role.tokens.calls:,.3g}" for role in use.roles)
    yield f"calls of a trajectory, {use.source or 'assumed'}: {use.calls:,.1f} ({roles})"
    yield f"assumed of what is not measured: {ASSUMED}; {passage_tokens:,.0f} tokens of a passage"


def _rate_line(rates: Range | None, source: str) -> str:
    if rates is None:
        return "GPU hours: nothing is published for this GPU here; give --tokens-per-second"
    prompt, new = (_between(getattr(rates[0], name), getattr(rates[1], name)) for name in ("prompt", "new"))
    operations = " to ".join(dict.fromkeys(f"{one.training / 1e12:.3g}" for one in rates))
    return (
        f"GPU hours: {prompt} prompt and {new} new tokens a second of a model of 7 billion parameters ({source}), "
        f"others in proportion, and {operations} teraflops of training; not counted: searches, the start of servers, "
        "an adapter that is not merged, which vLLM serves up to twice as slowly, and calls that are repeated"
    )


def _between(low: float, high: float) -> str:
    return f"{low:,.0f}" if f"{low:,.0f}" == f"{high:,.0f}" else f"{low:,.0f} to {high:,.0f}"


def _millions(tokens: float) -> str:
    return "" if not tokens else count(tokens / 1e6) if not tokens < 1e7 else f"{tokens / 1e6:,.1f}"


def _planned(models: Mapping[str, Tokens], costs: Mapping[str, float], rates: Range | None) -> str:
    """The hours of these tokens, from the fast to the slow ones; empty where another machine or nothing computes."""
    if rates is None or not any(costs.get(model) and tokens != Tokens() for model, tokens in models.items()):
        return ""
    slow, fast = (
        sum(one.seconds(tokens, costs[name]) for name, tokens in models.items() if costs.get(name)) for one in rates
    )
    if math.isnan(slow):
        return "?"
    low, high = _hours(fast), _hours(slow)
    return low if low == high else f"{low} to {high}"


def _hours(seconds: float) -> str:
    hours = seconds / 3600
    return f"{hours:,.0f}" if hours >= 10 else f"{hours:,.1f}" if hours >= 1 else f"{hours:,.2g}"


def _split_size(split: SplitConfig, seed: int) -> float:
    """Questions of a split, or NaN where its file is not here."""
    from ratchet.questions.load import load_questions

    if split.on_hub:  # they would be downloaded
        return math.nan
    try:
        return len(load_questions(split, seed))
    except UserError:
        return math.nan
