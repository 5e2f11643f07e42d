"""The runs of an ablation: every arm with every seed, each a run of its own below the config's.

    ablations/<file>/table.txt, table.csv, table.tex    the table (`evaluation.ablation`)
    ablations/<file>/seed-<seed>/<arm>/                 a run folder

Where arms of one seed sample alike, the first one samples, unless the config's own run has sampled so already, and the
others are forks of it (`rounds.fork`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ratchet.core.config import Config, load_config
from ratchet.core.errors import UserError
from ratchet.core.escape import file_name, yaml_value
from ratchet.core.parsing import read_mapping
from ratchet.core.runfolder import RunFolder
from ratchet.evaluation.ablation import RunResults
from ratchet.evaluation.arms import results_path
from ratchet.evaluation.results import read_results
from ratchet.questions.manifest import key_of, remembered_overrides
from ratchet.rounds.artefacts import Digests
from ratchet.rounds.fork import differences_in_sampling, is_sampled
from ratchet.rounds.ledger import latest_entries, reason_to_run
from ratchet.rounds.stages import ExperimentRun, stages_of

Arms = Mapping[str, tuple[str, ...]]
"""By name, the `--set` of each arm."""
OF_RUN = ("run", "seed", "members")
"""Keys that no arm can set."""


@dataclass(frozen=True)
class ArmRun:
    """One arm with one seed."""

    arm: str
    seed: int
    experiment: ExperimentRun
    source: ExperimentRun | None = None
    """The run whose trajectories it reads; None where it samples itself."""

    @property
    def title(self) -> str:
        return f"{self.arm}, seed {self.seed}"

    @property
    def run(self) -> RunFolder:
        return self.experiment.run


def ablation_folder(config: Config, arms_file: Path) -> Path:
    """The folder of an ablation's runs and tables."""
    return config.folder / "ablations" / file_name(arms_file.stem)


def read_arms_file(path: Path) -> dict[str, tuple[str, ...]]:
    """The arms of a YAML file, which maps their names to lists of KEY=VALUE. Raises UserError."""
    arms: dict[str, tuple[str, ...]] = {}
    for name, given in read_mapping(path, "expected a mapping of the arms' names to lists of KEY=VALUE").items():
        lines = given or []
        if not isinstance(lines, list) or not all(isinstance(line, str) and "=" in line for line in lines):
            raise UserError(f"{path}: {name}: expected a list of KEY=VALUE, such as [rewards.select.ties=1]")
        if taken := [line for line in lines if key_of(line) in OF_RUN]:
            raise UserError(f"{path}: {name}: {taken[0]}: every run has its own; remove it")
        if not file_name(str(name)):
            raise UserError(f"{path}: {name}: this name cannot be a folder's; choose another")
        arms[str(name)] = tuple(lines)
    folders = [file_name(name) for name in arms]
    if not arms or len(set(folders)) < len(folders):
        raise UserError(f"{path}: name at least one arm, and none like another but for its punctuation")
    return arms


def plan_runs(experiment: ExperimentRun, folder: Path, arms: Arms, seeds: Sequence[int]) -> list[ArmRun]:
    """The runs, seed by seed in the order of the arms, none before the one that it reads from. Raises UserError."""
    if experiment.config.members:
        raise UserError("members: an ablation has one config; name a member's")
    sources = [(experiment, read_mapping(experiment.run.config))] if is_sampled(experiment.run) else []
    runs: list[ArmRun] = []
    for seed in seeds:
        for arm, changes in arms.items():
            try:
                own = _experiment(experiment, folder / f"seed-{seed}" / file_name(arm), changes, seed)
            except UserError as error:
                raise UserError(f"{arm}: {error}") from error
            alike = (one for one, config in sources if not differences_in_sampling(own.config, config))
            runs.append(ArmRun(arm, seed, own, next(alike, None)))
            if runs[-1].source is None:
                sources.append((own, own.config.model_dump(mode="json")))
    return runs


def _experiment(experiment: ExperimentRun, run: Path, changes: Sequence[str], seed: int) -> ExperimentRun:
    """The experiment of an arm with a seed: that of the config, with other keys and in a folder of its own."""
    overrides = [*experiment.config.overrides, *changes, f"seed={seed}", f"run={yaml_value(str(run))}"]
    if forgotten := remembered_overrides(RunFolder(run), overrides):
        raise UserError(
            f"{run}: was started with --set {' --set '.join(forgotten)}, which its arm no longer has: give the arm "
            "another name, or delete the folder"
        )
    config = load_config(experiment.arguments[1], overrides)
    return ExperimentRun(config, config.words, experiment.accelerate, experiment.processes)


def samplers(runs: Sequence[ArmRun]) -> list[ArmRun]:
    """The runs whose trajectories others may read."""
    return [run for run in runs if run.source is None]


def what_is_left(experiment: ExperimentRun) -> str:
    """The first stage that a run has to do before its results count, with the reason; empty where there is none."""
    known, digests = latest_entries(experiment.run), Digests(experiment.run)
    for stage in stages_of(experiment):
        if stage.id != "report" and (due := reason_to_run(stage, known, digests)) is not None:
            return f"{stage.title}: {due.reason}"
    return ""


def results_of(experiment: ExperimentRun) -> RunResults:
    """The results of a finished run."""
    run = experiment.run
    number = next(stage.round for stage in stages_of(experiment) if stage.id in ("evaluate", "test"))
    results = [
        read_results(results_path(run.round(number), split)) for split in experiment.config.evaluation.question_sets
    ]
    selections = [selection for folder in run.rounds() if (selection := folder.read_selection()) is not None]
    return RunResults(
        results=tuple(one for one in results if one is not None),
        kept=sum(len(selection.kept) for selection in selections),
        commits=frozenset(entry.code for entry in latest_entries(run).values() if entry.code),
    )
