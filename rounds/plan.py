"""The calls and tokens that a run asks of its models, by stage, with hours where a rate is known; the memory of each
part on a GPU.

Calls and tokens of a system are the means of the run's latest round that was sampled. Before that, its calls are those
that it declares (`SystemSpec.calls`) and the tokens are the constants below, which `ratchet plan` prints. The sums of
memory are those by which servers are placed (inference/serving/memory.py) and those of training/memory.py. For
training, an allocator's gaps and the CUDA context come on top.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from statistics import fmean

from ratchet.agents.core.system import Calls, System, load_system
from ratchet.core.config import Config, IndexConfig, ModelConfig, RewardsConfig, is_missing
from ratchet.core.errors import UserError
from ratchet.core.files import read_json_file
from ratchet.core.plugins import short_name
from ratchet.core.records import Conversation, ModelCall, Trajectory
from ratchet.core.runfolder import RunFolder
from ratchet.inference.footprint import footprint, read_shape
from ratchet.inference.serving.memory import SPARE_FRACTION, estimate_memory
from ratchet.inference.serving.specs import GB, ModelUse, ServerSpec
from ratchet.rewards.reward import judged
from ratchet.rounds.records import Entry, StageKey
from ratchet.rounds.stages import SAMPLING_STAGES, ExperimentRun, stages_of
from ratchet.sampling.store import TrajectoryStore
from ratchet.training.memory import Activations, max_tokens, training_memory
from ratchet.training.objectives.objective import load_objective
from ratchet.training.schedule import held_out, schedule

REFERENCE_PARAMETERS = 7e9
"""Parameters of the model that `ratchet plan --tokens-per-second` and inference/serving/memory.py rate."""
MAX_TRAJECTORIES = 500
INSTRUCTION_TOKENS, SHOWN_TOKENS, NEW_TOKENS = 500.0, 200.0, 150.0
"""Tokens of a role's instructions, which are in the prefix cache; of what it is shown at a call beside passages; and of
its reply: an action as JSON, or a short answer."""
ITEMS = 10.0
"""Nuggets of a reference answer."""
JUDGE_PROMPT_TOKENS, JUDGE_CACHED_TOKENS, JUDGE_NEW_TOKENS = 1500.0, 750.0, 150.0
"""A call of the judge: instructions, question, reference and answer, of which half are in the prefix cache; a verdict
with its reason as JSON."""


@dataclass(frozen=True)
class RoleUse:
    """The calls of one role in one trajectory."""

    role: str
    model: str
    calls: float
    prompt_tokens: float
    """Tokens of one call's prompt that are not in the prefix cache."""
    new_tokens: float
    conversation_tokens: float
    """Tokens of a conversation at its end."""
    conversations: float = 1.0
    """Conversations of one trajectory; each is one training row."""


@dataclass(frozen=True)
class SystemUse:
    """The calls of one trajectory of a system."""

    roles: tuple[RoleUse, ...]
    source: str = ""
    """The trajectories that they were measured on; empty where they are assumed."""

    @property
    def calls(self) -> float:
        return sum(role.calls for role in self.roles)


@dataclass(frozen=True)
class Tokens:
    """The calls and tokens that a stage asks of one model."""

    calls: float = 0.0
    prompt: float = 0.0
    """Prompt tokens that are in no cache."""
    new: float = 0.0
    trained: float = 0.0
    passes: int = 1
    """Forward passes that one of these tokens costs: a backward pass counts as one."""

    def __add__(self, other: Tokens) -> Tokens:
        return Tokens(self.calls + other.calls, self.prompt + other.prompt, self.new + other.new)

    @property
    def computed(self) -> float:
        return self.passes * (self.prompt + self.new + self.trained)


@dataclass(frozen=True)
class NumQuestions:
    """The numbers of questions; NaN where they are not known."""

    train: float
    dev: float
    evaluated: float
    """Questions of the evaluated split and all benchmarks together."""


@dataclass(frozen=True)
class PlannedStage:
    """The work of one stage."""

    key: StageKey
    models: Mapping[str, Tokens]
    trajectories: float = 0.0
    counted: str = ""
    """The count of its trajectories or rows, in words."""


