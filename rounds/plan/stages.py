"""What each stage of a run asks of models: trajectories, judge calls and trained tokens."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ratchet.agents.core.system import load_system
from ratchet.core.config import Config, ModelConfig
from ratchet.inference.footprint import footprint
from ratchet.rounds.plan.usage import (
    JUDGE_CACHED_TOKENS,
    JUDGE_NEW_TOKENS,
    JUDGE_PROMPT_TOKENS,
    JudgeUse,
    RoleUse,
    SystemUse,
    assumed_use,
    judge_use,
    system_use,
)
from ratchet.rounds.records import Entry, StageKey
from ratchet.rounds.stage import ExperimentRun
from ratchet.rounds.stages import SAMPLING_STAGES, stages_of
from ratchet.training.objectives.objective import load_objective
from ratchet.training.schedule import held_out, schedule

REFERENCE_PARAMETERS = 7e9
"""Of the model whose tokens a second `inference/serving/devices.py` and `ratchet plan --tokens-per-second` state."""


@dataclass(frozen=True)
class NumQuestions:
    """The numbers of questions; NaN where they are not known."""

    train: float
    dev: float
    evaluated: float
    """Of the evaluated split and all benchmarks together."""


@dataclass(frozen=True)
class PlannedStage:
    """The work of one stage."""

    key: StageKey
    counted: str = ""
    """How its trajectories, calls or tokens were counted."""
    trajectories: float = 0.0
    judge_calls: float = 0.0
    work: float = 0.0
    """Tokens that are computed, as those of a model of 7 billion parameters."""


@dataclass(frozen=True)
class RunUse:
    """How the systems and the judge of a config call their models."""

    system: SystemUse
    baselines: dict[str, SystemUse]
    rewards: JudgeUse
    """For one sampled trajectory."""
    evaluation: JudgeUse
    """For one trajectory of an evaluation."""
    scale: Mapping[str, float]
    """By model: what a token of it costs, as a part of one of a model of 7 billion parameters; 0 elsewhere."""


def run_use(config: Config) -> RunUse:
    """Measured on the run where it has been sampled and scored, else assumed; baselines are assumed. UserError."""
    evaluation = config.evaluation
    return RunUse(
        system_use(config),
        {
            name: assumed_use(load_system(baseline), config.index.chunk_tokens)
            for name, baseline in evaluation.baselines.items()
        },
        judge_use(config, config.rewards.weights, config.sampling.samples),
        judge_use(config, evaluation.scores, evaluation.samples),
        {name: _scale(model) for name, model in config.models.items()},
    )


def _scale(model: ModelConfig) -> float:
    """The cost of a token goes with the parameters that it passes."""
    if model.engine in ("chat-api", "scripted"):
        return 0.0
    return footprint(model.path, model.revision, model.dtype).active_parameters / REFERENCE_PARAMETERS


def measured_rate(entries: Iterable[Entry], use: RunUse) -> float | None:
    """Tokens a second, as those of a model of 7 billion parameters, that the run's latest sampling computed."""
    sampled = [entry for entry in entries if entry.stage == "sample" and entry.facts.get("trajectories_an_hour")]
    if not sampled or not use.system.source.startswith("measured"):
        return None
    latest = max(sampled, key=lambda entry: entry.round)
    return latest.facts["trajectories_an_hour"] / 3600 * use.system.work(use.scale) or None


def plan_stages(experiment: ExperimentRun, use: RunUse, questions: NumQuestions) -> list[PlannedStage]:
    """The stages of the run in their order; in later rounds as many as in the first. UserError."""
    keys = [stage.key for stage in stages_of(experiment)]
    return [_planned(experiment, key, keys, use, questions) for key in keys]


def _planned(
    experiment: ExperimentRun, key: StageKey, keys: Sequence[StageKey], use: RunUse, questions: NumQuestions
) -> PlannedStage:
    config = experiment.config
    evaluation = config.evaluation
    asked: list[tuple[SystemUse, float]]
    if key.id in ("sample.pilot", "sample", "score.pilot", "score"):
        pilot = config.sampling.pilot or 0
        each = pilot if key.id.endswith(".pilot") else config.sampling.samples - pilot
        text = f"{count(questions.train)} questions x {each} samples"
        if key.id.startswith("sample"):
            return _sampling(key, text, use, [(use.system, questions.train * each)])
        if key.id == "score" and (audit := config.rewards.audit) is not None:
            text += f" (without the audit, of up to {2 * audit.questions} trajectories)"
        return _judging(key, text, use, use.rewards, questions.train * each, config.rewards.judge)
    if key.id in ("train", "train.random", "train.gold"):
        return _training(experiment, key, use, questions.train)
    if key.id in ("choose.sample", "choose"):
        steps, _ = _steps(experiment, use, questions.train)
        candidates = math.ceil(steps / config.training.eval_steps)
        text = f"{count(questions.dev)} questions x {candidates} candidates ({steps:,} steps / eval_steps)"
        asked, judged = [(use.system, questions.dev * candidates)], use.rewards
    elif key.id in ("promote.sample", "promote"):
        arms = 2 if key.round == 1 else 3
        text = f"{count(questions.dev)} questions x {evaluation.samples} samples x {arms} arms"
        asked, judged = [(use.system, questions.dev * evaluation.samples * arms)], use.evaluation
    elif key.id in ("evaluate.sample", "evaluate", "test.sample", "test"):
        own = 2 + len(evaluation.controls) + ("form" in evaluation.controls)  # which has two arms
        text = (
            f"{count(questions.evaluated)} questions x {evaluation.samples} samples x "
            f"{own + len(use.baselines)} arms (base, adapter, controls and baselines)"
        )
        if evaluation.baseline_samples:
            text += ", more or fewer by evaluation.baseline_samples"
        asked = [(use.system, questions.evaluated * evaluation.samples * own)]
        asked += [
            (baseline, questions.evaluated * evaluation.samples_of(name)) for name, baseline in use.baselines.items()
        ]
        judged = use.evaluation
    else:  # an index grows with its documents; a report and a table take seconds
        return PlannedStage(key)
    total = sum(number for _, number in asked)
    sampled, scored = _sampling(key, text, use, asked), _judging(key, text, use, judged, total, config.rewards.judge)
    if key.id in SAMPLING_STAGES.values():
        return sampled
    before = {str(stage): sampling for stage, sampling in SAMPLING_STAGES.items()}.get(key.id)
    if any(other.id == before and other.round == key.round for other in keys):
        return scored
    return PlannedStage(
        key, f"{sampled.counted}; {scored.counted}", total, scored.judge_calls, sampled.work + scored.work
    )


