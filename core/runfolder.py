"""The run folder: where every stage's records live; `questions/manifest.py` opens it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ratchet.core.config import TrainedControl
from ratchet.core.errors import UserError
from ratchet.core.files import REFERENCES, SegmentFile, open_regular, read_record
from ratchet.core.records import Selection

ROUND = "round-"
SPLITS = ("train", "dev", "test")


class _Below:
    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, folder: RoundFolder | RunFolder, kind: type) -> Path:
        return folder.path / self.name


@dataclass(frozen=True)
class RoundFolder:
    """runs/<name>/round-<n>: trajectories, scores, selection, rows, adapter and evaluation of one round.

    Below it, control-<name> has the rows, training and adapter of a control.
    """

    path: Path
    trained_control: TrainedControl | None = None
    """The control that is trained here; None for the round itself."""

    @property
    def trajectories(self) -> Path:
        """The round's, of which a random selection takes others; with gold answers they are others themselves."""
        return (self.path.parent if self.trained_control == "random" else self.path) / "trajectories"

    scores = _Below("scores")
    selection = _Below("selection.json")
    rows = _Below("rows.parquet")
    training = _Below("training")
    adapter = _Below("adapter")
    candidate = _Below("training/candidate")
    """The adapter that training leaves where the reward on dev is to choose (training.choose_by)."""
    choice = _Below("choice.json")
    """The adapter that was chosen by reward on dev."""
    evaluation = _Below("evaluation")
    promotion = _Below("promotion.json")
    """The decision whether the round's adapter took its parent's place."""

    @property
    def number(self) -> int:
        return int((self.path.parent if self.trained_control else self.path).name.removeprefix(ROUND))

    def control(self, name: TrainedControl) -> RoundFolder:
        """Return the folder of what is trained on other data than the selection (evaluation.controls)."""
        return RoundFolder(self.path / f"control-{name}", name)

    def read_selection(self) -> Selection | None:
        """Read the selection; None before trajectories were selected. Raises UserError for a damaged file."""
        return read_record(self.selection, Selection, "make it again with `ratchet score`")


@dataclass(frozen=True)
class RunFolder:
    """runs/<name>: the folder with every record of an experiment."""

    path: Path

    config = _Below("config.yaml")
    manifest = _Below("manifest.json")
    overrides = _Below("overrides.json")
    """The `--set` that it was made with, which later commands need not repeat."""
    report = _Below("report.html")
    ledger = _Below("ledger.jsonl")
    """The file with the inputs and outputs of every finished stage, by content."""
    nuggets = _Below("nuggets")
    """Nuggets drawn from reference answers, shared by every round and stage."""

    @property
    def has_trajectories(self) -> bool:
        """Return whether anything was sampled, for training or in an evaluation."""
        patterns = (f"{ROUND}*/trajectories/*.jsonl", "arms/**/*.jsonl", f"{ROUND}*/trajectories/{REFERENCES}")
        return any(path.stat().st_size for pattern in patterns for path in self.path.glob(pattern))

    def round(self, number: int) -> RoundFolder:
        return RoundFolder(self.path / f"{ROUND}{number}")

    def rounds(self) -> list[RoundFolder]:
        """Return the rounds that are there, in order."""
        numbers = (path.name.removeprefix(ROUND) for path in self.path.glob(f"{ROUND}*"))
        return [self.round(number) for number in sorted(int(n) for n in numbers if n.isdecimal())]


def file_digest(path: Path) -> str:
    """Return the sha256 of a file's bytes."""
    try:
        with open_regular(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"{path}: cannot read ({error.strerror}); check the path in the config") from error


def segment_digest(file: SegmentFile) -> str:
    """Return the sha256 of a segment's bytes; of one that a folder refers to, as it was then."""
    return file.referred.digest if file.referred else file_digest(file.path)


def path_digest(path: Path) -> str:
    """Return the sha256 of a file's bytes, or of the names and digests of a folder's files."""
    if not path.is_dir():
        return file_digest(path)
    return tree_digest(path, sorted(child for child in path.rglob("*") if child.is_file()))


def tree_digest(folder: Path, files: Iterable[Path]) -> str:
    """Return the sha256 of the names below the folder and of the digests of some of its files."""
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.relative_to(folder).as_posix()}\0{file_digest(file)}\n".encode())
    return digest.hexdigest()
