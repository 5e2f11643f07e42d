"""The commands `list`, `describe` and `leakage` of `python -m evaluation`."""

from __future__ import annotations

from collections import Counter

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from questions.benchmark import Benchmark, known_benchmarks, load_benchmark
from questions.leakage import leakage_between_splits
from questions.load import load_split
from ratchet.config import Config, SplitConfig
from ratchet.console import wide_console
from ratchet.errors import UserError
from ratchet.tables import print_table

WIDTH = 160
"""The width in columns of a table that is not printed to a terminal."""


def list_benchmarks() -> None:
    """Print all benchmarks, with the splits whose files are here."""
    table = Table(box=SIMPLE_HEAD)
    for heading in ("name", "benchmark", "gold passages", "splits", "here, in data/<name>"):
        table.add_column(heading)
    for name in known_benchmarks():
        one = load_benchmark(name)
        here = [split for split in one.splits if one.find(_config(one, split))]
        splits = ", ".join(f"[bold]{split}[/]" if split == one.default_split else split for split in one.splits)
        table.add_row(name, escape(one.title), escape(one.gold), splits, ", ".join(here) or "-")
    console = wide_console(WIDTH)
    print_table(table, wraps=True)
    console.print(
        "Bold: the split that is usually scored. `python -m evaluation describe NAME` shows which files one needs."
    )


def describe(name: str) -> None:
    """Print a benchmark's description, expected files, config entry and available splits, without any question."""
    one = load_benchmark(name)
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold")
    table.add_column()
    for heading, text in (
        ("what", one.about),
        ("gold passages", one.gold),
        ("licence", one.licence),
        ("get it from", one.source),
        ("formats", "; ".join(map(str, one.formats))),
        ("folder", f"{one.folder(_config(one, one.default_split))}, or the config's path"),
        *((f"files of {split}", ", ".join(one.file_names(split))) for split in one.splits),
        *(("on the hub", f"{found.path} ({', '.join(found.splits)})") for found in one.hub),
        *(
            (("evidence", f"a corpus of it: python -m questions evidence {name} --out FILE.jsonl"),)
            if one.documents
            else ()
        ),
        ("in a config", f"{{benchmark: {name}, split: {one.default_split}, sample: 500}}"),
        *((f"{split} here", _found(one, split)) for split in one.splits),
    ):
        table.add_row(heading, escape(text))
    console = wide_console(WIDTH)
    console.print(f"[bold]{escape(one.title)}[/]")
    print_table(table, wraps=True)


def print_leaks(config: Config) -> None:
    """Print how many questions every two splits of a config share, and which."""
    table = Table(box=SIMPLE_HEAD)
    for heading in ("of", "in", "questions", "word for word", f"nearly (>= {config.questions.leakage.near:g})"):
        table.add_column(heading, justify="left" if heading in ("of", "in") else "right")
    table.add_column("sharing a gold document", justify="right")
    found = leakage_between_splits(config)
    for overlap in found:
        leaks = overlap.leaks
        counts = (len(leaks.exact), len(leaks.near), len(leaks.documents))
        table.add_row(
            overlap.second,
            overlap.first,
            str(overlap.count),
            *(f"[red]{count}[/]" if count else "0" for count in counts),
        )
    console = wide_console(WIDTH)
    print_table(table)
    for overlap in found:
        for line in overlap.shown(overlap.leaks.questions):
            console.print(line, markup=False)


def _config(one: Benchmark, split: str) -> SplitConfig:
    return SplitConfig(benchmark=one.name, split=split)


def _found(one: Benchmark, split: str) -> str:
    """What is here of a split: how much of it, of what kinds, and the form of its ids."""
    if one.find(_config(one, split)) is None:
        return "no"
    try:
        found = load_split(_config(one, split))
    except UserError as error:
        return f"cannot be read: {error}"
    questions = found.questions
    gold = sum(bool(question.gold_ids or question.gold_titles) for question in questions)
    kinds = Counter(question.kind for question in questions if question.kind)
    shown = ", ".join(f"{kind} {count}" for kind, count in kinds.most_common(8))
    labels = Counter(question.label for question in questions if question.label)
    named = ", ".join(f"{label} {count}" for label, count in labels.most_common())
    more = f", {len(kinds) - 8} more" if len(kinds) > 8 else ""
    return (
        f"{found.source}: {len(questions)} questions, {gold} with gold passages; "
        f"{f'labels: {named}; ' if labels else ''}{f'kinds: {shown}{more}; ' if kinds else ''}"
        f"first id {questions[0].id}"
    )
