"""Reading and checking config files, with overrides and members."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ratchet.config.experiment import Config
from ratchet.config.index import IndexConfig
from ratchet.config.missing import MissingModels, is_missing, missing_section
from ratchet.config.paths import FOLDERS, find_path, folders_of
from ratchet.config.questions import SPLITS, QuestionsConfig, SplitConfig
from ratchet.config.rewards import RewardsConfig
from ratchet.config.sources import PluginConfig
from ratchet.errors import UserError
from ratchet.parsing import overridden, parse, read_mapping
from ratchet.plugins import is_path


def load_config(path: str | Path, overrides: Sequence[str] = (), command: str = "") -> Config:
    """Read and check a config file; `overrides` are 'key.path=value' with the value in YAML. Raises UserError.

    `command`: for the error where it needs a section that the file does not have.
    """
    data, folders = read_mapping(Path(path)), folders_of(Path(path))
    members = overridden(data, overrides).get("members")
    if isinstance(members, dict) and members:
        data = read_mapping(Path(find_path(str(next(iter(members.values()))), folders))) | data
    parsed = parse(Config, overridden(data, overrides), str(path), context={FOLDERS: folders})
    config = _name_missing_sections(parsed, str(path), command)
    try:
        _check_plugins(config)
    except UserError as error:
        raise UserError("\n".join(f"{path}: {line}" for line in str(error).splitlines())) from error
    return config


def _name_missing_sections(config: Config, where: str, command: str) -> Config:
    """Let the sections that the file does not have name it, and the command, when they are used."""
    missing: dict[str, object] = {}
    if is_missing(config.index):
        missing["index"] = missing_section(IndexConfig, "index", where, command)
    if is_missing(config.questions):
        missing["questions"] = missing_section(QuestionsConfig, "questions", where, command)
    if not config.models:
        missing["models"] = MissingModels(where, command)
    return config.model_copy(update=missing) if missing else config


def _check_plugins(config: Config) -> None:
    """Check what only the plug-ins know: a system's settings and roles, a benchmark's name and splits, the scores, the
    settings of a source, a measure.

    The plug-ins stand above this package and import it, so they are imported here, when a file is read, and only those
    that the config names.
    """
    from agents.core.system import load_system

    for key, system in config.systems.items():
        load_system(system, key)
    named: dict[str, SplitConfig] = {}
    if not is_missing(config.questions):
        named |= {f"questions.{name}": getattr(config.questions, name) for name in SPLITS}
    named |= {f"evaluation.benchmarks.{name}": split for name, split in config.evaluation.benchmarks.items()}
    for key, split in named.items():
        if split.benchmark:
            from questions.benchmark import load_benchmark

            try:
                load_benchmark(split.benchmark).split(split)
            except UserError as error:
                raise UserError(f"{key}.{error}") from error
    for name, source in config.sources.items():
        if isinstance(source, PluginConfig):
            from retrieval.sources.plugin import load_source

            load_source(name, source)
    _check_scores(config)
    if config.sweep.measure:
        from evaluation.sweep.measure import check_measure

        check_measure(config)


def _check_scores(config: Config) -> None:
    """Check the names of all scores, the judge's prompts, and that its model is there where one of them is judged."""
    from rewards.prompts import judge_prompts
    from rewards.reward import load_reward

    judge_prompts(config.rewards)
    weights, scores = config.rewards.weights, config.evaluation.scores
    found = [load_reward(name, "rewards.weights" + ("" if is_path(name) else f".{name}")) for name in weights]
    found += [load_reward(name, "evaluation.scores") for name in scores]
    judge = config.rewards.judge
    # Only where the file names a judge: a config that only builds an index, searches or asks needs none.
    named = judge != RewardsConfig().judge and any(reward.needs_judge for reward in found)
    if named and (problem := config.why_no_model("rewards.judge", judge)):
        raise UserError(problem)


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