def _sampling(key: StageKey, text: str, run: RunUse, asked: Sequence[tuple[SystemUse, float]]) -> PlannedStage:
    total = sum(number for _, number in asked)
    calls = sum(number * use.calls for use, number in asked)
    new = sum(number * use.new_tokens for use, number in asked)
    prefilled = sum(number * use.prefilled_tokens for use, number in asked)
    counted = (
        f"{text} = {count(total)} trajectories: {count(calls)} calls, {count(new)} new tokens, "
        f"{count(prefilled)} prompt tokens that are in no cache"
    )
    return PlannedStage(key, counted, total, work=sum(number * use.work(run.scale) for use, number in asked))


def _judging(key: StageKey, text: str, run: RunUse, use: JudgeUse, trajectories: float, judge: str) -> PlannedStage:
    if not use.total:
        return PlannedStage(key, f"{text}: scored by rules", trajectories)
    calls = trajectories * use.total
    parts = " + ".join(f"{number:,.1f} {name}" for name, number in use.calls.items())
    counted = f"{text} = {count(trajectories)} trajectories x ({parts}) = {count(calls)} judge calls"
    tokens = JUDGE_PROMPT_TOKENS - JUDGE_CACHED_TOKENS + JUDGE_NEW_TOKENS
    return PlannedStage(key, counted, trajectories, calls, calls * tokens * run.scale.get(judge, 0.0))


def _training(experiment: ExperimentRun, key: StageKey, use: RunUse, questions: float) -> PlannedStage:
    training = experiment.config.training
    each = row_tokens(_learning_roles(experiment, use), training.max_length)
    steps, passes = _steps(experiment, use, questions)
    trained = steps * training.batch_size * each
    counted = (
        f"{steps:,} steps x batch of {training.batch_size} (at most{passes}) "
        f"x {each:,.0f} tokens a row = {count(trained)} tokens"
    )
    times = 3 if training.gradient_checkpointing else 2  # forward, with checkpointing once more, and backward
    return PlannedStage(key, counted, work=trained * times * use.scale[training.model])


def _learning_roles(experiment: ExperimentRun, use: RunUse) -> list[RoleUse]:
    """The roles whose conversations are training rows."""
    config = experiment.config
    own = use.system.of_model(config.training.model).roles
    return [role for role in own if config.system.role(role.role).trainable]


def _steps(experiment: ExperimentRun, use: RunUse, questions: float) -> tuple[int, str]:
    """(the training's steps, what they are as passes over the rows)."""
    training, kept = experiment.config.training, _max_kept(experiment)
    learnt = questions - held_out(round(questions), training.dev_fraction) if questions > 0 else questions  # or NaN
    rows = learnt * kept * sum(role.conversations for role in _learning_roles(experiment, use))
    if not rows > 0:  # NaN too
        return training.max_steps, ""
    plan = schedule(max(1, round(rows)), training, 1)
    times = plan.steps / plan.per_epoch
    return (
        plan.steps,
        f": {times:,.3g} passes over {count(rows)} rows, if {kept} trajectories of each question are kept",
    )


def _max_kept(experiment: ExperimentRun) -> int:
    """The most trajectories of a question that are learnt from."""
    config = experiment.config
    select, samples = config.rewards.select, config.sampling.samples
    kept_alone = load_objective(config.training).learns_from_kept_alone
    return min(select.ties, samples) if kept_alone else samples


def row_tokens(roles: Sequence[RoleUse], max_length: int) -> float:
    """The mean tokens of a training row: of a conversation of these roles."""
    rows = sum(role.conversations for role in roles)
    return sum(role.conversations * min(role.conversation_tokens, max_length) for role in roles) / rows if rows else 0.0


def count(number: float) -> str:
    """A number for people, `?` where it is not known."""
    return "?" if number != number else f"{number:,.0f}"
