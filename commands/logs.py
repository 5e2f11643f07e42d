"""python -m report logs --config X --to KIND: a run's trajectories for other tools."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from commands.arguments import add_round_argument, config_of, config_parser
from ratchet.errors import UserError
from ratchet.progress import Progress

if TYPE_CHECKING:
    from report.logs.source import LoggedTrajectory
    from report.messages import MessageDecoder
    from report.stores import StoredPass

T = TypeVar("T")
KINDS = {
    "inspect": "logs of Inspect, for `inspect view` (needs the extra inspect)",
    "parquet": "one Parquet file a store",
}


def main(words: Sequence[str] | None = None, prog: str = "python -m report logs") -> None:
    """Export a run's trajectories."""
    parser = config_parser(prog, "Write a run's trajectories, with questions, scores and rewards, for other tools.")
    parser.add_argument("--to", required=True, choices=KINDS, help="; ".join(f"{k}: {v}" for k, v in KINDS.items()))
    parser.add_argument("--out", type=Path, metavar="DIR", help="where files go (default: logs/KIND in the run folder)")
    parser.add_argument("--kept", action="store_true", help="only the trajectories that were kept for training")
    add_round_argument(parser, "only what this round sampled; default: every round and arm", None)
    arguments = parser.parse_args(words)
    config = config_of(arguments)
    from evaluation.question_sets import split_of  # late: --help imports nothing heavy
    from questions.load import load_questions
    from report.logs.source import read_logged
    from report.messages import MessageDecoder
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
    decoder = MessageDecoder(config.models)
    for stored in passes:
        try:
            questions = load_questions(
                split_of(config.questions, config.evaluation.benchmarks, stored.split), config.seed
            )
        except UserError:  # the files are on another machine
            questions = []
        total, trajectories = read_logged(stored, questions, config.rewards, arguments.kept)
        with Progress(stored.title, total) as progress:
            logged = _counted(trajectories, progress)
            if arguments.to == "parquet":
                print(_write_parquet(out, stored, logged))
            else:
                for path in _write_inspect(out, stored, logged, decoder):
                    print(path)


def _counted(items: Iterable[T], progress: Progress) -> Iterator[T]:
    for item in items:
        yield item
        progress.advance()


def _write_parquet(out: Path, stored: StoredPass, logged: Iterable[LoggedTrajectory]) -> Path:
    from report.logs.parquet import write_parquet

    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{stored.name.replace('/', '_')}.parquet"
    write_parquet(path, logged)
    return path


def _write_inspect(
    out: Path, stored: StoredPass, logged: Iterable[LoggedTrajectory], decoder: MessageDecoder
) -> Iterator[Path]:
    try:
        from report.logs.inspect import write_inspect
    except ModuleNotFoundError as error:
        raise UserError(f"--to inspect needs {error.name}: pip install 'ratchet-agents[inspect]'") from error
    out.mkdir(parents=True, exist_ok=True)
    yield from write_inspect(out, stored, logged, decoder)
    for problem in decoder.problems:
        print(f"warning: {problem}", file=sys.stderr)
    decoder.problems.clear()
