"""python -m report logs --config X --to KIND: a run's trajectories for other tools."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from commands.arguments import add_round_argument, config_of, config_parser
from ratchet.config import Config
from ratchet.errors import UserError
from ratchet.progress import Progress

if TYPE_CHECKING:
    from report.logs.source import LoggedTrajectory
    from report.stores import StoredPass

    Writer = Callable[[StoredPass, Iterable[LoggedTrajectory]], Iterator[Path]]
    """Writes one store and returns the files as they are finished."""

T = TypeVar("T")
KINDS = {
    "inspect": "logs of Inspect, for `inspect view` (needs ratchet[inspect])",
    "otel": "OpenTelemetry spans, sent to a collector (needs ratchet[otel])",
    "parquet": "one Parquet file a store",
}


def main(words: Sequence[str] | None = None, prog: str = "python -m report logs") -> None:
    """Export a run's trajectories."""
    parser = config_parser(prog, "Write a run's trajectories, with questions, scores and rewards, for other tools.")
    parser.add_argument("--to", required=True, choices=KINDS, help="; ".join(f"{k}: {v}" for k, v in KINDS.items()))
    parser.add_argument("--out", type=Path, metavar="DIR", help="where files go (default: logs/KIND in the run folder)")
    parser.add_argument("--kept", action="store_true", help="only the trajectories that were kept for training")
    parser.add_argument(
        "--endpoint",
        metavar="URL",
        help="otel: the collector's address for traces, such as http://127.0.0.1:4318/v1/traces (default: "
        "OTEL_EXPORTER_OTLP_ENDPOINT, or that address)",
    )
    parser.add_argument("--no-text", action="store_true", help="otel: leave out what was asked, found and said")
    add_round_argument(parser, "only what this round sampled; default: every round and arm", None)
    arguments = parser.parse_args(words)
    config = config_of(arguments)
    from report.logs.source import PassLog  # late: --help imports nothing heavy
    from report.stores import stored_passes

    passes = stored_passes(config.folder)
    if arguments.round:
        passes = [one for one in passes if one.name == f"round-{arguments.round}/trajectories"]
    if arguments.kept:
        passes = [one for one in passes if one.selection is not None and one.selection.exists()]
    if not passes:
        raise UserError(
            f"{config.folder}: there are no such trajectories; sample first, or leave out --round or --kept"
        )
    out = arguments.out or config.folder / "logs" / arguments.to
    write = {"inspect": _inspect_writer, "otel": _otel_writer, "parquet": _parquet_writer}[arguments.to](
        config, out, arguments
    )
    for one in passes:
        log = PassLog(config, one, arguments.kept)
        with Progress(one.title, log.total) as progress:
            for path in write(one, _counted(log.read(), progress)):
                print(path)


def _counted(items: Iterable[T], progress: Progress) -> Iterator[T]:
    for item in items:
        yield item
        progress.advance()


def _models(config: Config) -> dict[str, str]:
    return {name: model.path for name, model in config.models.items()}


def _parquet_writer(config: Config, out: Path, arguments: argparse.Namespace) -> Writer:
    from report.logs.parquet import write_parquet

    def write(one: StoredPass, logged: Iterable[LoggedTrajectory]) -> Iterator[Path]:
        out.mkdir(parents=True, exist_ok=True)
        path = out / f"{one.name.replace('/', '_')}.parquet"
        write_parquet(path, logged)
        yield path

    return write


def _inspect_writer(config: Config, out: Path, arguments: argparse.Namespace) -> Writer:
    try:
        from report.logs.inspect import write_inspect
    except ModuleNotFoundError as error:
        raise UserError(f"--to inspect needs {error.name}: pip install 'ratchet[inspect]'") from error
    from report.messages import MessageDecoder

    decoder = MessageDecoder(config)

    def write(one: StoredPass, logged: Iterable[LoggedTrajectory]) -> Iterator[Path]:
        out.mkdir(parents=True, exist_ok=True)
        yield from write_inspect(out, one, logged, _models(config), decoder, one.planned_at)
        for problem in decoder.problems:
            print(f"warning: {problem}", file=sys.stderr)
        decoder.problems.clear()

    return write


def _otel_writer(config: Config, out: Path, arguments: argparse.Namespace) -> Writer:
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        from report.logs.otel import export_spans
    except ModuleNotFoundError as error:
        raise UserError(f"--to otel needs {error.name}: pip install 'ratchet[otel]'") from error
    exporter = OTLPSpanExporter(endpoint=arguments.endpoint)

    def write(one: StoredPass, logged: Iterable[LoggedTrajectory]) -> Iterator[Path]:
        export_spans(logged, exporter, config.folder.name, _models(config), one.planned_at, not arguments.no_text)
        return iter(())

    return write
