"""The inputs and outputs of a stage and their digests: equal content has an equal digest, wherever it lies.

A file's digest is computed once and kept with its size and time of change (`.digests.json` in the run folder), so
checking gigabytes again costs one stat per file.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pydantic import TypeAdapter, ValidationError

from ratchet.core.config import Config, IndexConfig, SplitConfig
from ratchet.core.files import SegmentFile, segment_files, write_json
from ratchet.core.records import content_key
from ratchet.core.runfolder import RoundFolder, RunFolder, file_digest
from ratchet.evaluation.arms import arm_store, read_arms
from ratchet.inference.adapters import CONFIG, WEIGHTS, adapter_digest, is_adapter
from ratchet.questions.load import is_there, load_split
from ratchet.retrieval.layout import index_digest
from ratchet.sampling.store import TrajectoryStore
from ratchet.training.checkpoints import EvaluatedAdapters

KNOWN = TypeAdapter(dict[str, tuple[int, int, str]])
"""By path: its size, its time of change, and its digest; of an adapter's folder, the sums of those of its files."""


class Digests:
    """Digests of files, remembered for as long as a file's size and time of change stay."""

    def __init__(self, run: RunFolder) -> None:
        self.path = run.path / ".digests.json"
        self._known: dict[str, tuple[int, int, str]] = {}
        self._fresh = False
        self._questions: dict[tuple[SplitConfig, int], str] = {}
        with contextlib.suppress(OSError, ValidationError):  # a file that cannot be read is rebuilt
            self._known = KNOWN.validate_json(self.path.read_bytes())

    def file(self, path: Path) -> str | None:
        """The digest of a file; None where there is no such file."""
        try:
            status = path.stat()
        except OSError:
            return None
        return self._remembered(path, status.st_size, status.st_mtime_ns, file_digest)

    def adapter(self, folder: Path) -> str:
        """The digest of an adapter's settings and weights."""
        files = [(folder / name).stat() for name in (CONFIG, WEIGHTS)]
        size, changed = sum(status.st_size for status in files), sum(status.st_mtime_ns for status in files)
        return self._remembered(folder, size, changed, adapter_digest)

    def _remembered(self, path: Path, size: int, changed: int, digest_of: Callable[[Path], str]) -> str:
        name = str(path.absolute())
        known = self._known.get(name)
        if known is None or known[:2] != (size, changed):
            known = self._known[name] = (size, changed, digest_of(path))
            self._fresh = True
        return known[2]

    def questions(self, split: SplitConfig, seed: int) -> str:
        if (split, seed) not in self._questions:
            self._questions[split, seed] = load_split(split, seed).digest
        return self._questions[split, seed]

    def save(self) -> None:
        if self._fresh:
            write_json(self.path, self._known)
            self._fresh = False


class Artefact(Protocol):
    """Something that a stage reads or writes."""

    def digest(self, digests: Digests) -> str | None:
        """The digest of its content; None where it does not exist."""


@dataclass(frozen=True)
class FixedDigest:
    """A digest that is known already, such as one of settings."""

    value: str

    def digest(self, digests: Digests) -> str | None:
        return self.value


@dataclass(frozen=True)
class Questions:
    """The chosen questions of some splits."""

    splits: tuple[SplitConfig, ...]
    seed: int

    def digest(self, digests: Digests) -> str | None:
        if not all(map(is_there, self.splits)):
            return None
        by_split = [digests.questions(split, self.seed) for split in self.splits]
        return by_split[0] if len(by_split) == 1 else content_key("questions", by_split)


@dataclass(frozen=True)
class Index:
    """A search index."""

    config: IndexConfig

    def digest(self, digests: Digests) -> str | None:
        return index_digest(self.config)


@dataclass(frozen=True)
class File:
    """One file."""

    path: Path

    def digest(self, digests: Digests) -> str | None:
        return digests.file(self.path)


@dataclass(frozen=True)
class Segments:
    """The JSONL segments of a folder. A fork's have the digest of those that it refers to, where it has no others."""

    folder: Path

    def files(self) -> Iterable[SegmentFile]:
        return segment_files(self.folder)

    def digest(self, digests: Digests) -> str | None:
        by_file = [
            (file.path.name, file.referred.digest if file.referred else digests.file(file.path))
            for file in self.files()
        ]
        return content_key("lines", by_file) if by_file else None


@dataclass(frozen=True)
class Files:
    """Files of a folder, by patterns below it."""

    folder: Path
    patterns: tuple[str, ...]

    def digest(self, digests: Digests) -> str | None:
        files = sorted({path for pattern in self.patterns for path in self.folder.glob(pattern)})
        by_file = [(path.relative_to(self.folder).as_posix(), digests.file(path)) for path in files]
        return content_key("lines", by_file) if by_file else None


@dataclass(frozen=True)
class Arms:
    """The trajectories of the arms that a round was evaluated with, by which arms they are: other rounds and sweeps use
    the same arms, and may sample more of them."""

    folder: RoundFolder
    splits: tuple[str, ...]

    def files(self) -> Iterable[SegmentFile]:
        return {file.path: file for store in self.stores().values() for file in store.segments}.values()

    def digest(self, digests: Digests) -> str | None:
        stores = self.stores()
        if not stores or not all(store.segments for store in stores.values()):
            return None
        run = self.folder.path.parent
        places = {name: store.folder.relative_to(run).as_posix() for name, store in stores.items()}
        return content_key("arms", places)

    def stores(self) -> dict[str, TrajectoryStore]:
        """The stores of the arms, by split and name."""
        arms = {split: read_arms(self.folder, split) for split in self.splits}
        return {f"{split}/{name}": store for split, stores in arms.items() for name, store in stores.items()}


@dataclass(frozen=True)
class Adapter:
    """A LoRA folder, by what it does: the same digest as a trajectory's policy."""

    folder: Path

    def digest(self, digests: Digests) -> str | None:
        return digests.adapter(self.folder) if is_adapter(self.folder) else None


@dataclass(frozen=True)
class Candidates:
    """The evaluated adapters of a training, among which a reward on dev chooses."""

    folder: RoundFolder

    def digest(self, digests: Digests) -> str | None:
        adapters = EvaluatedAdapters(self.folder.training).all()
        by_step = {step: digests.adapter(path) for step, path in adapters.items()}
        return content_key("candidates", by_step) if (self.folder.candidate / WEIGHTS).exists() else None


@dataclass(frozen=True)
class CandidateArms:
    """The trajectories of all candidates on dev, by which arms they are."""

    config: Config
    folder: RoundFolder

    def digest(self, digests: Digests) -> str | None:
        config, adapters = self.config, EvaluatedAdapters(self.folder.training).all().values()
        stores = [arm_store(config, "dev", config.system, digests.adapter(path)) for path in adapters]
        if not stores or not all(store.segments for store in stores):
            return None
        return content_key("arms", [store.folder.relative_to(config.folder).as_posix() for store in stores])