def assumed_use(system: System, passage_tokens: float) -> SystemUse:
    """The calls of a system that has not been sampled, a passage having so many tokens."""
    calls = system.spec.calls(system.settings) if system.spec.calls else dict.fromkeys(system.roles, Calls())
    return SystemUse(
        tuple(
            _assumed_role(role, system.config.role(role).model, calls[role], passage_tokens)
            for role in system.roles
            if role in calls and calls[role].number
        )
    )


def _assumed_role(role: str, model: str, calls: Calls, passage_tokens: float) -> RoleUse:
    """A turn's prompt begins with the last turn's, which is in the prefix cache."""
    conversations = calls.number if calls.conversations is None else calls.conversations
    shown = SHOWN_TOKENS + calls.passages * passage_tokens
    length = INSTRUCTION_TOKENS + calls.number / conversations * (shown + NEW_TOKENS)
    return RoleUse(role, model, calls.number, shown, NEW_TOKENS, length, conversations)


def measured_use(trajectories: Iterable[Trajectory], source: str) -> SystemUse | None:
    """The mean calls of these trajectories; None without a call."""
    count, calls, talks = 0, dict[str, list[ModelCall]](), dict[str, list[Conversation]]()
    for trajectory in trajectories:
        count += 1
        for call in trajectory.model_calls:
            calls.setdefault(call.role, []).append(call)
        for talk in trajectory.conversations:
            talks.setdefault(talk.role, []).append(talk)
    roles = tuple(
        RoleUse(
            role,
            talks[role][-1].model,
            len(own) / count,
            fmean(call.prompt_tokens - call.cached_tokens for call in own),
            fmean(call.new_tokens for call in own),
            fmean(len(talk.ids) for talk in talks[role]),
            len(talks[role]) / count,
        )
        for role, own in calls.items()
        if role in talks
    )
    return SystemUse(roles, source) if roles else None


def system_use(config: Config) -> SystemUse:
    """The calls of the config's system: of the run's latest round that was sampled, else assumed."""
    for folder in reversed(RunFolder(config.folder).rounds()):
        sampled = islice(TrajectoryStore(folder.trajectories).read(), MAX_TRAJECTORIES)
        finished = [trajectory for trajectory in sampled if trajectory.status != "failed" and not trajectory.teacher]
        source = f"measured on {len(finished):,} trajectories of round {folder.number}"
        if (use := measured_use(finished, source)) is not None:
            return use
    return assumed_use(load_system(config.system), config.index.chunk_tokens)


def with_teacher(use: SystemUse, config: Config) -> SystemUse:
    """The calls of one trajectory of sampling, on average: a teacher plays the trainable roles of some."""
    teacher, roles = config.sampling.teacher, list[RoleUse]()
    share = teacher.samples / config.sampling.samples
    for role in use.roles:
        taught = share if config.system.role(role.role).trainable else 0.0
        for model, part in ((role.model, 1 - taught), (teacher.model, taught)):
            calls, conversations = role.calls * part, role.conversations * part
            roles += [replace(role, model=model, calls=calls, conversations=conversations)] if part else []
    return replace(use, roles=tuple(roles))


def judge_calls(rewards: RewardsConfig, names: Iterable[str], samples: int) -> dict[str, float]:
    """By score that a judge gives: its calls for one trajectory, with `samples` trajectories of a question.

    Correctness judges every nugget in a call of its own, and draws the nuggets once for all samples of a question.
    Faithfulness and precision draw the claims of an answer in one call and judge all of them in another; precision has
    its claims from faithfulness where both are scored.
    """
    runs, scores = rewards.runs, judged(names)
    draws = runs if rewards.extracted == "per_run" else 1
    known = {
        "correctness": draws / samples + ITEMS * runs,
        "faithfulness": draws + runs,
        "precision": runs + (0 if "faithfulness" in scores else draws),
    }
    return {name: float(known.get(short_name(name), runs)) for name in scores}


