"""The stages of a run as data: the command of each, what it reads and writes, and the models that it calls.

Every command is one that a user can type or a job can run. A stage whose models have no address is put under
`ratchet models serve`, which has the servers up while it runs and no longer: training finds the GPU free, and
agents and judge are never up together unless one stage asks both.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from ratchet.agents.core.exploration import RULES, Rule, load_rules
from ratchet.agents.core.prompts import prompts_digest
from ratchet.agents.core.system import load_system, models_of
from ratchet.core.config import (
    Config,
    ModelConfig,
    PluginConfig,
    SystemConfig,
    TrainedControl,
    is_missing,
    load_members,
)
from ratchet.core.config.evaluation import FINAL
from ratchet.core.records import content_key
from ratchet.core.runfolder import RoundFolder, RunFolder
from ratchet.evaluation.arms import results_path, split_of
from ratchet.inference.engines import needs_server
from ratchet.retrieval.sources.source import load_source
from ratchet.rewards.prompts import replaced_digest
from ratchet.rewards.reward import judge_of, load_reward
from ratchet.rounds.artefacts import (
    Adapter,
    Arms,
    Artefact,
    CandidateArms,
    Candidates,
    File,
    Files,
    FixedDigest,
    Index,
    Questions,
    Segments,
)
from ratchet.rounds.records import SPLIT, StageId, StageKey, kept_any, last_promoted, last_round

RATCHET = (sys.executable, "-P", "-m", "ratchet")
"""The start of a command. -P: a folder `agents` in the working directory hides no package that a plug-in imports."""
Command = tuple[str, ...]


@dataclass(frozen=True)
class Stage:
    """One step of a run: its command, and what the command reads and writes."""

    round: int
    id: StageId
    command: Command
    reads: Mapping[str, Artefact]
    writes: Mapping[str, Artefact]
    asks: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    """The models among them that are served while it runs."""
    member: str = ""
    """The member whose stage it is; empty where it is the run's own."""

    @property
    def key(self) -> StageKey:
        return StageKey(self.round, self.id, self.member)

    @property
    def title(self) -> str:
        return self.key.title


@dataclass(frozen=True)
class ExperimentRun:
    """A config as its user gave it, and where it is run."""

    config: Config
    arguments: tuple[str, ...]
    """--config and --set, for every command."""
    accelerate: str | None = None
    """A config file of `accelerate launch`."""
    processes: int | None = None
    """Processes of the training, each on a GPU of this machine. None: one without a launcher, or as the file says."""
    member: str = ""

    @property
    def run(self) -> RunFolder:
        return RunFolder(self.config.folder)

    def command(self, *words: str, number: int | None = None) -> Command:
        """`ratchet WORDS` with this config; `number`: its round."""
        at = () if number is None else ("--round", str(number))
        return (*RATCHET, *words, *self.arguments, *at)

    def stage(
        self,
        number: int,
        id: StageId,
        command: Command,
        reads: Mapping[str, Artefact],
        writes: Mapping[str, Artefact],
        models: Iterable[str] = (),
        merge: Path | None = None,
    ) -> Stage:
        """`models`: all that the command asks; a server is put around it for those that need one. `merge`: see
        `beside_servers`."""
        asks = tuple(sorted(models))
        served, command = self.beside_servers(asks, command, merge)
        return Stage(number, id, command, reads, writes, asks, served, self.member)

    def beside_servers(
        self, models: Iterable[str], command: Command, merge: Path | None = None
    ) -> tuple[tuple[str, ...], Command]:
        """(those of the models that need a server, the command with their servers around it). `merge`: an adapter that
        may be merged into the model that is trained."""
        served = tuple(sorted(name for name in models if needs_server(name, self.config.models[name])))
        trained = self.config.training.model
        merges = merge is not None and trained in served and self.config.models[trained].serve.merge
        options = ("--models", ",".join(served), *(("--merge", str(merge)) if merges else ()))
        return served, (*RATCHET, "models", "serve", *self.arguments, *options, "--", *command) if served else command


LAUNCH = (sys.executable, "-m", "ratchet.training.launch")
"""`accelerate launch`, without a traceback of its own."""
TRAIN = ("-m", "ratchet", "train")
"""The command that it runs in each process."""
_ACCELERATE = Path(__file__).resolve().parents[1] / "configs" / "accelerate"
DDP = str(_ACCELERATE / "ddp.yaml")
CPU_DDP = str(_ACCELERATE / "cpu_ddp.yaml")
EvaluationId = Literal["choose", "promote", "evaluate", "test"]
SAMPLING_STAGES: dict[EvaluationId, StageId] = {
    "choose": "choose.sample",
    "promote": "promote.sample",
    "evaluate": "evaluate.sample",
    "test": "test.sample",
}
"""The stage before, where agents and judge cannot be up together."""


