"""ratchet plan --config X.yaml [--gpu H100] [--gpus 8]: what a run will take, and beside it what it took."""

from __future__ import annotations

import argparse
import math
import shutil
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec

from ratchet.commands.models import planned_memory, served_together
from ratchet.core.config import Config, SplitConfig
from ratchet.core.errors import UserError
from ratchet.core.runfolder import RunFolder
from ratchet.core.tables import new_table, print_table
from ratchet.evaluation.arms import split_of
from ratchet.inference.serving.cards import A100, CARDS, Card, Range, Rates, Tokens, card_asked
from ratchet.inference.serving.specs import GB
from ratchet.retrieval.footprint import dense_needs
from ratchet.rounds.ledger import latest_entries
from ratchet.rounds.plan import (
    ASSUMED,
    EncodedIndex,
    PlannedStage,
    SystemUse,
    Usage,
    count,
    encoded_indexes,
    index_line,
    measured_rates,
    model_costs,
    plan_stages,
    training_line,
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
    encoded = list(encoded_indexes(config, options.documents))
    costs |= {f"{index.key}.encoder": index.billions for index in encoded}
    stages = [*(index.encoding for index in encoded), *plan_stages(experiment, measured, questions)]
    _print_lines(_memory_lines(config, card, options.gpus, options.documents))
    for index in encoded:
        if index.shape and (index.part.kind, index.part.engine) == ("dense", "ratchet") and find_spec("faiss"):
            _print_dense(index)
    _print_stages(stages, entries, costs, rates)
    _print_lines([*_how_counted(stages, use, config.index.chunk_tokens), _rate_line(rates, source)])


def _print_lines(lines: Iterable[str]) -> None:
    """In a terminal lines are broken between words; in a file or pipe they are as long as they are."""
    for line in lines:
        print(textwrap.fill(line, shutil.get_terminal_size((10_000, 0)).columns, subsequent_indent="    "))


def _memory_lines(config: Config, card: Card, gpus: int, documents: int | None) -> Iterator[str]:
    yield f"{config.run} on {gpus} GPU{'s' * (gpus > 1)} of {card.gb:g} GB (10^9 bytes):"
    for models, shown in served_together(config).items():
        yield f"{', '.join(models)} ({shown}):"
        try:
            yield from planned_memory(config, models, card, gpus)
        except UserError as error:
            yield from str(error).splitlines()
    yield training_line(config, card.gb * GB, gpus)
    yield index_line(config.index, documents)


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


def _print_dense(index: EncodedIndex) -> None:
    """Print what a dense index needs, by `index.faiss`."""
    part, dimension, shards = index.part, index.shape.hidden_size, -(-index.documents // index.part.shard_documents)
    title = f"{index.key}: {index.chunks:,} vectors of {dimension} numbers, {shards} shard{'s' * (shards > 1)}"
    table = new_table(title, ["index.faiss"], ["GB of main memory", "GB read a query", "ms a query on one core"])
    for factory, search in dict.fromkeys(((part.faiss, part.faiss_search), *COMPARED)):
        need = dense_needs(dimension, index.chunks, shards, factory, search)
        numbers = f"{need.size / GB:,.3g}", f"{need.read / GB:.3g}", count(need.milliseconds)
        table.add_row(f"{factory} {search}".strip(), *numbers)
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
        title = f"round {stage.key.round}: {stage.title}" if several and stage.key else stage.title
        took = count(entry.seconds / 3600) if entry else ""
        own: tuple[float, ...] = (stage.trajectories, stage.searches)
        for model, tokens in stage.models.items() or [("", Tokens())]:
            together[model] = together.get(model, Tokens()) + tokens
            numbers = (*own, tokens.calls, tokens.prompt / 1e6, tokens.new / 1e6, tokens.trained / 1e6)
            cells = [count(number) if number else "" for number in numbers]
            table.add_row(title, model, *cells, _planned({model: tokens}, costs, rates), took)
            title, took, own = "", "", (0.0, 0.0)
    table.add_row("together", *[""] * 7, _planned(together, costs, rates), count(seconds / 3600) if seconds else "")
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
    operations = _between(rates[0].training / 1e12, rates[1].training / 1e12)
    return (
        f"GPU hours: {prompt} prompt and {new} new tokens a second of a model of 7 billion parameters ({source}), "
        f"others in proportion, and {operations} teraflops of training; not counted: searches, the start of servers, "
        "an adapter that is not merged, which vLLM serves up to twice as slowly, and calls that are repeated"
    )


def _between(low: float, high: float) -> str:
    return " to ".join(dict.fromkeys((count(low), count(high))))


def _planned(models: Mapping[str, Tokens], costs: Mapping[str, float], rates: Range | None) -> str:
    """The hours of these tokens, from the fast to the slow ones; empty where another machine or nothing computes."""
    if rates is None or not any(costs.get(model) and tokens != Tokens() for model, tokens in models.items()):
        return ""
    slow, fast = (
        sum(one.seconds(tokens, costs[name]) for name, tokens in models.items() if costs.get(name)) for one in rates
    )
    return _between(fast / 3600, slow / 3600)


def _split_size(split: SplitConfig, seed: int) -> float:
    """Questions of a split, or NaN where its file is not here."""
    from ratchet.questions.load import load_questions

    if split.on_hub:  # they would be downloaded
        return math.nan
    try:
        return len(load_questions(split, seed))
    except UserError:
        return math.nan
