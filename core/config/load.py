"""Reading and checking config files, with overrides and members."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ratchet.core.config.experiment import Config
from ratchet.core.config.questions import SPLITS, QuestionsConfig, SplitConfig
from ratchet.core.config.retrieval import IndexConfig
from ratchet.core.config.section import FOLDERS, MissingModels, find_path, folders_of, is_missing, missing_section
from ratchet.core.errors import UserError
from ratchet.core.parsing import overridden, parse, read_mapping


def load_config(path: str | Path, overrides: Sequence[str] = (), command: str = "") -> Config:
    """Read a config file and check it against its schema; `overrides` are 'key.path=value' with the value in YAML.

    What the plug-ins that it names make of it is checked by `commands.config.open_config`. Raises UserError.

    `command`: for the error where it needs a section that the file does not have.
    """
    data, folders = read_mapping(Path(path)), folders_of(Path(path))
    members = overridden(data, overrides).get("members")
    if isinstance(members, dict) and members:
        data = read_mapping(Path(find_path(str(next(iter(members.values()))), folders))) | data
    parsed = parse(Config, overridden(data, overrides), str(path), context={FOLDERS: folders})
    config = _name_missing_sections(parsed, str(path), command)
    config._file, config._overrides, config._command = str(path), tuple(overrides), command
    return config


def _name_missing_sections(config: Config, where: str, command: str) -> Config:
    """Let the sections that the file does not have name it, and the command, when they are used."""
    missing: dict[str, object] = {}
    if is_missing(config.index):
        missing["index"] = missing_section(IndexConfig, "index", where, command)
    if is_missing(config.questions):
        missing["questions"] = missing_section(QuestionsConfig, "questions", where, command)
    else:
        splits: dict[str, SplitConfig] = {
            name: missing_section(SplitConfig, f"questions.{name}", where, command)
            for name in SPLITS
            if is_missing(getattr(config.questions, name))
        }
        if splits:
            missing["questions"] = config.questions.model_copy(update=splits)
    if not config.models:
        missing["models"] = MissingModels(where, command)
    return config.model_copy(update=missing) if missing else config


def load_members(config: Config) -> dict[str, Config]:
    """The experiments whose kept trajectories train the adapter, by name; the config itself where it has no members."""
    if not config.members:
        return {"": config}
    members = {name: load_config(path) for name, path in config.members.items()}
    model = config.models[config.training.model]
    for name, member in members.items():
        if member.members:
            raise UserError(f"members.{name}: {config.members[name]} has members itself; name those here instead")
        if "/" in name or name.startswith((".", "round-")):
            raise UserError(f"members.{name}: this name cannot be a folder's; choose another")
        trained = member.models[member.training.model]
        if (trained.path, trained.revision) != (model.path, model.revision):
            raise UserError(
                f"members.{name}: {config.members[name]} trains {trained.path!r}, and the shared adapter is for "
                f"{model.path!r}; one adapter fits one model"
            )
    return members
