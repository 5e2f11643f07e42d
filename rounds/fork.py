"""Forks: a new run reads what another one has sampled where it lies, and copies nothing of it.

These are the trajectories of round 1, which the base model sampled, their scores, the nuggets of references, and the
complete arms of evaluations (`core.files.refer_to`). All of them are found by content keys, so that what does not fit
the fork's config is made again. Where the config samples as the source did, the ledger's entries of that are the fork's
as well, and no model is opened to find out that nothing is missing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ratchet.agents.core.system import models_of
from ratchet.core.config import Config
from ratchet.core.errors import UserError
from ratchet.core.files import Segment, read_json_file, refer_to, write_atomic, write_json
from ratchet.core.parsing import read_mapping
from ratchet.core.runfolder import RunFolder
from ratchet.evaluation.arms import scores_path
from ratchet.questions.manifest import check_version, open_run, sampling_differences
from ratchet.rewards.store import current_settings, kept_log_file
from ratchet.rounds.ledger import latest_entries
from ratchet.rounds.records import StageId, StageKey
from ratchet.sampling.store import TrajectoryStore

SAMPLED: tuple[StageId, ...] = ("index", "sample")
FOUND_BY_KEY = (
    "sampling.samples",
    "sampling.enough",
    "sampling.explore",
    "sampling.curriculum",
    "sampling.teacher",
    "questions.train",
)
"""What may differ: of the trajectories that the config plans, those that are there have the same keys."""


@dataclass(frozen=True)
class Fork:
    """What a fork reads of its source."""

    trajectories: int
    scores: tuple[str, ...]
    arms: int
    differences: tuple[str, ...]
    """The keys by which its config samples some other trajectories, each with both values."""


def fork(config: Config, source: RunFolder) -> Fork:
    """Make the run folder of a config a fork of another run. An interrupted fork is finished by the same call.

    Raises UserError where the source has not all of its trajectories or they do not fit the config, and where the
    folder is another run already.
    """
    run, store = RunFolder(config.folder), TrajectoryStore(source.round(1).trajectories)
    if config.members:
        raise UserError("members: the trajectories are those of the members' own runs; fork these")
    _check_sampled(source, store)
    differences = differences_in_sampling(config, read_mapping(source.config))
    if others := [line for line in differences if not line.startswith(FOUND_BY_KEY)]:
        raise UserError(
            f"{source.path}: its trajectories are of no use to this config, which samples others:\n  "
            + "\n  ".join(others)
            + "\nFork without these changes, or sample in a run of its own (ratchet selftrain)"
        )
    if run.ledger.exists() or any(run.round(1).trajectories.glob("*.jsonl")):
        raise UserError(f"{run.path}: is a run already; choose another folder, or go on with that run")
    open_run(config)
    planned = (store, *complete_arms(source))
    for one in planned:
        _refer(run, source, one)
    refer_to(run.nuggets, source.nuggets)
    write_json(run.manifest, read_json_file(run.manifest) | {"forked_from": str(source.path)})
    known = latest_entries(source)
    with Segment(run.ledger) as ledger:  # last: with it the fork is complete
        for id in SAMPLED if not differences else ():
            if (entry := known.get(StageKey(1, id))) is not None:
                facts = entry.facts | {"forked_from": str(source.path)}
                ledger.append(entry.model_copy(update={"facts": facts}))
    scores = tuple(current_settings(source.round(1).scores))
    return Fork(len(store.keys()), scores, len(planned) - 1, tuple(differences))


def differences_in_sampling(config: Config, other: dict[str, Any]) -> list[str]:
    """The keys by which a config samples other trajectories in round 1 than another config, which is given resolved;
    each with both values."""
    models = models_of([config.system]) | config.sampling.teacher.models
    return sampling_differences(other, config, models)


def is_sampled(source: RunFolder) -> bool:
    """True where all trajectories of round 1 are there."""
    store = TrajectoryStore(source.round(1).trajectories)
    return store.manifest() is not None and store.missing()[0] == 0


def complete_arms(source: RunFolder) -> list[TrajectoryStore]:
    """The arms of evaluations that have all their trajectories."""
    stores = [TrajectoryStore(path.parent) for path in sorted(source.path.glob("arms/*/*/*/manifest.json"))]
    return [store for store in stores if store.missing()[0] == 0]


def _check_sampled(source: RunFolder, store: TrajectoryStore) -> None:
    if not source.config.exists():
        raise UserError(f"{source.path}: there is no such run; name a run folder")
    check_version(source)
    if store.manifest() is None:
        raise UserError(f"{store.folder}: nothing was sampled here yet; run `ratchet sample` for that run first")
    missing, planned = store.missing()
    if missing:
        raise UserError(
            f"{store.folder}: {missing} of {planned} trajectories are missing; finish `ratchet sample` for that run"
        )


def _refer(run: RunFolder, source: RunFolder, store: TrajectoryStore) -> None:
    """Refer to the trajectories and scores of a store, whose small records are the fork's own from here on."""
    is_round = store.folder.parent.parent == source.path
    scores = source.round(1).scores if is_round else scores_path(store)
    for folder, record in ((store.folder, "manifest.json"), (scores, "settings.json")):
        own = run.path / folder.relative_to(source.path)
        if (folder / record).exists():
            own.mkdir(parents=True, exist_ok=True)
            write_atomic(own / record, (folder / record).read_bytes())
            refer_to(own, folder)
    # Replies to scores that may get more runs. The others are deleted when the source's scores are finished.
    kept = [kept_log_file(scores, name, own) for name, own in current_settings(scores).items()]
    refer_to(run.path / scores.relative_to(source.path) / "judge", scores / "judge", {path.name for path in kept})
