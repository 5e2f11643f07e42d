"""The page of a run that a test made."""

import base64
import json
import re
import zlib
from typing import Any

from ratchet.core.config import Config
from ratchet.core.runfolder import RoundFolder
from ratchet.report.gather import Gathered, gather
from ratchet.report.page import render


def gathered(config: Config, folder: RoundFolder, max_questions: int = 500) -> Gathered:
    """The records of a round."""
    return gather(config, folder, max_questions)


def unpack(text: str) -> Any:
    """What `pack` in report/view.py made of JSON."""
    return json.loads(zlib.decompress(base64.b64decode(text, validate=True)))


def whole_text(html: str) -> str:
    """A page's HTML, and behind it what it holds packed, as JSON."""
    packed = re.findall(r'<script type="text/plain" id="[^"]+">([^<]+)</script>', html)
    assert packed, "the page holds nothing packed"
    return html + "".join(json.dumps(unpack(text), ensure_ascii=False) for text in packed)


def page(config: Config, folder: RoundFolder, max_questions: int = 500) -> str:
    """The page of a round as HTML."""
    return render(config, gathered(config, folder, max_questions))
