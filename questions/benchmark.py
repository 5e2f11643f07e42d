"""Benchmarks by name: `questions/benchmarks/<name>.py`, or code outside (core/plugins.py). Adding one is one file.

A benchmark is a module with

    TITLE, ABOUT, LICENCE, SOURCE, GOLD    for people: its name, what it is, terms, where from, which gold it has
    SPLITS                                 by split, the file names that people have it under, below its folder
    DEFAULT_SPLIT                          the split that it is usually scored on
    HUB                                    where the `datasets` library finds it, the best place first; optional
    FORMATS                                how its rows are read (questions/formats.py); ours can always be read

and, where a file beside the questions completes them, `beside(folder)`, which gives a function (row, fields) ->
fields. Where they are needed (the verification benchmarks have examples):

    rows(placed, split, folder)   (place, row) of a split, out of the (place, row) of its file: chooses rows, or takes
                                  them apart; `folder` is the file's, None on the hub
    documents(row)                the evidence texts that a row carries, for a corpus (questions/evidence.py)
    EVIDENCE                      files beside the questions whose rows `documents` takes, the best first, where it is
                                  not the rows of the questions themselves

The names that FlashRAG and the hub use (`<name>/<split>.jsonl`, `<split>.jsonl`, `<split>.parquet`...) need
not be listed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ratchet.core.config import HUB as HUB_PATH
from ratchet.core.config import SplitConfig
from ratchet.core.errors import UserError, did_you_mean
from ratchet.core.plugins import Plugin, load_plugin, short_name
from ratchet.questions.formats import RATCHET, Format, Row

REQUIRED = ("TITLE", "ABOUT", "LICENCE", "SOURCE", "GOLD", "SPLITS", "DEFAULT_SPLIT", "FORMATS")
FieldCompleter = Callable[[Row, Row], Row]
PlacedRow = tuple[str, Row]
"""A row and where it is from, which every error about it names."""


@dataclass(frozen=True)
class Document:
    """A piece of evidence that a benchmark carries. Pieces of one id are parts of one document."""

    id: str
    text: str
    title: str = ""


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

    name: str
    """As a config names it."""
    title: str
    about: str
    licence: str
    source: str
    gold: str
    splits: dict[str, tuple[str, ...]]
    default_split: str
    hub: tuple[HubDataset, ...]
    formats: tuple[Format, ...]
    beside: Callable[[Path], FieldCompleter] | None
    rows: Callable[[Iterable[PlacedRow], str, Path | None], Iterator[PlacedRow]] | None
    documents: Callable[[Row], Iterable[Document]] | None
    evidence: tuple[str, ...]
    plugin: Plugin

    def split_rows(self, placed: Iterable[PlacedRow], split: str, folder: Path | None) -> Iterator[PlacedRow]:
        """The rows of a split, out of those of its file. Raises UserError."""
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
    plugin = load_plugin("benchmarks", name, REQUIRED, "benchmark")
    module = plugin.module
    with plugin.errors("is not a benchmark as questions/benchmark.py describes it"):
        made = Benchmark(
            name=name,
            title=str(module.TITLE),
            about=str(module.ABOUT),
            licence=str(module.LICENCE),
            source=str(module.SOURCE),
            gold=str(module.GOLD),
            splits=module.SPLITS,
            default_split=module.DEFAULT_SPLIT,
            hub=getattr(module, "HUB", ()),
            formats=(*module.FORMATS, RATCHET),
            beside=getattr(module, "beside", None),
            rows=getattr(module, "rows", None),
            documents=getattr(module, "documents", None),
            evidence=getattr(module, "EVIDENCE", ()),
            plugin=plugin,
        )
        if not isinstance(made.splits, Mapping) or made.default_split not in made.splits:
            raise TypeError("SPLITS has no list of file names for DEFAULT_SPLIT")
        if not all(isinstance(known, Format) for known in made.formats):
            raise TypeError("FORMATS holds what is not a Format")
    return made
