"""Arms, each a system with an adapter on a question set: sampling, scoring, reading and comparing them.

    arms/<split>/<system>-<digest>/<policy>/            an arm's trajectories (sampling/store.py), one JSONL segment
    arms/<split>/<system>-<digest>/<policy>/scores/     its scores
    round-N/evaluation/arms-<split>.json                the arms that the round was last evaluated with
    round-N/evaluation/results.json                     the table (results-<split>.json for other splits)

An arm's folder follows from what the arm is, so evaluations, promotions and sweeps that ask for the same arm find the
same trajectories and scores. The digest is of the system's settings and of how it is sampled; the policy is 'base', or
the adapter's digest, followed by '-seed+1' where the seeds are others (evaluation.controls). Any number of processes
may work on different arms at once.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from agents.core.context import RunContext
from agents.core.system import load_system
from evaluation.headline import verdict
from evaluation.measures.complementarity import complementarity
from evaluation.measures.gain import label_floor
from evaluation.measures.measures import Scores
from evaluation.question_sets import QuestionSet, question_set
from evaluation.results import (
    BASE,
    BASE_AGAIN,
    BASE_IN_FORM,
    GOLD,
    PARENT,
    RANDOM,
    RESERVED,
    TRAINED,
    TRAINED_IN_FORM,
    Results,
    best_baseline,
    compare,
    in_form,
    make_arm,
    primary_measure,
    selection_gain,
)
from inference.adapters import is_adapter
from questions.leakage import check_adapter_leakage
from ratchet.config import Config, SystemConfig, TrainedControl
from ratchet.errors import UserError
from ratchet.files import read_record, write_record
from ratchet.plugins import short_name
from ratchet.records import Record, Score, Trajectory, content_key
from ratchet.runfolder import RoundFolder
from rewards.check import check_corpus
from rewards.reward import judge_of
from rewards.store import stored_scores
from sampling.pool import Pass, policy_name, sample
from sampling.store import Manifest, TrajectoryStore

State = Literal["done", "part", "missing"]


@dataclass(frozen=True)
class ArmPlan:
    """What one arm runs, and where its trajectories and scores are stored."""

    name: str
    """The arm's name in tables."""
    system: SystemConfig
    asked: QuestionSet
    adapter: Path | None
    policy: str
    """'base', or the adapter's digest."""
    store: TrajectoryStore
    trained_on: Path | None = None
    """The adapter folder that says which questions were trained on, which this arm must not ask; None skips the
    check."""
    group: int = 0
    """Arms of a lower group are sampled first: those of one adapter together, where a server holds only a few."""
    seed_offset: int = 0
    """Added to the config's seed."""

    @property
    def scores(self) -> Path:
        return scores_path(self.store)


@dataclass(frozen=True)
class ArmStatus:
    """How much of an arm is on disk."""

    state: State
    note: str = ""
    trajectories: Sequence[Trajectory] = ()
    scores: Scores = field(default_factory=dict)
    failed: int = 0
    """Trajectories that failed by a fault: tables count them, and the next run of the arm samples them again."""


class RoundArms(Record):
    """round-N/evaluation/arms-<split>.json"""

    arms: dict[str, str]
    """By arm name, its folder below the run folder, in the order of the table."""


def arm_store(config: Config, split: str, system: SystemConfig, policy: str, seed_offset: int = 0) -> TrajectoryStore:
    """Where the arm is kept, whoever asks for it. `seed_offset`: added to the config's seed."""
    identity = load_system(system).identity
    digest = content_key(identity, config.evaluation.temperature, config.evaluation.top_p)
    name = f"{policy}-seed{seed_offset:+d}" if seed_offset else policy
    return TrajectoryStore(config.folder / "arms" / split / f"{short_name(system.name)}-{digest[:8]}" / name)


def scores_path(store: TrajectoryStore) -> Path:
    """The folder that holds an arm's scores."""
    return store.folder / "scores"


# One arm, or many: what an evaluation, a promotion and a sweep have in common


def _is_planned(config: Config, arm: ArmPlan, manifest: Manifest | None) -> bool:
    """Whether the manifest plans the arm's questions, with as many samples as the config says."""
    wanted = (arm.asked.digest, config.evaluation.samples_of(arm.name))
    return manifest is not None and (manifest.questions, manifest.samples) == wanted


