"""What is looked at before a job is submitted: a config that is wrong must not wait in a queue for a day to say so."""

from __future__ import annotations

from pathlib import Path

from agents.core.registry import models_of
from inference.serving.settings import serve_config
from questions.guard import guard, split_configs
from questions.load import load_split
from ratchet.config import Config, ModelConfig, load_members
from ratchet.errors import UserError
from ratchet.runfolder import check_same
from rounds.settings import rounds_of


def check(config: Config) -> list[str]:
    """Raises UserError for what would stop a job of this config; returns warnings. Opens no model, writes nothing."""
    rounds_of(config)
    check_same(config)
    warnings = []
    for name, member in load_members(config).items():
        if name:
            check_same(member)
        models_of([member.system, *member.evaluation.baselines.values()])
        for model_name, model in member.models.items():
            _check_model(f"models.{model_name}", model)
            serve_config(member, model_name)
        splits = split_configs(member)
        if any(split.on_hub for split in splits.values()):  # fetched by the job
            for split in splits.values():
                if not split.on_hub:
                    load_split(split, member.seed)
        else:
            warnings += guard(member)
    return warnings


def _check_model(key: str, model: ModelConfig) -> None:
    """Of a name such as org/model nobody here can say whether it is a folder or on the hub; of a path one can."""
    paths = {"path": model.path if model.engine != "openai" else "", "script": model.script or ""}
    for name, path in paths.items():
        if path.startswith(("/", "./", "../")) and not Path(path).exists():
            raise UserError(f"{key}.{name}: {path} is not there")
