"""Scores on disk: one file per score name and settings, and a record of which settings are the current ones.

A scoring folder holds `<name>-<digest of the settings>.jsonl` with Score records, `settings.json`, and under `judge/`
the replies to scores that are not finished yet. Scores of another judge, other runs or another prompt have another
digest, so they are never taken for the current ones.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from ratchet.core.errors import UserError
from ratchet.core.files import SegmentFile, read_json_file, segment_files, write_json
from ratchet.core.plugins import short_name
from ratchet.core.records import Score, content_key
from ratchet.rewards.reward import Settings, load_reward


def score_file(folder: Path, name: str, settings: Settings) -> Path:
    """The file of a score under these settings."""
    return folder / f"{short_name(name)}-{content_key(settings)[:12]}.jsonl"


def score_segments(folder: Path, name: str, settings: Settings) -> list[SegmentFile]:
    """The files that hold a score under these settings: that of a fork's source, and the folder's own."""
    file = score_file(folder, name, settings).name
    return [segment for segment in segment_files(folder) if segment.path.name == file]


def call_log_file(folder: Path, name: str, settings: Settings) -> Path:
    """The file of the judge's replies to unfinished scores."""
    return folder / "judge" / score_file(folder, name, settings).name


def kept_log_file(folder: Path, name: str, settings: Settings) -> Path:
    """The file of the judge's replies to scores whose number of runs may differ, whatever that number is."""
    return call_log_file(folder, name, settings | {"runs": "any"})


def read_scores(folder: Path, name: str, settings: Settings, wanted: Collection[str]) -> dict[str, Score]:
    """Stored scores of the wanted trajectories, by trajectory key."""
    # The file of a reward of one's own may have been named by another path when it was stored.
    return {
        score.trajectory: score if score.name == name else score.model_copy(update={"name": name})
        for file in score_segments(folder, name, settings)
        for score in (line.parse(data, Score) for line, data in file.lines())
        if score.trajectory in wanted
    }


def current_settings(folder: Path) -> dict[str, Settings]:
    """By score name, the settings under which that score was last computed."""
    path = folder / "settings.json"
    try:
        data = read_json_file(path)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path}: cannot be read ({error}); delete it and score again; the scores stay on disk"
        ) from error
    return dict(data)


def record_settings(folder: Path, name: str, settings: Settings) -> None:
    """Store the settings as the current ones of this score."""
    known = current_settings(folder)
    if known.get(name) != settings:
        write_json(folder / "settings.json", {**known, name: settings})


def stored_scores(folder: Path, wanted: Collection[str]) -> dict[tuple[str, str], Score]:
    """Every stored score under current settings of the wanted trajectories, by (trajectory key, score name)."""
    return {
        (key, name): score
        for name, settings in current_settings(folder).items()
        for key, score in read_scores(folder, name, settings, wanted).items()
    }


def current_scores(folder: Path, wanted: Collection[str]) -> dict[tuple[str, str], Score]:
    """The stored scores, without those by an earlier version of a file of one's own."""
    earlier = {name for name, settings in current_settings(folder).items() if _is_earlier(name, settings)}
    return {at: score for at, score in stored_scores(folder, wanted).items() if at[1] not in earlier}


def _is_earlier(name: str, settings: Settings) -> bool:
    try:
        reward = load_reward(name)
    except UserError:  # no score of this config: its file is gone
        return False
    # A rule's settings have its version so, a judged score's under "prompts".
    return reward.is_outside and reward.version != settings.get("version", settings.get("prompts"))
