"""What every command line shares: --config and --set, and errors as one clear message with exit status 2."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Literal, TypeVar, get_args

from pydantic import BaseModel

from ratchet.core.config import Config, parse
from ratchet.core.errors import UserError
from ratchet.core.locks import Lock, kept_in_place
from ratchet.core.text import plain_text
from ratchet.inference.serving.devices import CARDS, Card, card_of

if TYPE_CHECKING:
    from ratchet.core.runfolder import RoundFolder, RunFolder
    from ratchet.rounds.records import StageId

L = TypeVar("L", bound=BaseModel)
Phase = Literal["all", "sample", "score"]
"""What of an evaluation is done: agents and judge may not fit the memory together."""
PORTS = {"serve-index": 8088, "mcp": 8089, "serve": 8090, "report": 8091}
"""By server, the port that it listens at by default: each has its own, so that all of them run on one machine."""
IN_LOOP = "RATCHET_IN_LOOP"
"""The environment variable of a command that the self-training loop runs, which records the command's stage itself."""


def config_parser(prog: str, description: str) -> argparse.ArgumentParser:
    """A parser with --config and --set."""
    parser = argparse.ArgumentParser(
        prog=prog, description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_config_arguments(parser)
    return parser


def add_config_arguments(parser: argparse.ArgumentParser, required: bool = True) -> None:
    """Add --config and --set."""
    parser.set_defaults(command=parser.prog)
    parser.add_argument("--config", required=required, help="the experiment's YAML file")
    parser.add_argument(
        "--set",
        dest="overrides",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="override one key of the config, such as sampling.samples=4 (repeatable)",
    )


def add_round_argument(parser: argparse._ActionsContainer, about: str, default: int | None = 1) -> None:
    """For every command that works on one round; `about` says what the round is."""
    shown = "" if default is None else f" (default {default})"
    parser.add_argument("--round", type=positive_integer, default=default, metavar="N", help=about + shown)


def add_anyway_argument(parser: argparse.ArgumentParser) -> None:
    """For every command that reads what earlier stages made."""
    parser.add_argument(
        "--anyway",
        action="store_true",
        help="use inputs that are incomplete or out of date (`ratchet status`) too; the run's records say so",
    )


def add_best_round_argument(parser: argparse._ActionsContainer, about: str) -> None:
    """For every command on what a run reached, with `round_or_best`."""
    add_round_argument(parser, f"{about} (default: that of the last promoted adapter, or of the last one)", None)


def round_or_best(run: RunFolder, given: int | None) -> RoundFolder:
    """The round that was given, or the one that the run stands by; before one was trained, the first."""
    from ratchet.rounds.promoted import best_round

    return run.round(given or best_round(run) or 1)


def add_phase_argument(parser: argparse.ArgumentParser) -> None:
    """For every command that samples and scores."""
    parser.add_argument(
        "--phase",
        choices=get_args(Phase),
        default="all",
        help="sample: run the agents and score nothing; score: score what was sampled, without opening an agent's "
        "model; all: both (default)",
    )


def add_card_arguments(parser: argparse.ArgumentParser, when: str = "") -> None:
    """For every command that plans for GPUs which this machine need not have. `when`: with which option."""
    cards = f"plan for this GPU: {', '.join(CARDS)}"
    parser.add_argument("--gpu", metavar="NAME", help=when + cards)
    parser.add_argument(
        "--gpu-gb", type=positive_number, metavar="GB", help=f"{when}for any other: its memory in 10^9 bytes"
    )
    parser.add_argument("--gpus", type=positive_integer, default=1, metavar="N", help=f"{when}its number (default: 1)")


def card_asked(arguments: argparse.Namespace) -> Card | None:
    """The card that `add_card_arguments` was given, if any. Raises UserError."""
    if arguments.gpu and arguments.gpu_gb:
        raise UserError("--gpu and --gpu-gb: give one of them, a card's name or its memory")
    if arguments.gpu_gb:
        return Card(arguments.gpu_gb)
    return card_of(arguments.gpu) if arguments.gpu else None


def add_server_arguments(
    parser: argparse.ArgumentParser, port: int, limits: type[BaseModel] | None = None, others: bool = True
) -> None:
    """For every command that serves over HTTP. `port`: its default. `limits`: what `limits_of` reads. `others`: the
    server may listen where other machines reach it, and then needs a key."""
    parser.add_argument("--port", type=int, default=port, help=f"default: {port}; 0: any free one")
    if others:
        parser.add_argument("--host", default="127.0.0.1", help="default: 127.0.0.1, this machine alone")
        parser.add_argument("--key-file", metavar="FILE", help="the key that clients must send (or: RATCHET_API_KEY)")
    for name, field in limits.model_fields.items() if limits else ():
        default = "none" if field.default is None else field.default
        parser.add_argument(f"--{name.replace('_', '-')}", help=f"most {field.description} (default: {default})")


def limits_of(arguments: argparse.Namespace, limits: type[L]) -> L:
    """The limits that the command line gives. Raises UserError."""
    given = {name: value for name in limits.model_fields if (value := getattr(arguments, name)) is not None}
    return parse(limits, given, "limits")


def config_words(arguments: argparse.Namespace) -> tuple[str, ...]:
    """--config and --set as they were given, for another command."""
    overrides = (word for override in arguments.overrides for word in ("--set", override))
    return ("--config", arguments.config, *overrides)


def config_of(arguments: argparse.Namespace, *, plugins: bool = True) -> Config:
    """The config that --config and --set name. `plugins`: whether the command runs any, so that they are checked."""
    from ratchet.commands.config import open_config  # late: --help needs no config

    config = open_config(arguments.config, arguments.overrides, arguments.command, plugins=plugins)
    kept = config.overrides[: len(config.overrides) - len(arguments.overrides)]
    if kept and not os.environ.get(IN_LOOP):
        words = " ".join(f"--set {one}" for one in kept)
        print(f"{config.folder}: the run was started with {words}, which still applies", file=sys.stderr)
    return config


@contextlib.contextmanager
def recorded_stages(
    config: Config, *ids: StageId, number: int = 1, adapter: Path | None = None, anyway: bool = False
) -> Iterator[None]:
    """Record in the run's ledger which of these stages of round `number` the block finishes, unless it raises.

    `adapter`: the adapter that the block samples with, trains on or evaluates. UserError where the inputs of the stages
    are incomplete or out of date, unless `anyway`, and where the run folder is moved away or deleted meanwhile.
    """
    with kept_in_place(config.folder):
        if os.environ.get(IN_LOOP):
            yield
            return
        from ratchet.commands.recording import record_by_hand  # late: --help needs no ledger

        with record_by_hand(config, ids, number, adapter, anyway):
            yield


def outdated_inputs(
    config: Config, *ids: StageId, number: int = 1, adapter: Path | None = None, anyway: bool = False
) -> str:
    """What is out of date of the inputs of these stages, for a command that reads them and is no stage; empty where
    nothing is. UserError unless `anyway`."""
    from ratchet.commands.recording import check_inputs, planned_stages  # late: --help needs no ledger
    from ratchet.core.runfolder import RunFolder
    from ratchet.rounds.artefacts import Digests

    digests = Digests(RunFolder(config.folder))
    return check_inputs(config, ids, number, adapter, anyway, planned_stages(config), digests)


def positive_integer(text: str) -> int:
    """An argument of 1 or more; 14_000_000 and 14,000,000 will do as well."""
    try:
        number = int(text.replace(",", ""))
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: expected an integer of 1 or more")
    return number


def positive_number(text: str) -> float:
    """An argument above 0."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number above 0")
    return number


def part_of_work(text: str) -> tuple[int, int]:
    """(K, N) of an argument K/N: every N-th piece of some work, from the K-th on."""
    part, _, parts = text.partition("/")
    if not (part.isdecimal() and parts.isdecimal() and int(part) < int(parts)):
        raise argparse.ArgumentTypeError(f"{text!r}: expected K/N with K from 0 to N-1, such as 0/4")
    return int(part), int(parts)


class PlainFormatter(logging.Formatter):
    """For warnings, which may hold a server's own words."""

    def format(self, record: logging.LogRecord) -> str:
        return plain_text(super().format(record))


def run_command(main: Callable[[], None]) -> None:
    """Run a command's main. A UserError and a file without permission are printed and exit 2; other errors keep their
    traceback.

    Ctrl-C and SIGTERM (a cluster's way) stop it in order and exit 130 and 143.
    """
    # OpenMP's threads wait by spinning by default; on a small machine that does anything else as well, two spinning
    # threads starve the ones that work (measured: 7 against 62 GFLOPS with one busy neighbour on two cores).
    # libgomp reads it once, as torch is loaded: no command loads torch before it comes here.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    logging.basicConfig(level=logging.WARNING)
    logging.getLogger("huggingface_hub").propagate = False  # it prints its lines itself
    for handler in logging.getLogger().handlers:
        handler.setFormatter(PlainFormatter("%(levelname)s %(name)s: %(message)s"))
    received = _stop_on_term()
    try:
        main()
    except UserError as error:
        print(f"error: {plain_text(str(error))}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        resume = "; run the same command again to resume" if Lock.was_held else ""
        print(f"\nstopped{resume}", file=sys.stderr)
        sys.exit(143 if received else 130)
    except PermissionError as error:
        if error.filename is None:
            raise
        print(f"error: {error.filename}: {error.strerror}; fix its permissions, then run again", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:  # the reader of our output (head, a pager) has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _stop_on_term() -> list[int]:
    """From now on the first SIGTERM does what Ctrl-C does; then the list that this returns is not empty."""
    received: list[int] = []
    owner = os.getpid()

    def stop(number: int, frame: FrameType | None) -> None:
        if os.getpid() != owner:  # a forked worker ends at once, as ever
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)
            return
        if received:  # SLURM tells every process of a job, and its script passes it on: once is enough
            return
        received.append(number)
        interrupt = signal.getsignal(signal.SIGINT)  # asyncio has its own, which lets tasks end in order
        (interrupt if callable(interrupt) else signal.default_int_handler)(signal.SIGINT, frame)

    signal.signal(signal.SIGTERM, stop)
    return received
