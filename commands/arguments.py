"""The arguments of command lines: their kinds, what their texts are read as, and those that several commands share."""

from __future__ import annotations

import argparse
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

L = TypeVar("L")


def positive_integer(text: str, minimum: int = 1) -> int:
    """Read an argument of 1 or more; 14_000_000 and 14,000,000 will do as well."""
    try:
        number = int(text.replace(",", ""))
    except ValueError:
        number = minimum - 1
    if number < minimum:
        raise argparse.ArgumentTypeError(f"{text!r}: expected an integer of {minimum} or more")
    return number


def positive_number(text: str) -> float:
    """Read an argument above 0."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number above 0")
    return number


def whole_numbers(text: str) -> tuple[int, ...]:
    """Read numbers from 0 up of an argument such as 1,2,3, none of them twice."""
    numbers = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in numbers) or len(set(map(int, numbers))) < len(numbers):
        raise argparse.ArgumentTypeError(f"{text!r}: expected different numbers, such as 1,2,3")
    return tuple(map(int, numbers))


def part_of_work(text: str) -> tuple[int, int]:
    """Read (K, N) of an argument K/N: every N-th piece of some work, from the K-th on."""
    part, _, parts = text.partition("/")
    if not (part.isdecimal() and parts.isdecimal() and int(part) < int(parts)):
        raise argparse.ArgumentTypeError(f"{text!r}: expected K/N with K from 0 to N-1, such as 0/4")
    return int(part), int(parts)


class Argument:
    """An argument of a command line, with argparse's own options."""

    def __init__(self, *names: str, **options: Any) -> None:
        self._names, self._options = names, options

    def add_to(self, parser: argparse._ActionsContainer) -> None:
        parser.add_argument(*self._names, **self._options)


class Flag(Argument):
    """An argument that is given or not."""

    def __init__(self, name: str, help: str) -> None:
        super().__init__(name, action="store_true", help=help)


class OneOf:
    """Arguments of which at most one is given."""

    def __init__(self, *arguments: Argument) -> None:
        self._arguments = arguments

    def add_to(self, parser: argparse.ArgumentParser) -> None:
        group = parser.add_mutually_exclusive_group()
        for argument in self._arguments:
            argument.add_to(group)


CONFIG = Argument("--config", required=True, help="the experiment's YAML file")
OPTIONAL_CONFIG = Argument("--config", help="the experiment's YAML file")
SET = Argument(
    "--set",
    dest="overrides",
    action="append",
    default=[],
    metavar="KEY=VALUE",
    help="override one key of the config, such as sampling.samples=4 (repeatable)",
)
ROUND = Argument("--round", type=positive_integer, default=1, metavar="N", help="the round's number (default 1)")
BEST_ROUND = Argument(
    "--round",
    type=positive_integer,
    metavar="N",
    help="the round's number (default: that of the last promoted adapter, or of the last one)",
)
ANYWAY = Flag("--anyway", "use inputs that are incomplete or out of date (`ratchet status`) too; records say so")
PHASE = Argument(
    "--phase",
    choices=["all", "sample", "score"],
    default="all",
    help="sample: run the agents and score nothing; score: score what was sampled, without opening an agent's model; "
    "all: both (default)",
)
ADAPTER = Argument("--adapter", metavar="DIR", help="a LoRA folder for the trainable roles (default: the base model)")
SPLIT = Argument("--split", help="train, dev, test, or one of evaluation.benchmarks (default: test and all of those)")
ALL_MEASURES = Flag("--all-measures", "print the long tables too")
AGAIN = Flag("--again", "measure another choice on test sets that were measured before")
ACCELERATE = Argument("--accelerate", metavar="FILE", help="the config file that `accelerate launch` trains with")
CARD = (
    Argument("--gpu", metavar="NAME", help="plan for this GPU, such as H100"),
    Argument("--gpu-gb", type=positive_number, metavar="GB", help="plan for any other: its memory in 10^9 bytes"),
    Argument("--gpus", type=positive_integer, default=1, metavar="N", help="the number of these GPUs (default: 1)"),
)
"""For commands that plan for GPUs which this machine need not have, with `devices.card_asked`."""
ARMS = (
    Argument(
        "--arms",
        metavar="FILE",
        type=Path,
        required=True,
        help="a YAML file: by the name of an arm, the list of KEY=VALUE that it sets; all are compared with the first",
    ),
    Argument("--seeds", metavar="N,N", type=whole_numbers, required=True, help="the seeds of every arm: 1,2,3"),
)
ABLATION_PHASE = Argument(
    "--phase",
    choices=["all", "sample", "table"],
    default="all",
    help="sample: what several arms read, and nothing else; table: of the runs that are finished",
)
PORTS = {"index serve": 8088, "mcp": 8089, "serve": 8090, "report": 8091}
"""By server, the port that it listens at by default: each has its own, so that all of them run on one machine."""


def server_arguments(server: str, limits: Any = None) -> tuple[Argument, ...]:
    """Return the arguments of a command that serves over HTTP. `limits` is a dataclass with the help of each field."""
    port = PORTS[server]
    given = []
    for each in fields(limits) if limits else ():
        kind = (
            partial(positive_integer, minimum=each.metadata.get("minimum", 1))
            if each.type == "int"
            else positive_number
        )
        about = f"{each.metadata['help']} (default: {'none' if each.default is None else '%(default)s'})"
        given.append(Argument(f"--{each.name.replace('_', '-')}", type=kind, default=each.default, help=about))
    return (
        Argument("--port", type=int, default=port, help=f"default: {port}; 0: any free one"),
        Argument("--host", default="127.0.0.1", help="default: 127.0.0.1, this machine alone"),
        Argument("--key-file", metavar="FILE", help="the key that clients must send (or: RATCHET_API_KEY)"),
        *given,
    )


def limits_of(options: argparse.Namespace, limits: type[L]) -> L:
    """Return the limits of a server that the command line gives."""
    return limits(**{each.name: getattr(options, each.name) for each in fields(limits)})  # type: ignore[arg-type]
