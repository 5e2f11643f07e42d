"""What each stage of a run asks of models: trajectories, judge calls and trained tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agents.core.system import load_system
from rounds.plan.usage import JudgeUse, RoleUse, SystemUse, assumed_use, judge_use, system_use
from rounds.records import StageKey
from rounds.stage import ExperimentRun
from rounds.stages import SAMPLING_STAGES, stages_of
from training.objectives.objective import load_objective
from training.schedule import held_out, schedule


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


@dataclass(frozen=True)
class RunUse:
    """How the systems and the judge of a config call their models."""

    system: SystemUse
    baselines: dict[str, SystemUse]
    rewards: JudgeUse
    """For one sampled trajectory."""
    evaluation: JudgeUse
    """For one trajectory of an evaluation."""


def run_use(experiment: ExperimentRun) -> RunUse:
    """Measured on the run where it has been sampled and scored, else assumed; baselines are assumed. UserError."""
    config, run = experiment.config, experiment.run
    evaluation, rewards = config.evaluation, config.rewards
    return RunUse(
        system_use(config.system, config.models, run),
        {name: assumed_use(load_system(baseline), config.models) for name, baseline in evaluation.baselines.items()},
        judge_use(rewards, rewards.weights, config.sampling.samples, run),
        judge_use(rewards, evaluation.scores, evaluation.samples, run),
    )


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
            return _sampling(key, text, [(use.system, questions.train * each)])
        return _judging(key, text, use.rewards, questions.train * each)
    if key.id in ("train", "train.random", "train.gold"):
        return _training(experiment, key, use, questions.train)
    if key.id in ("choose.sample", "choose"):
        candidates = max(1, config.training.max_steps // config.training.eval_steps)
        text = f"{count(questions.dev)} questions x {candidates} candidates (max_steps / eval_steps)"
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
    sampled, scored = _sampling(key, text, asked), _judging(key, text, judged, total)
    if key.id in SAMPLING_STAGES.values():
        return sampled
    before = {str(stage): sampling for stage, sampling in SAMPLING_STAGES.items()}.get(key.id)
    if any(other.id == before and other.round == key.round for other in keys):
        return scored
    return PlannedStage(key, f"{sampled.counted}; {scored.counted}", total, scored.judge_calls)


def _sampling(key: StageKey, text: str, asked: Sequence[tuple[SystemUse, float]]) -> PlannedStage:
    total = sum(number for _, number in asked)
    calls = sum(number * use.calls for use, number in asked)
    new = sum(number * use.new_tokens for use, number in asked)
    prefilled = sum(number * use.prefilled_tokens for use, number in asked)
    counted = (
        f"{text} = {count(total)} trajectories: {count(calls)} calls, {count(new)} new tokens, "
        f"{count(prefilled)} prompt tokens that are in no cache"
    )
    return PlannedStage(key, counted, total)


def _judging(key: StageKey, text: str, use: JudgeUse, trajectories: float) -> PlannedStage:
    if not use.total:
        return PlannedStage(key, f"{text}: scored by rules", trajectories)
    calls = trajectories * use.total
    parts = " + ".join(f"{number:,.1f} {name}" for name, number in use.calls.items())
    counted = f"{text} = {count(trajectories)} trajectories x ({parts}) = {count(calls)} judge calls"
    return PlannedStage(key, counted, trajectories, calls)


def _training(experiment: ExperimentRun, key: StageKey, use: RunUse, questions: float) -> PlannedStage:
    training = experiment.config.training
    roles = use.system.of_model(training.model).roles
    each = row_tokens(roles, training.max_length)
    kept, steps, passes = _max_kept(experiment), training.max_steps, ""
    learnt = questions - held_out(round(questions), training.dev_fraction) if questions > 0 else questions  # or NaN
    rows = learnt * kept * sum(role.conversations for role in roles)
    if rows > 0:  # not NaN
        plan = schedule(max(1, round(rows)), training, 1)
        steps, times = plan.steps, plan.steps / plan.per_epoch
        passes = f": {times:,.3g} passes over {count(rows)} rows, if {kept} trajectories of each question are kept"
    trained = steps * training.batch_size * each
    counted = (
        f"{steps:,} steps x batch of {training.batch_size} (at most{passes}) "
        f"x {each:,.0f} tokens a row = {count(trained)} tokens"
    )
    return PlannedStage(key, counted)


def _max_kept(experiment: ExperimentRun) -> int:
    """The most trajectories of a question that are learnt from."""
    config = experiment.config
    select, samples = config.rewards.select, config.sampling.samples
    kept_alone = load_objective(config.training).learns_from_kept_alone
    return min(select.ties, samples) if kept_alone else samples


def row_tokens(roles: Sequence[RoleUse], max_length: int) -> float:
    """The mean tokens of a training row: of a conversation of these roles."""
    lengths = [min(role.conversation_tokens, max_length) for role in roles]
    return sum(lengths) / len(lengths) if lengths else 0.0


def count(number: float) -> str:
    """A number for people, `?` where it is not known."""
    return "?" if number != number else f"{number:,.0f}"
