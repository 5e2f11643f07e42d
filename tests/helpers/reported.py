"""The page of a run that a test made."""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any

from commands.report import run_settings
from ratchet.config import Config
from ratchet.runfolder import RoundFolder
from report.gather import Gathered, gather
from report.page import render


def gathered(config: Config, folder: RoundFolder, max_questions: int = 500) -> Gathered:
    """The records of a round."""
    return gather(run_settings(config), folder, max_questions)


def unpack(text: str) -> Any:
    """What `pack` in report/view.py made of JSON."""
    return json.loads(zlib.decompress(base64.b64decode(text, validate=True)))


def page(config: Config, folder: RoundFolder, max_questions: int = 500) -> str:
    """The page of a round as HTML."""
    return render(run_settings(config), gathered(config, folder, max_questions))
