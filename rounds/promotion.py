"""Whether a round's adapter takes its parent's place."""

from __future__ import annotations

from pydantic import ValidationError

from ratchet.errors import UserError
from ratchet.runfolder import RoundFolder, RunFolder
from rounds.records import Promotion


def read_promotion(folder: RoundFolder) -> Promotion | None:
    """What was decided on a round; None before."""
    try:
        return Promotion.model_validate_json(folder.promotion.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise UserError(
            f"{folder.promotion}: cannot read ({error}); delete it, and `python selftrain.py` decides again"
        ) from error


def read_promotions(run: RunFolder) -> list[Promotion]:
    """What was decided, in the order of the rounds."""
    folders = (RoundFolder(path) for path in run.path.glob("round-*"))
    found = [promotion for folder in folders if (promotion := read_promotion(folder)) is not None]
    return sorted(found, key=lambda promotion: promotion.round)