def model_uses(config: Config) -> dict[str, ModelUse]:
    """By model: how much a trajectory and its scoring use it, for memory and for requests in flight of servers.

    Without those that cannot be told: models are also served for configs that lack a system or a reward.
    """
    try:
        use = with_teacher(system_use(config), config)
        names = {*config.rewards.weights, *config.evaluation.scores}
        asked = sum(judge_calls(config.rewards, names, config.sampling.samples).values())
    except UserError:
        return {}
    uses: dict[str, ModelUse] = {}
    for model in {role.model for role in use.roles}:
        own = [role for role in use.roles if role.model == model]
        calls = sum(role.calls for role in own)
        mean = sum(role.calls * role.conversation_tokens for role in own) / calls
        uses[model] = ModelUse(calls, round(mean), bool(use.source))
    judge = config.rewards.judge
    if asked and judge in config.models:
        before = uses.get(judge, ModelUse(calls=0.0))
        tokens = max(before.conversation_tokens, round(JUDGE_PROMPT_TOKENS + JUDGE_NEW_TOKENS))
        uses[judge] = ModelUse(before.calls + asked, tokens, before.is_measured)
    return uses


def cost(model: ModelConfig) -> float:
    """The cost of a token relative to a model of 7 billion parameters; 0 where another machine computes it."""
    if model.engine in ("chat-api", "scripted"):
        return 0.0
    return footprint(model.path, model.revision, model.dtype).active_parameters / REFERENCE_PARAMETERS


def measured_rate(entries: Iterable[Entry], use: SystemUse, costs: Mapping[str, float]) -> float | None:
    """Tokens a second, as those of a model of 7 billion parameters, that the run's latest sampling computed."""
    sampled = [entry for entry in entries if entry.stage == "sample" and entry.facts.get("trajectories_an_hour")]
    if not sampled or not use.source:
        return None
    latest = max(sampled, key=lambda entry: entry.round)
    computed = sum(costs[model] * tokens.computed for model, tokens in _sampled([(use, 1.0)]).items())
    return latest.facts["trajectories_an_hour"] / 3600 * computed or None


def plan_stages(experiment: ExperimentRun, use: SystemUse, questions: NumQuestions) -> list[PlannedStage]:
    """The stages of the run that ask models, in their order; in later rounds as many as in the first. UserError."""
    config = experiment.config
    baselines = {
        name: assumed_use(load_system(baseline), config.index.chunk_tokens)
        for name, baseline in config.evaluation.baselines.items()
    }
    keys = [stage.key for stage in stages_of(experiment)]
    planned = (_planned(experiment, key, keys, use, baselines, questions) for key in keys)
    return [stage for stage in planned if stage]


def _planned(
    experiment: ExperimentRun,
    key: StageKey,
    keys: Sequence[StageKey],
    use: SystemUse,
    baselines: Mapping[str, SystemUse],
    questions: NumQuestions,
) -> PlannedStage | None:
    """None for an index, which grows with its documents, and a report, which takes seconds."""
    config, evaluation, training = experiment.config, experiment.config.evaluation, experiment.config.training
    learning = [role for role in use.roles if role.model == training.model and config.system.role(role.role).trainable]
    steps, passes = _steps(config, learning, questions.train)
    scores, samples = list(config.rewards.weights), config.sampling.samples
    if key.id in ("train", "train.random", "train.gold"):
        each = row_tokens(learning, training.max_length)
        counted = f"{steps:,} steps x {training.batch_size} rows x {each:,.0f} tokens (at most{passes})"
        times = 3 if training.gradient_checkpointing else 2  # forward, with checkpointing once more, and backward
        return PlannedStage(
            key, {training.model: Tokens(trained=steps * training.batch_size * each, passes=times)}, counted=counted
        )
    if key.id in ("sample", "score"):
        asked = [(with_teacher(use, config), questions.train * samples)]
        text = f"{count(questions.train)} questions x {samples} samples"
        if led := len(set(config.sampling.curriculum.values())):
            asked.append((use, questions.train * led))
            text += f", and at most {led} of the curriculum"
    elif key.id in ("choose.sample", "choose"):
        candidates = math.ceil(steps / training.eval_steps)
        asked = [(use, questions.dev * candidates)]
        text = f"{count(questions.dev)} questions x {candidates} candidates ({steps:,} steps / eval_steps)"
    elif key.id in ("promote.sample", "promote"):
        arms, samples, scores = 2 if key.round == 1 else 3, evaluation.samples, list(evaluation.scores)
        asked = [(use, questions.dev * samples * arms)]
        text = f"{count(questions.dev)} questions x {samples} samples x {arms} arms"
    elif key.id in ("evaluate.sample", "evaluate", "test.sample", "test"):
        arms, samples, scores = 2 + len(evaluation.controls), evaluation.samples, list(evaluation.scores)
        asked = [(use, questions.evaluated * samples * arms)]
        asked += [(other, questions.evaluated * evaluation.samples) for name, other in baselines.items()]
        text = f"{count(questions.evaluated)} questions x {samples} samples x {arms + len(baselines)} arms"
    else:
        return None
    trajectories = sum(number for _, number in asked)
    sampled_by = {str(stage): sampling for stage, sampling in SAMPLING_STAGES.items()} | {"score": "sample"}
    sampled_before = any((other.round, other.id) == (key.round, sampled_by.get(key.id)) for other in keys)
    models = {} if sampled_before else _sampled(asked)
    if key.id not in sampled_by.values():
        calls = trajectories * sum(judge_calls(config.rewards, scores, samples).values())
        prompt = JUDGE_PROMPT_TOKENS - JUDGE_CACHED_TOKENS
        judging = {config.rewards.judge: Tokens(calls, calls * prompt, calls * JUDGE_NEW_TOKENS)} if calls else {}
        models = {name: models.get(name, Tokens()) + judging.get(name, Tokens()) for name in {**models, **judging}}
    return PlannedStage(key, models, trajectories, text)


