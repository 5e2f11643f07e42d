"""Benchmarks by name: modules in `questions/benchmarks/`, or code outside (core/plugins.py). Adding one is one file.

A module declares its benchmark as BENCHMARK, or several by name as BENCHMARKS. The names that FlashRAG and the hub use
(`<name>/<split>.jsonl`, `<split>.jsonl`, `<split>.parquet`...) need not be listed among the files of a split, and
questions in our own format can always be read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ratchet.core.config import HUB as HUB_PATH
from ratchet.core.config import SplitConfig
from ratchet.core.errors import UserError, did_you_mean
from ratchet.core.plugins import Plugin, load_plugin, short_name
from ratchet.core.records import Document
from ratchet.questions.formats import RATCHET, Format, Row

FieldCompleter = Callable[[Row, Row], Row]
PlacedRow = tuple[str, Row]
"""A row and where it is from, which every error about it names."""


@dataclass(frozen=True)
class HubDataset:
    """A data set of the hub."""

    path: str
    config: str | None
    splits: dict[str, str]
    """Our name of a split to the hub's."""


@dataclass(frozen=True)
class Benchmark:
    """A benchmark as its module declares it."""

    title: str
    about: str
    licence: str
    source: str
    """Where to get it."""
    gold: str
    """Which gold documents it has."""
    splits: Mapping[str, tuple[str, ...]]
    """By split, the file names that people have it under, below the benchmark's folder."""
    default_split: str
    """The split that it is usually scored on."""
    formats: tuple[Format, ...]
    """Formats of its rows: a row is read in the first one whose fields it has."""
    hub: tuple[HubDataset, ...] = ()
    """Where the `datasets` library finds it, the best place first."""
    evidence: tuple[str, ...] = ()
    """Files beside the questions whose rows `documents` takes, the best first, where it is not the questions' rows."""
    beside: Callable[[Path], FieldCompleter] | None = None
    """For the folder of the questions, gives a function (row, fields) -> fields, which completes them from a file
    there."""
    rows: Callable[[Iterable[PlacedRow], str, Path | None], Iterator[PlacedRow]] | None = None
    """Chooses a split's rows among the (place, row) of its file, or takes them apart: (rows, split, folder or None)."""
    documents: Callable[[Row], Iterable[Document]] | None = None
    """The evidence texts that a row carries, for a corpus (questions/evidence.py)."""
    name: str = ""
    """As a config names it: filled in where it is loaded, as is `plugin`."""
    plugin: Plugin = None  # type: ignore[assignment]

    def split_rows(self, placed: Iterable[PlacedRow], split: str, folder: Path | None) -> Iterator[PlacedRow]:
        """Choose the rows of a split among those of its file. Raises UserError."""
        if self.rows is None:
            yield from placed
            return
        with self.plugin.errors("rows failed"):
            for place, row in self.rows(placed, split, folder):
                if not isinstance(place, str) or not isinstance(row, dict):
                    raise TypeError(f"it gave {type(place).__name__} and {type(row).__name__}, not a place and a row")
                yield place, row

    def split(self, config: SplitConfig) -> str:
        """The split that a config asks for. Raises UserError."""
        if config.split and config.split not in self.splits:
            raise UserError(
                f"split: the benchmark {self.name!r} has no {config.split!r}{did_you_mean(config.split, self.splits)}"
            )
        return config.split or self.default_split

    def file_names(self, split: str) -> list[str]:
        """The file names that a split is looked for under, in this order; each may also end in .gz."""
        short = short_name(self.name)
        common = (f"{short}/{split}.jsonl", f"{short}_{split}.jsonl", f"{split}.jsonl", f"{split}.parquet")
        return list(dict.fromkeys((*self.splits[split], *common)))

    def folder(self, config: SplitConfig) -> Path:
        return Path(config.path or f"data/{short_name(self.name)}")

    def find(self, config: SplitConfig) -> Path | None:
        """The file of the split that a config asks for; None where it is not there."""
        place = self.folder(config)
        return place if place.is_file() else first_file(place, self.file_names(self.split(config)))

    def hub_set(self, config: SplitConfig) -> HubDataset:
        """The data set that `path: hub`, or `path: hub:NAME`, asks for. Raises UserError."""
        split, name = self.split(config), config.path.removeprefix(HUB_PATH).removeprefix(":")
        fitting = [data_set for data_set in self.hub if split in data_set.splits]
        if not fitting:
            raise UserError(f"path: {config.path}: the hub has no {split!r} of {self.name!r} that we know of")
        for data_set in fitting:
            if name in ("", data_set.path):
                return data_set
        known = did_you_mean(name, (data_set.path for data_set in fitting))
        raise UserError(f"path: {config.path}: no such data set of {self.name!r}{known}")


def first_file(folder: Path, names: Iterable[str]) -> Path | None:
    """The first of the names that lies in a folder, each as it is or as .gz."""
    paths = (folder / f"{name}{ending}" for name in names for ending in ("", ".gz"))
    return next((path for path in paths if path.is_file()), None)


def load_benchmark(name: str) -> Benchmark:
    """The benchmark of a name. Raises UserError."""
    plugin = load_plugin("benchmarks", name, (), "benchmark")
    declared = plugin.declared("BENCHMARK")
    if not isinstance(declared, Benchmark):
        raise UserError(
            f"benchmark: {plugin.module.__file__ or name} declares no benchmark: write at its end BENCHMARK = "
            "Benchmark(...), with Benchmark from ratchet.questions.benchmark (docs/guides/extend.md)"
        )
    with plugin.errors("is not a benchmark as questions/benchmark.py describes it"):
        if not isinstance(declared.splits, Mapping) or declared.default_split not in declared.splits:
            raise TypeError("its splits have no list of file names for the default split")
        if not all(isinstance(known, Format) for known in declared.formats):
            raise TypeError("its formats hold what is not a Format")
    return replace(declared, name=name, formats=(*declared.formats, RATCHET), plugin=plugin)
