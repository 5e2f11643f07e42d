"""Opening an experiment's config: the file is read and checked, and so are the plug-ins that it names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ratchet.core.config import Config, load_config
from ratchet.core.errors import UserError
from ratchet.core.runfolder import RunFolder
from ratchet.questions.manifest import check_version, remembered_overrides


def open_config(path: str | Path, overrides: Sequence[str] = (), command: str = "", *, plugins: bool = True) -> Config:
    """`load_config` with the overrides that its run folder was made with, and a check of that folder's version and,
    unless `plugins` is false, of every plug-in that the config and its members name. Raises UserError.

    Systems, benchmarks, sources, rewards and measures stand above the config's schema, which knows none of them.
    """
    config = load_config(path, overrides, command)
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
    from ratchet.commands.plugins import check_plugins  # late: it loads all that a run may need

    try:
        check_plugins(config)
    except UserError as error:
        raise UserError("\n".join(f"{path}: {line}" for line in str(error).splitlines())) from error