def _sampled(asked: Sequence[tuple[SystemUse, float]]) -> dict[str, Tokens]:
    models: dict[str, Tokens] = {}
    for use, number in asked:
        for role in use.roles:
            calls = number * role.calls
            own = Tokens(calls, calls * role.prompt_tokens, calls * role.new_tokens)
            models[role.model] = models.get(role.model, Tokens()) + own
    return models


def _steps(config: Config, learning: Sequence[RoleUse], questions: float) -> tuple[int, str]:
    """(the training's steps, what they are as passes over the rows), where as many trajectories are kept as can be."""
    training, samples = config.training, config.sampling.samples
    kept_alone = load_objective(training).learns_from_kept_alone
    kept = min(config.rewards.select.ties, samples) if kept_alone else samples
    learnt = questions - held_out(round(questions), training.dev_fraction) if questions > 0 else questions  # or NaN
    rows = learnt * kept * sum(role.conversations for role in learning)
    if kept_alone:
        rows += learnt * sum(role.conversations for role in learning if role.role in config.sampling.curriculum)
    if not rows > 0:  # NaN too
        return training.max_steps, ""
    plan = schedule(max(1, round(rows)), training, 1)
    return plan.steps, f": {plan.steps / plan.per_epoch:,.3g} passes over {count(rows)} rows, {kept} kept of a question"


def row_tokens(roles: Sequence[RoleUse], max_length: int) -> float:
    """The mean tokens of a training row: of a conversation of these roles."""
    rows = sum(role.conversations for role in roles)
    return sum(role.conversations * min(role.conversation_tokens, max_length) for role in roles) / rows if rows else 0.0


def count(number: float) -> str:
    """A number for people, `?` where it is not known."""
    return "?" if number != number else f"{number:,.0f}"


@dataclass(frozen=True)
class MemoryRow:
    """The memory of one part on each of its GPUs, in bytes."""

    part: str
    limit: str
    """The limit in words, or the reason why nothing is known."""
    weights: float = 0.0
    adapter: float = 0.0
    """With its gradients and the optimiser's moments, where it is trained."""
    working: float = 0.0
    """Keys and values of one complete conversation, or a training step's activations."""
    overhead: float = 0.0
    """Activations, CUDA graphs and the CUDA context of a server."""

    @property
    def total(self) -> float:
        return self.weights + self.adapter + self.working + self.overhead