def stages_of(experiment: ExperimentRun) -> Iterator[Stage]:
    """All stages in order.

    A stage depends on what was decided before it (which adapter samples, whether there is one to promote), so run each
    before asking for the next. Stages asked for ahead assume no more promotions and a candidate in every round.
    """
    count, run = experiment.config.rounds.count, experiment.run
    if experiment.config.members:
        yield from _shared_round(experiment)
        return
    if count == 1:
        yield from stages_before_training(experiment, 1, None)
        yield training_stage(experiment, 1, None)
        yield from choice_stages(experiment, 1)
        yield from control_stages(experiment, 1, None)
        yield from evaluation_stages(experiment, 1, with_adapter=True)
        yield report_stage(experiment, 1)
        return
    for number in range(1, count + 1):
        origin = last_promoted(run, before=number)
        yield from stages_before_training(experiment, number, origin)
        has_candidate = kept_any(run.round(number))
        if has_candidate:
            yield training_stage(experiment, number, origin)
            yield from choice_stages(experiment, number)
        yield from promotion_stages(experiment, number, origin, has_candidate)
        if number == last_round(experiment.config):
            break
    best = last_promoted(run, before=number + 1)
    if best is not None:
        yield from control_stages(experiment, best, last_promoted(run, before=best))
    yield from evaluation_stages(experiment, best or number, with_adapter=best is not None, id="test")
    yield report_stage(experiment, number)


def stages_before_training(experiment: ExperimentRun, number: int, origin: int | None) -> list[Stage]:
    """Index (in the first round), sample, score and select. `origin`: the round whose adapter samples, if any does."""
    config, folder = experiment.config, experiment.run.round(number)
    adapter = experiment.run.round(origin).adapter if origin else None
    index: dict[str, Artefact] = {"index": Index(config.index)}
    questions: dict[str, Artefact] = {"questions": Questions((config.questions.train,), config.seed)}
    sampled_by: dict[str, Artefact] = {"adapter": Adapter(adapter)} if adapter else {}
    trajectories: dict[str, Artefact] = {"trajectories": Segments(folder.trajectories)}
    sample = (*experiment.command("sample", number=number), *(("--adapter", str(adapter)) if adapter else ()))
    score = experiment.command("score", number=number)
    rules = load_rules(config.sampling.explore.rules) if config.sampling.explore.samples else ()
    asked = {**questions, **index, **sampled_by, **_outside_code(experiment, [config.system], rules=rules)}
    agents, judge = models_of([config.system]), judge_of(config, config.rewards.weights)
    scored: dict[str, Artefact] = {**questions, **trajectories, "config": _settings(experiment, "rewards")}
    scored |= _outside_code(experiment, scores=config.rewards.weights)
    selected: dict[str, Artefact] = {"scores": Segments(folder.scores), "selection": File(folder.selection)}
    empty = () if config.rounds.count == 1 else ("--may-be-empty",)
    stages = [
        experiment.stage(
            number, "sample", sample, asked, trajectories, agents | config.sampling.teacher.models, adapter
        ),
        experiment.stage(number, "score", (*score, *empty), scored, selected, judge),
    ]
    # A search server's index was built where the server runs.
    if number > 1 or is_missing(config.index) or not config.index.built:
        return stages
    documents = FixedDigest(content_key("documents", config.index.model_dump(mode="json")))
    build = experiment.command("index")
    return [experiment.stage(number, "index", build, {"documents": documents}, index), *stages]


def training_stage(experiment: ExperimentRun, number: int, origin: int | None) -> Stage:
    """`origin`: the round whose adapter is trained on, if any is."""
    config, folder = experiment.config, experiment.run.round(number)
    command, started_from = _training_command(experiment, number, origin)
    reads: dict[str, Artefact] = {}
    for name, member in load_members(config).items():
        own = RoundFolder(member.folder / folder.path.name) if name else folder
        reads |= {f"{name} selection".strip(): File(own.selection)}
        reads |= {f"{name} trajectories".strip(): Segments(own.trajectories)}
    writes: dict[str, Artefact] = {"rows": File(folder.rows)}
    if config.training.choose_by == "reward":
        writes["candidates"] = Candidates(folder)
    else:
        writes["adapter"] = Adapter(folder.adapter)
    return experiment.stage(number, "train", command, reads | started_from, writes)


def control_stages(experiment: ExperimentRun, number: int, origin: int | None) -> list[Stage]:
    """The trainings on a random selection of the round's trajectories and on gold answers, as the config asks for them.
    Only of the round whose adapter is tested."""
    folder = experiment.run.round(number)
    command, started_from = _training_command(experiment, number, origin)
    reads: dict[str, Artefact] = {
        "selection": File(folder.selection),
        "trajectories": Segments(folder.trajectories),
        **started_from,
    }
    ids: dict[TrainedControl, StageId] = {"random": "train.random", "gold": "train.gold"}
    stages = []
    for name in experiment.config.evaluation.trained_controls:
        control = folder.control(name)
        writes: dict[str, Artefact] = {
            "selection": File(control.selection),
            "rows": File(control.rows),
            "adapter": Adapter(control.adapter),
        }
        stages.append(experiment.stage(number, ids[name], (*command, "--control", name), reads, writes))
    return stages


