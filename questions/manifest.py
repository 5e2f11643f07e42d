"""Opening a run folder: its resolved config, and the manifest that says what made its records."""

from __future__ import annotations

import os
import platform
from collections.abc import Collection, Iterable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml

from ratchet.core.config import Config, PathText, is_missing, written
from ratchet.core.errors import UserError
from ratchet.core.files import read_json_file, write_atomic, write_json
from ratchet.core.installed import code_version
from ratchet.core.parsing import read_mapping
from ratchet.core.runfolder import SPLITS, RunFolder, path_digest
from ratchet.questions.load import load_split

VERSION = 3
"""Version of the layout of run folders. A run folder of another version is refused, not converted."""
LATER_PASSES = ("rewards", "evaluation", "rounds", "sweep", "generation")
MACHINE = {"device", "url", "serve", "api_key_env", "timeout", "concurrency", "batch", "cache_gb", "workers"}
"""Keys of a model that say where and how wide it runs; what it says does not depend on them."""
PACKAGES = ("torch", "transformers", "peft", "trl", "accelerate", "xgrammar", "numba", "vllm", "unsloth")


def open_run(config: Config, uses: Collection[str] | None = None) -> RunFolder:
    """Make or reopen the run folder of a config. Raises UserError with the difference where the config would change
    what is in the folder already; a folder without trajectories accepts any config. `uses`: the splits and benchmarks
    whose questions the command uses, by default all; the manifest holds those that commands used so far.

    Scoring and evaluating may change on one run (LATER_PASSES): raw output stays as it is, and every score and
    selection carries the settings that made it. So may the machines that it runs on (MACHINE), what happens to leaks,
    and how to train before the first training.
    """
    run = RunFolder(config.folder)
    resolved = config.model_dump(mode="json")
    is_same = check_same(config) == resolved
    old = read_json_file(run.manifest) if run.manifest.exists() and (is_same or run.has_trajectories) else {}
    known = {name: facts for name, facts in old.get("questions", {}).items() if is_same or name in SPLITS}
    splits = {
        key.removeprefix("questions.").removeprefix("evaluation.benchmarks."): s for key, s in config.splits.items()
    }
    used = {name: split for name, split in splits.items() if name not in known and (uses is None or name in uses)}
    if is_same and not used:
        return run
    questions = known | {name: load_split(split, config.seed).facts() for name, split in used.items()}
    documents = () if is_missing(config.index) else config.index.documents
    # First, as a missing question file stops before it.
    write_json(run.manifest, (old or _manifest(config.seed, documents)) | {"questions": questions})
    if is_same:
        return run
    if not run.has_trajectories:
        write_json(run.overrides, [one for one in config.overrides if key_of(one) != "run"])
    # Last: where a kill leaves the folder without it, all of them are written again.
    write_atomic(run.config, yaml.safe_dump(resolved, sort_keys=False))
    return run


def remembered_overrides(run: RunFolder, overrides: Sequence[str]) -> list[str]:
    """The `--set` that a run folder was made with, without the keys that `overrides` sets. Raises UserError."""
    try:
        stored = read_json_file(run.overrides)
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise UserError(f"{run.overrides}: is damaged ({error}); delete it, and give --set again") from error
    if not isinstance(stored, list) or not all(isinstance(one, str) for one in stored):
        raise UserError(f"{run.overrides}: is no list of KEY=VALUE; delete it, and give --set again")
    given = set(map(key_of, overrides))
    return [one for one in stored if key_of(one) not in given]


def key_of(override: str) -> str:
    """The key of KEY=VALUE."""
    return override.partition("=")[0]


def check_same(config: Config) -> dict[str, Any] | None:
    """The config of the run folder, None before there is one. UserError where the folder was made with another."""
    run = RunFolder(config.folder)
    if not run.config.exists():
        return None
    check_version(run)
    try:
        old = read_mapping(run.config)
    except UserError as error:
        raise UserError(f"{error}. It is the run folder's record of its config: choose another run folder") from error
    has_training = any(folder.training.exists() for folder in run.rounds())
    if not has_training and not run.has_trajectories:
        return old
    now = config.model_dump(mode="json")
    if changes := _difference(_binding(old, has_training), _binding(now, has_training)):
        raise UserError(
            f"{run.path} was made with another config:\n  " + "\n  ".join(changes) + "\n"
            "Choose another run folder (--set run=runs/NEW; `ratchet fork` lets it read the trajectories that fit), "
            "or go back to the old values."
        )
    return old


def sampling_differences(old: dict[str, Any], config: Config, models: Collection[str]) -> list[str]:
    """What of a config would sample other trajectories of the training questions than a resolved one: a line for each
    key, which it begins with. `models`: those that sample."""

    def sampled_by(resolved: dict[str, Any]) -> dict[str, Any]:
        kept = _binding(resolved, has_training=False)
        used = {name: model for name, model in kept["models"].items() if name in models}
        return kept | {"models": used, "questions": {"train": kept["questions"].get("train")}}

    return _difference(sampled_by(old), sampled_by(config.model_dump(mode="json")))


def check_version(run: RunFolder) -> None:
    """UserError where a run folder was made by another version of Ratchet; nothing where there is none yet."""
    try:
        version = read_json_file(run.manifest).get("version", 1)
    except FileNotFoundError:
        return
    except (OSError, ValueError, AttributeError) as error:
        raise UserError(f"{run.manifest}: is damaged ({error}); choose another run folder") from error
    if version != VERSION:
        raise UserError(
            f"{run.path} is a run folder of version {version}, and this is version {VERSION} of Ratchet's run folders: "
            "start a new one (--set run=runs/NEW), or use the version of Ratchet that made it"
        )


def _binding(resolved: dict[str, Any], has_training: bool) -> dict[str, Any]:
    """The part of a config that trajectories, and the training where there is one, were made with."""
    kept = {key: value for key, value in resolved.items() if key not in (*LATER_PASSES, "run")}
    if not has_training:
        kept.pop("training", None)
    models = {
        name: {key: value for key, value in model.items() if key not in MACHINE}
        for name, model in resolved.get("models", {}).items()
    }
    embedder = {key: value for key, value in (resolved.get("embedder") or {}).items() if key not in (*MACHINE, "tries")}
    questions = {key: value for key, value in (resolved.get("questions") or {}).items() if key != "leakage"}
    sampling = {**resolved.get("sampling", {}), "concurrency": None}
    return kept | {"models": models, "embedder": embedder, "questions": questions, "sampling": sampling}


def _difference(old: Any, new: Any, key: str = "") -> list[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        keys = [*old, *(k for k in new if k not in old)]
        return [line for k in keys for line in _difference(old.get(k), new.get(k), f"{key}.{k}" if key else str(k))]
    return [] if old == new else [f"{key}: {old!r} there, {new!r} now"]


def _manifest(seed: int, documents: Iterable[PathText]) -> dict[str, Any]:
    return {
        "version": VERSION,
        "seed": seed,
        "code": code_version(),
        "python": platform.python_version(),
        "packages": {name: version for name in PACKAGES if (version := _package_version(name))},
        "machine": {"cpu": platform.processor() or platform.machine(), "cores": os.cpu_count()},
        "documents": {written(name): path_digest(Path(name)) for name in documents},
    }


def _package_version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
