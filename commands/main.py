"""`ratchet COMMAND`, or `python -m ratchet COMMAND`: reads the command line by the table of commands, and runs the
command. Errors are one clear message with exit status 2."""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import logging
import os
import signal
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from types import FrameType

from ratchet.commands.arguments import CONFIG, OPTIONAL_CONFIG, SET
from ratchet.commands.table import COMMANDS, GROUPS, Command
from ratchet.core.errors import UserError, did_you_mean
from ratchet.core.installed import DISTRIBUTION

DESCRIPTION = "Fine-tune open agent models on their own best trajectories."


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Breaks paragraphs of one line as wide as the terminal, and leaves those of several lines as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        paragraphs = text.split("\n\n")
        return "\n\n".join(part if "\n" in part else textwrap.fill(part, width) for part in paragraphs)


def main() -> None:
    """Run the command that the first words name, or list the commands."""
    if sys.argv[1:] == ["--version"]:
        from importlib.metadata import version

        return print(f"ratchet {version(DISTRIBUTION)}")
    run_command(run)


def run(words: Sequence[str] | None = None) -> None:
    """Run the command that the first of `words` name; by default those of the process."""
    words = list(sys.argv[1:] if words is None else words)
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
    for count in (2, 1):
        name = " ".join(words[:count])
        if name in COMMANDS:
            return run_row(name, words[count:])
    if words and words[0] in GROUPS:
        return _list_commands(words[1:], words[0])
    _list_commands(words)


def run_row(name: str, words: Sequence[str], prog: str = "") -> None:
    """Run the command `name` with its arguments. `prog`: its name for people where that is another one."""
    command = COMMANDS[name]
    options = _parse(name, command, list(words), prog or f"ratchet {name}")
    with _importing():
        module, _, function = command.run.partition(":")
        if command.config == "required":
            from ratchet.commands.config import config_of

            config = config_of(options, plugins=command.plugins)
        target = getattr(importlib.import_module(f"ratchet.commands.{module}"), function)
    if command.config == "required":
        target(config, options)
    else:
        target(options)


def _parse(name: str, command: Command, words: list[str], prog: str) -> argparse.Namespace:
    usage, rest = None, []
    if command.before_dashes:
        usage = f"{prog} --config X [options] [-- {command.before_dashes}]"
        at = words.index("--") if "--" in words else len(words)
        words, rest = words[:at], words[at + 1 :]
    parser = argparse.ArgumentParser(
        prog=prog,
        usage=usage,
        description=f"{command.about[0].upper()}{command.about[1:]}.\n\n{command.more}".rstrip(),
        epilog=_listed(name),
        formatter_class=HelpFormatter,
    )
    if command.config != "none":
        for argument in (CONFIG if command.config == "required" else OPTIONAL_CONFIG, SET):
            argument.add_to(parser)
    for each in command.arguments:
        each.add_to(parser)
    parser.set_defaults(command=prog, name=name, rest=tuple(rest))
    return parser.parse_args(words)


def _list_commands(words: Sequence[str], group: str = "") -> None:
    prog = f"ratchet {group}".rstrip()
    parser = argparse.ArgumentParser(
        prog=prog,
        usage=f"{prog} COMMAND ...",
        description=DESCRIPTION,
        epilog=_listed(group),
        formatter_class=HelpFormatter,
    )
    if not words:
        parser.print_help(sys.stderr)
        sys.exit(2)
    name = words[0]
    if name.startswith("-"):
        parser.parse_args(words)  # --help ends here
        parser.error("name a command")
    known = [*COMMANDS, *GROUPS] if not group else [each.partition(" ")[2] for each in _below(group)]
    parser.error(f"there is no command {name!r}{did_you_mean(name, known)}")


def _below(group: str) -> list[str]:
    return [name for name in COMMANDS if name.startswith(f"{group} ")]


def _listed(group: str) -> str:
    if group:
        lines = {name.partition(" ")[2]: COMMANDS[name].about for name in _below(group)}
    else:
        lines = {name: each.about for name, each in COMMANDS.items() if " " not in name} | GROUPS
    if not lines:
        return ""
    width = max(map(len, lines))
    shown = [f"  {name:<{width}}  {about}" for name, about in lines.items()]
    return "\n".join(["commands:", *shown, "", "COMMAND --help shows its options"])


@contextlib.contextmanager
def _importing() -> Iterator[None]:
    """Keep the collector from what modules define, which takes a fifth of a short command's time."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def run_command(main: Callable[[], None]) -> None:
    """Run a command's main. A UserError and a file without permission are printed and exit 2; other errors keep their
    traceback.

    Ctrl-C and SIGTERM (a cluster's way) stop it in order and exit 130 and 143.
    """
    # OpenMP's threads wait by spinning by default; on a small machine that does anything else as well, two spinning
    # threads starve the ones that work (measured: 7 against 62 GFLOPS with one busy neighbour on two cores).
    # libgomp reads it once, as torch is loaded: no command loads torch before it comes here.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    # Pydantic otherwise reads the metadata of every installed package, to look for plug-ins of its own.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    logging.basicConfig(level=logging.WARNING)
    logging.getLogger("huggingface_hub").propagate = False  # it prints its lines itself
    for handler in logging.getLogger().handlers:
        handler.setFormatter(PlainFormatter("%(levelname)s %(name)s: %(message)s"))
    before = signal.getsignal(signal.SIGTERM) or signal.SIG_DFL
    received = _stop_on_term()
    try:
        main()
    except UserError as error:
        print(f"error: {_plain(str(error))}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        from ratchet.core.locks import Lock

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
    finally:  # what torch does at the interpreter's end has no order to stop in: a late signal ends it at once
        signal.signal(signal.SIGTERM, before)


class PlainFormatter(logging.Formatter):
    """For warnings, which may hold a server's own words."""

    def format(self, record: logging.LogRecord) -> str:
        return _plain(super().format(record))


def _plain(text: str) -> str:
    from ratchet.core.text import plain_text  # late: --help needs none of it

    return plain_text(text)


def _stop_on_term() -> list[int]:
    """Treat the first SIGTERM as Ctrl-C from now on; the returned list is not empty then."""
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