def _training_command(
    experiment: ExperimentRun, number: int, origin: int | None
) -> tuple[Command, dict[str, Artefact]]:
    """(the command that trains a round, what it reads of the adapter that it starts from)."""
    start = experiment.run.round(origin).adapter if origin and experiment.config.rounds.start == "promoted" else None
    command = (*_trainer(experiment), *experiment.arguments, "--round", str(number))
    return ((*command, "--from", str(start)), {"adapter": Adapter(start)}) if start else (command, {})


def choice_stages(experiment: ExperimentRun, number: int) -> list[Stage]:
    """The choice of the round's adapter by reward on dev; none where the held-out loss has chosen it."""
    config, folder = experiment.config, experiment.run.round(number)
    if config.training.choose_by != "reward":
        return []
    command = experiment.command("choose", number=number)
    reads: dict[str, Artefact] = {
        "questions": Questions((config.questions.dev,), config.seed),
        "index": Index(config.index),
        "candidates": Candidates(folder),
        **_outside_code(experiment, [config.system], config.rewards.weights),
    }
    writes: dict[str, Artefact] = {"choice": File(folder.choice), "adapter": Adapter(folder.adapter)}
    agents, scores = models_of([config.system]), config.rewards.weights
    return _one_or_two_stages(experiment, number, "choose", command, (SPLIT,), agents, reads, writes, scores)


def promotion_stages(experiment: ExperimentRun, number: int, origin: int | None, has_candidate: bool) -> list[Stage]:
    """The decision on a round's adapter; where the round has none, its record."""
    config, folder = experiment.config, experiment.run.round(number)
    command = experiment.command("promote", number=number)
    decision: dict[str, Artefact] = {"promotion": File(folder.promotion)}
    if not has_candidate:
        return [experiment.stage(number, "promote", command, {"selection": File(folder.selection)}, decision)]
    reads: dict[str, Artefact] = {
        "questions": Questions((config.questions.dev,), config.seed),
        "index": Index(config.index),
        "adapter": Adapter(folder.adapter),
    }
    if origin:
        reads |= {"parent": Adapter(experiment.run.round(origin).adapter)}
    writes = {"evaluation": File(results_path(folder, SPLIT)), **decision}
    # No settings are read: what was decided stays decided, for the next rounds are built on it.
    agents = models_of([config.system])
    return _one_or_two_stages(experiment, number, "promote", command, (SPLIT,), agents, reads, writes)


def evaluation_stages(
    experiment: ExperimentRun, number: int, with_adapter: bool, id: EvaluationId = "evaluate"
) -> list[Stage]:
    """Base against the round's adapter on what the config evaluates; without one, the base alone."""
    config, folder = experiment.config, experiment.run.round(number)
    splits = tuple(config.evaluation.question_sets)
    reads: dict[str, Artefact] = {
        "questions": Questions(tuple(split_of(config, split) for split in splits), config.seed),
        "index": Index(config.index),
        "config": _settings(experiment, "rewards", "evaluation"),
    }
    reads |= {"adapter": Adapter(folder.adapter)} if with_adapter else {}
    if with_adapter:
        names: dict[TrainedControl, str] = {"random": "control", "gold": "gold"}
        for control in config.evaluation.trained_controls:
            reads |= {names[control]: Adapter(folder.control(control).adapter)}
    reads |= {f"adapter of {name}": Adapter(Path(path)) for name, path in config.evaluation.adapters.items()}
    systems = [config.system, *config.evaluation.baselines.values()]
    reads |= _outside_code(experiment, systems, {*config.rewards.weights, *config.evaluation.scores})
    which = () if with_adapter else ("--base-only",)
    command = (*experiment.command("evaluate", number=number), *which)
    writes: dict[str, Artefact] = {
        "evaluation" if split == FINAL else f"evaluation {split}": File(results_path(folder, split)) for split in splits
    }
    agents = models_of(systems)
    return _one_or_two_stages(experiment, number, id, command, splits, agents, reads, writes)


def report_stage(experiment: ExperimentRun, number: int) -> Stage:
    """The report over every round so far."""
    records = ("selection.json", "promotion.json", "adapter/training.json", "evaluation/results*.json")
    reads: dict[str, Artefact] = {
        "records": Files(experiment.run.path, tuple(f"round-*/{name}" for name in records)),
        "config": _settings(experiment, "rewards", "evaluation", "rounds"),
    }
    command = experiment.command("report", number=number)
    return experiment.stage(number, "report", command, reads, {"report": File(experiment.run.report)})


