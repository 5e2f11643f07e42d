"""`ratchet fork`: a new run on the trajectories of another one."""

from __future__ import annotations

import argparse
from pathlib import Path

from ratchet.commands.config import open_config
from ratchet.core.config import Config
from ratchet.core.errors import UserError
from ratchet.core.escape import shell_line, yaml_value
from ratchet.core.runfolder import RunFolder
from ratchet.questions.manifest import remembered_overrides
from ratchet.rounds.fork import fork as make_fork


def fork(options: argparse.Namespace) -> None:
    """Make the fork, and print what it refers to and how to go on."""
    source = RunFolder(options.source)
    if not source.config.exists():
        raise UserError(f"--from {source.path}: there is no run here; name a run folder")
    config = config_of_fork(options.config or source.config, source, options.overrides, options.new)
    made = make_fork(config, source)
    scores = f", scored by {', '.join(made.scores)}" if made.scores else ""
    arms = f", and to {made.arms} evaluated arms" if made.arms else ""
    print(f"{options.new} refers to {made.trajectories} trajectories of {source.path}{scores}{arms}")
    for line in made.differences:
        print(f"  {line}: what is missing is sampled")
    words = ("--config", options.config, "--set", f"run={options.new}") if options.config else ()
    again = shell_line(["ratchet", "selftrain", *(words or ("--config", str(options.new / "config.yaml")))])
    print(f"to go on: {again}")


def config_of_fork(path: str | Path, source: RunFolder, overrides: list[str], new: Path) -> Config:
    """Open the config of a fork: with the `--set` that its source was made with, and others in their place."""
    kept = remembered_overrides(source, overrides)
    return open_config(path, [*kept, *overrides, f"run={yaml_value(str(new))}"])