def arm_status(config: Config, arm: ArmPlan) -> ArmStatus:
    """How much of an arm is on disk, without opening a model. It does not notice a model or index changed in place."""
    manifest = arm.store.manifest()
    keys = manifest.keys if manifest else arm.store.keys()  # raises where trajectories lie without a manifest
    found = arm.store.load(keys) if _is_planned(config, arm, manifest) else []
    if not found or len(found) < len(keys):
        started = any(path.stat().st_size for path in arm.store.segments)
        return ArmStatus("part", "not all sampled") if started else ArmStatus("missing")
    names = config.evaluation.scores
    scores = stored_scores(arm.scores, set(keys))
    if lacking := sum((key, name) not in scores for key in keys for name in names):
        return ArmStatus("part", f"{lacking} of {len(keys) * len(names)} scores are missing", found, scores)
    failed = sum(trajectory.status == "failed" for trajectory in found)
    return ArmStatus("done", f"{failed} failed" if failed else "", found, scores, failed)


def sample_arms(config: Config, arms: Iterable[ArmPlan], title: str) -> None:
    """Sample the arms' missing trajectories, in one pool."""
    by_folder = {arm.store.folder: arm for arm in arms}  # two names may mean the same arm
    passes = [
        Pass(
            arm.system,
            RunContext(
                temperature=config.evaluation.temperature,
                frozen_temperature=config.evaluation.temperature,
                top_p=config.evaluation.top_p,
                adapter=None if arm.adapter is None else str(arm.adapter),
                policy=arm.policy,
                scope=folder.relative_to(config.folder).as_posix(),  # What one arm remembers must not help another.
            ),
            arm.asked.questions,
            config.evaluation.samples_of(arm.name),
            folder,
            group=arm.group,
            seed_offset=arm.seed_offset,
        )
        for folder, arm in by_folder.items()
    ]
    sample(config, passes, title)


def check_leaks(config: Config, arms: Iterable[ArmPlan]) -> None:
    """Raises UserError where an adapter was trained on questions that it would be asked; prints warnings."""
    printed: set[str] = set()
    for arm in arms:
        if arm.trained_on is None:
            continue
        strict = arm.asked.name not in ("train", "dev")
        modes = config.questions.leakage
        for warning in check_adapter_leakage(arm.trained_on, arm.asked.questions, modes, arm.asked.name, strict):
            if warning not in printed:
                print(warning, file=sys.stderr)
                printed.add(warning)


@contextlib.contextmanager
def open_scoring(config: Config) -> Iterator[Callable[[ArmPlan, Sequence[Trajectory]], Scores]]:
    """A function that scores one arm: it reuses stored scores, and opens the judge at most once for all arms."""
    from rewards.scoring import LazyJudge, score_trajectories  # late: rebuilding a table needs no judge

    names = config.evaluation.scores
    with contextlib.closing(LazyJudge(config)) as judge:
        yield lambda arm, found: score_trajectories(config, arm.asked.questions, found, names, arm.scores, judge)


# The arms of a round: base, adapter, and what they are compared with


def results_path(folder: RoundFolder, config: Config, split: str) -> Path:
    """The file that holds a round's results on a split."""
    return folder.evaluation / ("results.json" if split == config.evaluation.split else f"results-{split}.json")


def plan(
    config: Config,
    splits: Sequence[str],
    adapter: Path | None,
    parent: Path | None = None,
    controls: Mapping[str, Path] | None = None,
) -> list[ArmPlan]:
    """The arms of a round on every split: base, `parent`, `adapter` and `controls` where they are given, base again
    where the config asks for it, and the config's baselines, on the base model or with their own adapter.

    `parent` is the adapter that `adapter` has to improve on; `controls` are adapters by arm.
    """
    for name in config.evaluation.baselines:
        if name in RESERVED or name.startswith((".", "scores-")) or "/" in name:
            raise UserError(f"evaluation.baselines.{name}: this name cannot be used for a baseline; choose another")
    adapters = {PARENT: parent, TRAINED: adapter, **(controls or {})}
    runs: list[tuple[str, SystemConfig, Path | None]] = [(BASE, config.system, None)]
    runs += [(name, config.system, folder) for name, folder in adapters.items() if folder is not None]
    runs += [(BASE_AGAIN, config.system, None)] if "base-again" in config.evaluation.controls else []
    if "form" in config.evaluation.controls and (enforced := with_enforced_form(config.system)) != config.system:
        runs += [(BASE_IN_FORM, enforced, None)]
        runs += [(TRAINED_IN_FORM, enforced, adapter)] if adapter is not None else []
    trained = baseline_adapters(config)
    runs += [(name, system, trained.get(name)) for name, system in config.evaluation.baselines.items()]
    policies = {folder: policy_name(folder) for _, _, folder in runs}
    offsets = {BASE_AGAIN: 1}
    return [
        ArmPlan(
            name,
            system,
            asked,
            folder,
            policies[folder],
            arm_store(config, asked.name, system, policies[folder], offsets.get(name, 0)),
            trained_on=folder if name in (TRAINED, TRAINED_IN_FORM, RANDOM, GOLD, *trained) else None,
            seed_offset=offsets.get(name, 0),
        )
        for asked in [question_set(config, split) for split in splits]
        for name, system, folder in runs
        if asked.name not in config.evaluation.skip.get(name, ())
    ]


