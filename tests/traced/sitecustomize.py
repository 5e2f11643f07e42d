"""Put this folder on PYTHONPATH, and every Python process writes which of the project's files it executed functions of.

TRACE_FOLDER takes one JSON file for each process: {"argv": [...], "files": [...]}. TRACE_ROOT is the project's root.
"""

import atexit
import inspect
import json
import os
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

executed: set[str] = set()


def note(frame: FrameType, event: str, argument: Any) -> None:
    if event == "call" and frame.f_code.co_flags & inspect.CO_OPTIMIZED:  # a function, not a module or a class body
        executed.add(frame.f_code.co_filename)


def write() -> None:
    sys.setprofile(None)
    root = os.environ["TRACE_ROOT"] + os.sep
    files = sorted(
        file.removeprefix(root).removeprefix("src/ratchet/") for file in list(executed) if file.startswith(root)
    )
    if files:
        record = json.dumps({"argv": sys.argv, "files": files})
        (Path(os.environ["TRACE_FOLDER"]) / f"{os.getpid()}.json").write_text(record)


if "TRACE_FOLDER" in os.environ:
    atexit.register(write)
    sys.setprofile(note)
    threading.setprofile(note)
