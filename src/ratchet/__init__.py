"""Fine-tune open agent models on their own best trajectories. The names in `__all__` are the public ones.

They are imported when they are first used (PEP 562), so that `ratchet --help` loads neither torch nor pydantic.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ratchet.commands.experiment import Experiment
    from ratchet.core.config import load_config
    from ratchet.core.records import Conversation, Passage, Question, Score, Selection, Trajectory
    from ratchet.report.run_table import read_run
    from ratchet.retrieval.opening import open_index
    from ratchet.sampling.play import play
else:
    _HOMES = {
        "Conversation": "core.records",
        "Experiment": "commands.experiment",
        "Passage": "core.records",
        "Question": "core.records",
        "Score": "core.records",
        "Selection": "core.records",
        "Trajectory": "core.records",
        "load_config": "core.config",
        "open_index": "retrieval.opening",
        "play": "sampling.play",
        "read_run": "report.run_table",
    }

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"ratchet.{_HOMES[name]}"), name)


__all__ = [
    "Conversation",
    "Experiment",
    "Passage",
    "Question",
    "Score",
    "Selection",
    "Trajectory",
    "load_config",
    "open_index",
    "play",
    "read_run",
]
