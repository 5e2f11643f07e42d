"""Which adapters were promoted, and so which one a run stands by; `rounds.promotion` decides it."""

from __future__ import annotations

import sys

from pydantic import ValidationError

from ratchet.core.config import Config
from ratchet.core.files import read_record
from ratchet.core.runfolder import RoundFolder, RunFolder
from ratchet.core.selection import Selection
from ratchet.rounds.records import Promotion

SPLIT = "dev"


def read_promotion(folder: RoundFolder) -> Promotion | None:
    """The decision on a round; None before there is one."""
    return read_record(folder.promotion, Promotion, "delete it, and `ratchet selftrain` decides again")


def read_promotions(run: RunFolder) -> list[Promotion]:
    """The decisions that stand, in the order of the rounds.

    Where an earlier round was done again, those after it do not: their adapters were compared with, and made from, one
    that is no longer promoted.
    """
    standing: list[Promotion] = []
    parent = "base"
    for promotion in filter(None, map(read_promotion, run.rounds())):
        if promotion.parent != parent:
            break
        standing.append(promotion)
        parent = promotion.candidate if promotion.promoted else parent
    return standing


def last_promoted(run: RunFolder, before: int) -> int | None:
    """The last round, before round `before`, whose adapter was promoted; None where the base model stands."""
    return max((p.round for p in read_promotions(run) if p.promoted and p.round < before), default=None)


def best_round(run: RunFolder) -> int | None:
    """The round whose adapter a run stands by: the last promoted one, or where nothing was promoted, the last that was
    trained; None where no adapter was."""
    promoted = last_promoted(run, before=sys.maxsize)
    if promoted is not None:
        return promoted
    return max((folder.number for folder in run.rounds() if folder.adapter.is_dir()), default=None)


def last_round(config: Config) -> int:
    """The run's last round: `count`, or with `until_flat` the one that was decided last, if it promoted nothing."""
    decided = read_promotions(RunFolder(config.folder)) if config.rounds.until_flat else []
    return decided[-1].round if decided and not decided[-1].promoted else config.rounds.count


def why_it_ended(config: Config) -> str:
    """A sentence where `until_flat` ended the run before round `count`; else empty."""
    number, most = last_round(config), config.rounds.count
    if number >= most:
        return ""
    return f"The run ended after round {number} of at most {most}, which promoted nothing (rounds.until_flat)."


def kept_any(folder: RoundFolder) -> bool:
    """Whether a round's selection kept a trajectory to train on; True before there is one that can be read."""
    try:
        return bool(Selection.model_validate_json(folder.selection.read_bytes()).kept)
    except (OSError, ValidationError):
        return True