def baseline_adapters(config: Config) -> dict[str, Path]:
    """The adapter folders of the baselines that have one. Raises UserError where one is missing."""
    found = {name: Path(folder) for name, folder in config.evaluation.adapters.items()}
    for name, folder in found.items():
        if name in config.evaluation.baselines and not is_adapter(folder):
            raise UserError(
                f"evaluation.adapters.{name}: {folder}: there is no adapter here; train it first (python selftrain.py "
                "with a config of this system), or remove the key"
            )
    return found


def with_enforced_form(system: SystemConfig) -> SystemConfig:
    """The system with decoding constrained to the form of its actions and, where it gives one, of its label."""
    changes = {"malformed": "constrain"}
    if load_system(system).gives_verdict:
        changes["labels"] = "constrain"
    return system.model_copy(update=changes)


def run_arms(
    config: Config,
    folder: RoundFolder,
    splits: Sequence[str],
    adapter: Path | None,
    parent: Path | None = None,
    sampled: bool = False,
) -> list[ArmPlan]:
    """Sample the missing trajectories of every arm of the round, without scoring.

    `sampled`: all arms were sampled before, so no model is opened. Raises UserError where one was not.
    """
    arms = plan(config, splits, adapter, parent, _controls(config, folder, adapter))
    if not sampled:
        check_leaks(config, arms)
        keys = {"train": "questions.train", "dev": "questions.dev", "test": "questions.test"}
        for warning in check_corpus(config, [keys.get(one, f"evaluation.benchmarks.{one}") for one in splits]):
            print(warning, file=sys.stderr)
    elif unplanned := [arm for arm in arms if not _is_planned(config, arm, arm.store.manifest())]:
        arm = unplanned[0]
        raise UserError(
            f"{arm.store.folder}: {arm.name}/{arm.asked.name}: this arm was not sampled yet; run the same command with "
            "--phase sample first"
        )
    for split in splits:
        record_arms(config, folder, split, arms)
    if not sampled:
        sample_arms(config, arms, f"evaluate {len({arm.name for arm in arms})} arm(s) on {', '.join(splits)}")
    return arms


def _controls(config: Config, folder: RoundFolder, adapter: Path | None) -> dict[str, Path]:
    """By arm, the adapters of the round's controls that the config asks for, where `adapter` is the round's own."""
    if adapter is None or adapter.resolve() != folder.adapter.resolve():
        return {}
    names: dict[TrainedControl, str] = {"random": RANDOM, "gold": GOLD}
    found = {}
    for name in config.evaluation.trained_controls:
        found[names[name]] = control = folder.control(name).adapter
        if not is_adapter(control):
            raise UserError(
                f"{control}: there is no adapter here, and evaluation.controls asks for the control {name}; train it "
                f"first (accelerate launch train.py --control {name}), or remove {name} from evaluation.controls"
            )
    return found


def record_arms(config: Config, folder: RoundFolder, split: str, arms: Iterable[ArmPlan]) -> None:
    """Record which arms the round's table of the split compares."""
    stores = {arm.name: arm.store for arm in arms if arm.asked.name == split}
    places = {name: store.folder.relative_to(config.folder).as_posix() for name, store in stores.items()}
    write_record(_arms_file(folder, split), RoundArms(arms=places))


def _arms_file(folder: RoundFolder, split: str) -> Path:
    return folder.evaluation / f"arms-{split}.json"


def read_arms(folder: RoundFolder, split: str) -> dict[str, TrajectoryStore]:
    """By name, the arms of the round's last evaluation on the split; empty before the first one."""
    record = read_record(_arms_file(folder, split), RoundArms, "delete it and run `python -m evaluation` again")
    run = folder.path.parent
    return {name: TrajectoryStore(run / place) for name, place in record.arms.items()} if record else {}


