"""Commands with subcommands, such as `ratchet search` and `ratchet sweep`: found and listed in one way.

Only the standard library is imported here, and a subcommand's module when it runs: a list of commands comes at once.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ratchet.core.errors import did_you_mean

Run = Callable[[Sequence[str], str], None]
"""Runs a command with these arguments; the second is the command's name in its own usage message."""


@dataclass(frozen=True)
class Subcommand:
    """One subcommand: its line in the list, and what runs it."""

    about: str
    """One line for the list of subcommands."""
    target: Run | str
    """The function that runs it, or "module:function", which is imported when it runs."""

    def run(self, arguments: Sequence[str], prog: str) -> None:
        target = self.target
        if isinstance(target, str):
            module, _, function = target.partition(":")
            with importing():
                target = getattr(importlib.import_module(module), function)
        target(arguments, prog)


Subcommands = Mapping[str, Subcommand]


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """For imports: what modules define is never searched for garbage, which takes a fifth of a short command's time."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def run_subcommand(
    subcommands: Subcommands,
    arguments: Sequence[str] | None,
    prog: str,
    description: str,
    otherwise: Run | None = None,
    free_text: bool = False,
) -> None:
    """Run the subcommand that the first word names; --config and --set, which every command has, may stand before it.

    `arguments`: default, those of the process. `otherwise` runs where no subcommand is named. `free_text`: the first
    word may also be a text of the user's, for `otherwise`; then only a subcommand's exact name in the first place is
    one. Any other word that names no subcommand ends with exit status 2 and the closest name.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["help"] and not free_text:
        words = [*words[1:], "--help"]
    at = 0 if free_text else _subcommand_position(words)
    name = words[at] if at < len(words) else ""
    if name in subcommands:
        return subcommands[name].run([*words[:at], *words[at + 1 :]], f"{prog} {name}")
    if otherwise is not None and (free_text or not name or name.startswith("-")):
        return _run_otherwise(otherwise, words, prog, subcommands, free_text)
    parser = argparse.ArgumentParser(
        prog=prog,
        usage=f"{prog} COMMAND ...",
        description=description,
        epilog=format_subcommands(subcommands),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    if not words:
        parser.print_help(sys.stderr)
        sys.exit(2)
    if not name or name.startswith("-"):
        parser.parse_args(words)  # --help ends here
        parser.error("name a command")
    parser.error(f"there is no command {name!r}{did_you_mean(name, subcommands)}")


def _run_otherwise(otherwise: Run, words: list[str], prog: str, subcommands: Subcommands, free_text: bool) -> None:
    """Where its help is asked for, the subcommands are listed below it."""
    try:
        otherwise(words, prog)
    except SystemExit as end:
        if not end.code and {"-h", "--help"} & set(words):
            print(f"\n{format_subcommands(subcommands)}")
            if free_text:
                print(
                    f"for the text {min(subcommands)!r}, give the options first: {prog} --config X {min(subcommands)}"
                )
        raise


def format_subcommands(subcommands: Subcommands) -> str:
    """For the end of a help text: one line each."""
    width = max(map(len, subcommands))
    lines = (f"  {name:<{width}}  {each.about}" for name, each in subcommands.items())
    return "\n".join(["commands:", *lines, "", "COMMAND --help shows its options"])


def split_at_dashes(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """What stands before `--`, a command's own arguments, and what stands after it, another command's."""
    at = list(words).index("--") if "--" in words else len(words)
    return list(words[:at]), list(words[at + 1 :])


def _subcommand_position(words: Sequence[str]) -> int:
    """Where the first word stands that is neither --config nor --set nor what belongs to one of them."""
    at = 0
    while at < len(words) and words[at].partition("=")[0] in ("--config", "--set"):
        at += 1 if "=" in words[at] else 2
    return at
