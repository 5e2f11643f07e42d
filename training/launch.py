"""`python -m ratchet.training.launch`: `accelerate launch`, whose failure is the failed process's own lines.

accelerate (1.15) and torch's launcher print tracebacks and tables of their own below the error that a process prints.
"""

from __future__ import annotations

import logging
import signal
import sys
from subprocess import CalledProcessError


def main() -> None:
    """Launch what the command line says. Exits with the status of the process that failed first, or 128 and the number
    of the signal that ended it; 137 where one was killed."""
    import torch.distributed.run  # noqa: F401 (it makes the loggers)
    from accelerate.commands.launch import launch_command, launch_command_parser
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    for name in [name for name in logging.Logger.manager.loggerDict if name.startswith("torch.distributed.elastic")]:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    signal.signal(signal.SIGUSR1, lambda *_: signal.raise_signal(signal.SIGTERM))  # what srun passes on
    try:
        launch_command(launch_command_parser().parse_args())
    except CalledProcessError as error:
        _exit(error.returncode)
    except ChildFailedError as error:
        statuses = [failure.exitcode for failure in error.failures.values()]
        _exit(-signal.SIGKILL if -signal.SIGKILL in statuses else error.get_first_failure()[1].exitcode)
    except SignalException as error:
        _exit(-error.sigval)
    finally:  # torch's handler would raise from whatever Python does last
        for number in (signal.SIGUSR1, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)


def _exit(status: int) -> None:
    if status == -signal.SIGKILL:
        print("error: a process of the training was killed, as where memory runs out", file=sys.stderr)
    sys.exit(status if status > 0 else 128 - status)


if __name__ == "__main__":
    main()
