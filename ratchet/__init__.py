"""What every package shares: records, configuration, durable files, the run folder, progress and errors."""

from typing import TYPE_CHECKING

from ratchet.lazy import lazy_attributes

if TYPE_CHECKING:
    from commands.experiment import Experiment as Experiment
    from ratchet.config import load_config as load_config
    from report.run_table import read_run as read_run
else:
    __getattr__ = lazy_attributes(
        __name__,
        {"Experiment": "commands.experiment", "load_config": "ratchet.config", "read_run": "report.run_table"},
    )
