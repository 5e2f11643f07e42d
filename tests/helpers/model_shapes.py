"""The shapes of real models, as their public config.json give them: no weights, so folders of a few hundred bytes."""

import json
from pathlib import Path
from typing import Any

from ratchet.inference.footprint import PUBLISHED

QWEN25_7B = PUBLISHED["Qwen/Qwen2.5-7B-Instruct"]
QWEN25_14B = PUBLISHED["Qwen/Qwen2.5-14B-Instruct"]
FALCON3_10B = PUBLISHED["tiiuae/Falcon3-10B-Instruct"]


def save_shape(folder: Path, shape: dict[str, Any]) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(shape))
    return str(folder)