def memory_table(
    config: Config, gpu: float, gpus: int, uses: Mapping[str, ModelUse], documents: int | None
) -> list[MemoryRow]:
    """The rows of a config on so many GPUs of so many bytes. `documents`: those of the corpus; None: those of the built
    index. UserError."""
    servers = [_server(config, name, gpu, uses.get(name, ModelUse())) for name in config.models]
    return [*servers, _training(config, gpu, gpus), _index(config, documents)]


def _server(config: Config, name: str, gpu: float, use: ModelUse) -> MemoryRow:
    """A server of one model that has its GPUs to itself."""
    model, settings = config.models[name], config.serve_config(name)
    if model.engine in ("chat-api", "scripted"):
        return MemoryRow(f"serve {name}", f"elsewhere (engine: {model.engine})")
    spec = ServerSpec((name,), model, settings, model.concurrency, use.calls, use.conversation_tokens, use.is_measured)
    need = estimate_memory(spec, footprint(model.path, model.revision, model.dtype))
    conversation = need.token * model.max_context
    overhead = need.total - need.weights - need.adapters - need.kv
    room = gpu * (1 - SPARE_FRACTION) - need.weights - need.adapters - overhead
    limit = (
        f"DOES NOT FIT a GPU of {gpu / GB:g} GB: tensor-parallel-size, or a shorter max_context"
        if room < conversation
        else f"{int(room // conversation)} conversations of {model.max_context:,} tokens at once, or "
        f"{need.concurrency(room)} requests of {spec.tokens:,}"
    )
    return MemoryRow(f"serve {name}", limit, need.weights, need.adapters, conversation, overhead)


def _training(config: Config, gpu: float, gpus: int) -> MemoryRow:
    import torch

    training = config.training
    model, length = config.models[training.model], training.max_length
    size, shape = footprint(model.path, model.revision, model.dtype), read_shape(model.path, model.revision)
    tiled_head = not (load_objective(training).keeps_logits or training.weighs_roles)
    parts = Activations.of(shape.get_text_config(), training.lora.r, getattr(torch, model.dtype), tiled_head)
    if parts is None:
        return MemoryRow("train", f"the formula does not describe models of the type {shape.model_type}")
    form = {"checkpointing": training.gradient_checkpointing, "four_bit": training.four_bit}
    need = training_memory(size, parts, training.micro_batch * length, **form)
    fits = max_tokens(lambda tokens: training_memory(size, parts, tokens, **form), gpu)
    limit = f"micro_batch {fits // length} at most, of {length:,} tokens"
    if need.total > gpu:
        gpus = max(2, gpus)
        sharded = training_memory(size, parts, training.micro_batch * length, shards=gpus, **form).total
        limit = f"DOES NOT FIT a GPU of {gpu / GB:g} GB: " + (
            f"with FSDP on {gpus} GPUs {sharded / GB:.1f} GB" if sharded <= gpu else "lower max_length or micro_batch"
        )
    return MemoryRow("train", limit, need.weights, need.adapter, need.activations)


def index_size(index: IndexConfig, documents: int | None) -> tuple[int, int]:
    """Return (chunks, documents) of an index in a folder: of so many documents, or of those that it is built of; of one
    that is not built a chunk a document, and (0, 0) without a number."""
    try:
        built = read_json_file(Path(index.path) / "manifest.json")
        number = documents or built["documents"]
        return round(number * built["chunks"] / built["documents"]), number
    except (OSError, ValueError, KeyError, ZeroDivisionError):
        return documents or 0, documents or 0


def _index(config: Config, documents: int | None) -> MemoryRow:
    """The index, which is on disk and served from main memory."""
    index = config.index
    if is_missing(index):
        return MemoryRow("index", "none")
    if not index.built:
        return MemoryRow("index", f"elsewhere ({index.url or 'index.source'})")
    folders, each = [Path(part.path) for part in index.built.values()], 0.0
    try:
        for folder in folders:
            there = read_json_file(folder / "manifest.json")["documents"]
            each += sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / there
    except (OSError, ValueError, KeyError, ZeroDivisionError):
        return MemoryRow("index", f"not built ({folder}): build one of a part of the documents to plan for all")
    number = documents or there
    return MemoryRow("index", f"{number:,} documents x {each:,.0f} bytes: {number * each / GB:,.3g} GB of main memory")
