"""The stores of trajectories below a run folder, as the exports name them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ratchet.files import read_json_file
from sampling.store import TrajectoryStore

SAMPLED = ("round-*/trajectories", "*/round-*/trajectories")
EVALUATED = ("arms/*/*/*", "*/arms/*/*/*")
"""Where stores lie: in the run folder, and in those of its members."""


@dataclass(frozen=True)
class StoredPass:
    """One store: a round's sampling, or an arm of an evaluation."""

    name: str
    """Its folder below the run folder."""
    title: str
    split: str
    """The question set that was asked, 'train' for a round's sampling."""
    store: TrajectoryStore
    scores: Path
    selection: Path | None
    """The round's selection; None for an arm."""

    @property
    def planned_at(self) -> float:
        """When what it holds was planned, in seconds since 1970: the only time of day that is known of it."""
        return self.store.manifest_path.stat().st_mtime


def stored_passes(run: Path) -> list[StoredPass]:
    """Every store of a run that is there now: rounds in their order, then arms."""
    passes = []
    for folder in sorted((path for pattern in SAMPLED for path in run.glob(pattern)), key=_number):
        title = f"{_member(run, folder, 2)}round {folder.parent.name.removeprefix('round-')}"
        place, scores, selection = _name(run, folder), folder.parent / "scores", folder.parent / "selection.json"
        passes.append(StoredPass(place, title, "train", TrajectoryStore(folder), scores, selection))
    names = _arm_names(run)
    for folder in sorted(path for pattern in EVALUATED for path in run.glob(pattern) if path.is_dir()):
        split, system, policy = folder.parts[-3:]
        arm = names.get(folder, f"{system.rpartition('-')[0] or system} {policy[:12]}")
        title = f"{_member(run, folder, 4)}{split}: {arm}"
        passes.append(StoredPass(_name(run, folder), title, split, TrajectoryStore(folder), folder / "scores", None))
    return passes


def _number(folder: Path) -> tuple[int, str]:
    number = folder.parent.name.removeprefix("round-")
    return int(number) if number.isdecimal() else 0, str(folder)


def _name(run: Path, folder: Path) -> str:
    return folder.relative_to(run).as_posix()


def _member(run: Path, folder: Path, own_parts: int) -> str:
    parts = folder.relative_to(run).parts
    return f"{parts[0]}, " if len(parts) > own_parts else ""


def _arm_names(run: Path) -> dict[Path, str]:
    """By folder, the name that the tables give an arm; of several rounds the last one's."""
    names: dict[Path, str] = {}
    for path in sorted(run.glob("**/round-*/evaluation/arms-*.json")):
        for name, place in read_json_file(path)["arms"].items():
            names[path.parents[2] / place] = "trained" if name == "adapter" else name
    return names