def _one_or_two_stages(
    experiment: ExperimentRun,
    number: int,
    id: EvaluationId,
    command: tuple[str, ...],
    splits: tuple[str, ...],
    agents: set[str],
    reads: Mapping[str, Artefact],
    writes: Mapping[str, Artefact],
    scores: Iterable[str] | None = None,
) -> list[Stage]:
    """An evaluation: in one stage, or in two where agents and a judge of its own cannot be up together. `scores`: those
    that it needs, by default the config's."""
    config = experiment.config
    judge = judge_of(config, config.evaluation.scores if scores is None else scores)
    if not judge_runs_apart(config.models, agents, judge):
        return [experiment.stage(number, id, command, reads, writes, agents | judge)]
    folder = experiment.run.round(number)
    answers: dict[str, Artefact] = {
        "trajectories": CandidateArms(config, folder) if id == "choose" else Arms(folder, splits)
    }
    return [
        experiment.stage(number, SAMPLING_STAGES[id], (*command, "--phase", "sample"), reads, answers, agents),
        experiment.stage(number, id, (*command, "--phase", "score"), {**reads, **answers}, writes, judge),
    ]


def _shared_round(experiment: ExperimentRun) -> list[Stage]:
    """Every member up to its selection, in its own run folder; the adapter; every member's tasks with that adapter."""
    members = load_members(experiment.config)
    adapter = experiment.run.round(1).adapter
    stages: list[Stage] = []
    for name, member in members.items():
        own = ExperimentRun(member, ("--config", experiment.config.members[name]), member=name)
        stages += stages_before_training(own, 1, None)
    stages.append(training_stage(experiment, 1, None))
    tables: dict[str, Artefact] = {}
    for name, member in members.items():
        below = member.model_copy(update={"run": f"{experiment.config.run}/{name}"})
        arguments = ("--config", experiment.config.members[name], "--set", f"run={below.run}")
        own = ExperimentRun(below, arguments, member=name)
        for stage in evaluation_stages(own, 1, with_adapter=True):
            reads = {**stage.reads, "adapter": Adapter(adapter)}
            stages.append(replace(stage, command=(*stage.command, "--adapter", str(adapter)), reads=reads))
            tables |= {f"{name} {what}": artefact for what, artefact in stage.writes.items()}
    compare = experiment.command("evaluate", "members", number=1)
    return [*stages, experiment.stage(1, "compare", compare, tables, {})]


def judge_runs_apart(models: Mapping[str, ModelConfig], agents: set[str], judge: set[str]) -> bool:
    """True where judging has a server of its own, which is not to be up beside the agents'."""
    return not judge <= agents and any(needs_server(name, models[name]) for name in agents | judge)


def _settings(experiment: ExperimentRun, *sections: str) -> FixedDigest:
    """The sections that may change on a run and that a stage depends on."""
    return FixedDigest(content_key("settings", experiment.config.model_dump(mode="json", include=set(sections))))


def _outside_code(
    experiment: ExperimentRun,
    systems: Sequence[SystemConfig] = (),
    scores: Iterable[str] = (),
    rules: Iterable[Rule] = (),
) -> dict[str, Artefact]:
    """The digests of the prompts that a stage uses and of the code outside our tree that it runs: it is run again when
    they change.

    `systems` use the config's sources.
    """
    rewards = {name: load_reward(name) for name in scores}
    digests = {name: reward.version for name, reward in rewards.items() if reward.is_outside}
    replaced = {
        f"{name} prompts": replaced_digest(experiment.config.rewards, reward) for name, reward in rewards.items()
    }
    digests |= {name: digest for name, digest in replaced.items() if digest}
    digests |= {f"rule {rule.name}": rule.name for rule in rules if rule.name not in RULES}
    for system in map(load_system, systems):
        digests |= {system.config.name: system.digest} if system.digest else {}
        digest = prompts_digest(system.prompts)
        digests[f"{system.config.name} prompts {digest}"] = digest
    for name, source in experiment.config.sources.items() if systems else ():
        if isinstance(source, PluginConfig):
            digests[f"sources.{name}"] = load_source(name, source)[0].digest
    return {"code": FixedDigest(content_key("code", digests))} if digests else {}


def _trainer(experiment: ExperimentRun) -> tuple[str, ...]:
    """The start of the training command. One process needs no launcher, which would not pass a signal on to it."""
    if experiment.accelerate is None and experiment.processes is None:
        return (*RATCHET, "train")
    processes = () if experiment.processes is None else ("--num_processes", str(experiment.processes))
    file = experiment.accelerate or DDP
    return (*LAUNCH, "--config_file", file, *processes, *TRAIN)
