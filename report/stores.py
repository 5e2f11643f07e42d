"""The stores of trajectories below a run folder, as `watch` and the exports name them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ratchet.files import read_json_file
from sampling.store import TrajectoryStore

PATTERNS = ("round-*/trajectories", "*/round-*/trajectories", "arms/*/*/*", "*/arms/*/*/*")
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

    @property
    def rows(self) -> Path | None:
        """The token rows of the trajectories; None for an arm."""
        return self.selection.parent / "rows.parquet" if self.selection else None


def stored_passes(run: Path) -> list[StoredPass]:
    """Every store of a run that is there now: rounds in their order, then arms."""
    folders = sorted({path for pattern in PATTERNS for path in run.glob(pattern) if path.is_dir()}, key=_order)
    names = _arm_names(run)
    return [_stored_pass(run, folder, names) for folder in folders]


def _order(folder: Path) -> tuple[bool, int, str]:
    sampled = folder.name == "trajectories"
    number = folder.parent.name.removeprefix("round-")
    return not sampled, int(number) if sampled and number.isdecimal() else 0, str(folder)


def _stored_pass(run: Path, folder: Path, names: dict[Path, str]) -> StoredPass:
    parts = folder.relative_to(run).parts
    if folder.name == "trajectories":
        member = f"{parts[0]}, " if len(parts) == 3 else ""
        number = parts[-2].removeprefix("round-")
        title, split, scores, selection = f"{member}round {number}", "train", "scores", "selection.json"
        return StoredPass(
            "/".join(parts), title, split, TrajectoryStore(folder), folder.parent / scores, folder.parent / selection
        )
    split, system, policy = parts[-3:]
    member = f"{parts[0]}, " if len(parts) == 5 else ""
    arm = names.get(folder, f"{system.rpartition('-')[0] or system} {policy[:12]}")
    return StoredPass(
        "/".join(parts), f"{member}{split}: {arm}", split, TrajectoryStore(folder), folder / "scores", None
    )


def _arm_names(run: Path) -> dict[Path, str]:
    """By folder, the name that the tables give an arm; of several rounds the last one's."""
    found: dict[Path, str] = {}
    for path in sorted(run.glob("**/round-*/evaluation/arms-*.json")):
        record = read_json(path)
        arms = record.get("arms", {}) if isinstance(record, dict) else {}
        base = path.parents[2]
        found |= {base / place: "trained" if name == "adapter" else name for name, place in arms.items()}
    return found


def read_json(path: Path) -> Any:
    """The value of a JSON file; None where it is not there or is being replaced."""
    try:
        return read_json_file(path)
    except (OSError, ValueError):
        return None
