"""What every package shares: records, configuration, durable files, the run folder, progress and errors."""

from typing import TYPE_CHECKING

from ratchet.core.lazy import lazy_attributes

if TYPE_CHECKING:
    from ratchet.commands.experiment import Experiment as Experiment
    from ratchet.core.config import load_config as load_config
    from ratchet.report.run_table import read_run as read_run
else:
    __getattr__ = lazy_attributes(
        __name__,
        {
            "Experiment": "ratchet.commands.experiment",
            "load_config": "ratchet.core.config",
            "read_run": "ratchet.report.run_table",
        },
    )