def evaluated_splits(folder: RoundFolder) -> list[str]:
    """The question sets that the round's arms were started on."""
    return sorted(path.stem.removeprefix("arms-") for path in folder.evaluation.glob("arms-*.json"))


def evaluate(
    config: Config,
    folder: RoundFolder,
    number: int,
    splits: Sequence[str],
    adapter: Path | None,
    parent: Path | None = None,
    sampled: bool = False,
) -> list[Results]:
    """Sample (in one pool), score and compare every arm on every split; stored results are reused.

    `sampled`: `run_arms` sampled all arms before, and no agent's model is opened: the judge may need the memory.
    """
    judge_of(config, config.evaluation.scores)  # a judge that is missing is found out before anything is sampled
    arms = run_arms(config, folder, splits, adapter, parent, sampled)
    results = []
    with open_scoring(config) as score:
        for split in splits:
            scores: dict[tuple[str, str], Score] = {}
            for arm in arms:
                if arm.asked.name == split:
                    scores.update(score(arm, arm_trajectories(arm.store)))
            results += build_results(config, folder, number, [split], scores)
    return results


def build_results(
    config: Config, folder: RoundFolder, number: int, splits: Sequence[str], fresh: Scores | None = None
) -> list[Results]:
    """Build and write the results from stored trajectories and scores, without opening a model.

    `fresh`: the scores of this run, with the unfinished ones, which are not stored.
    """
    results = []
    named = {*RESERVED, *config.evaluation.baselines}
    for split in splits:
        stores = {name: store for name, store in read_arms(folder, split).items() if name in named}
        if BASE not in stores:
            raise UserError(
                f"{_arms_file(folder, split)}: the base arm was not run yet; run `python -m evaluation` with this split"
            )
        results.append(_compared(config, number, split, stores, fresh or stored_arm_scores(stores.values())))
        write_record(results_path(folder, config, split), results[-1])
    return results


def arm_trajectories(store: TrajectoryStore) -> list[Trajectory]:
    """The arm's trajectories in its order, without their conversations. Raises UserError where some are missing."""
    keys = store.keys()
    found = store.load(keys)
    if gone := len(keys) - len(found):
        raise UserError(
            f"{store.folder}: {gone} trajectories are gone; run `python -m evaluation` to sample them again"
        )
    return found


def stored_arm_scores(stores: Iterable[TrajectoryStore]) -> Scores:
    """Every stored score of the arms' trajectories."""
    found: dict[tuple[str, str], Score] = {}
    for store in stores:
        found |= stored_scores(scores_path(store), set(store.keys()))
    return found


def _compared(
    config: Config, number: int, split: str, stores: Mapping[str, TrajectoryStore], scores: Scores
) -> Results:
    asked = question_set(config, split)
    questions = asked.questions
    found = {name: arm_trajectories(store) for name, store in stores.items()}
    names, weights, resamples = config.evaluation.scores, config.rewards.weights, config.evaluation.resamples
    primary = primary_measure(questions, names)
    arms = [
        make_arm(
            name, *store.system_and_policy(), questions, found[name], scores, names, weights, resamples, config.seed
        )
        for name, store in stores.items()
    ]
    comparisons = tuple(compare(arms[0], arm, questions, primary, resamples, config.seed) for arm in arms[1:])
    also_trained = config.evaluation.adapters
    best = best_baseline(arms, primary, resamples, config.seed, without=also_trained)
    rival = best_baseline(arms, primary, resamples, config.seed, only=also_trained)
    floor = label_floor(questions)
    selection = selection_gain(arms, primary, resamples, config.seed)
    enforced = in_form(arms, primary, resamples, config.seed)
    comparisons = tuple(
        one.model_copy(update={"gain": one.gain.model_copy(update={"enforced": enforced})})
        if one.arm == TRAINED
        else one
        for one in comparisons
    )
    return Results(
        round=number,
        split=split,
        title=asked.title,
        questions=len(questions),
        samples=config.evaluation.samples,
        seed=config.seed,
        resamples=resamples,
        primary=primary,
        arms=tuple(arms),
        comparisons=comparisons,
        complementarity={
            name: shares
            for name, trajectories in found.items()
            if (shares := complementarity(questions, trajectories)) is not None
        },
        label_floor=floor,
        best_baseline=best,
        trained_baseline=rival,
        selection=selection,
        verdict=verdict(
            next((c for c in comparisons if c.arm == TRAINED), None), primary, best, floor, selection, rival
        ),
    )
