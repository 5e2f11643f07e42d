"""Opening an experiment's config: the file is read and checked, and so are the plug-ins that it names."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from ratchet.core.config import Config, load_config
from ratchet.core.errors import UserError
from ratchet.core.runfolder import RoundFolder, RunFolder
from ratchet.questions.manifest import check_version, remembered_overrides

IN_LOOP = "RATCHET_IN_LOOP"
"""The environment variable of a command that the self-training loop runs, which records the command's stage itself."""


def open_config(path: str | Path, overrides: Sequence[str] = (), command: str = "", *, plugins: bool = True) -> Config:
    """Run `load_config` with the overrides that its run folder was made with, and check that folder's version and,
    unless `plugins` is false, every plug-in that the config and its members name. Raises UserError."""
    config = load_config(path, overrides, command)
    if config.run:
        check_version(RunFolder(config.folder))
        if kept := remembered_overrides(RunFolder(config.folder), overrides):
            config = load_config(path, [*kept, *overrides], command)
    if not plugins:
        return config
    _check_file(config, path)
    for path_of_member in config.members.values():
        member = load_config(path_of_member)
        check_version(RunFolder(member.folder))
        _check_file(member, path_of_member)
    return config


def _check_file(config: Config, path: str | Path) -> None:
    from ratchet.commands.checks import check_plugins  # late: it loads all that a run may need

    try:
        check_plugins(config)
    except UserError as error:
        raise UserError("\n".join(f"{path}: {line}" for line in str(error).splitlines())) from error


def config_of(arguments: argparse.Namespace, *, plugins: bool = True) -> Config:
    """Open the config that --config and --set name."""
    config = open_config(arguments.config, arguments.overrides, arguments.command, plugins=plugins)
    kept = config.overrides[: len(config.overrides) - len(arguments.overrides)]
    if kept and not os.environ.get(IN_LOOP):
        words = " ".join(f"--set {one}" for one in kept)
        print(f"{config.folder}: the run was started with {words}, which still applies", file=sys.stderr)
    return config


def config_words(arguments: argparse.Namespace) -> tuple[str, ...]:
    """Return --config and --set as they were given, for another command."""
    overrides = (word for override in arguments.overrides for word in ("--set", override))
    return ("--config", arguments.config, *overrides)


def round_or_best(run: RunFolder, given: int | None) -> RoundFolder:
    """Return the round that was given, or the one that the run stands by; before one was trained, the first."""
    from ratchet.rounds.records import best_round

    return run.round(given or best_round(run) or 1)
