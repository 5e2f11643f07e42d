"""What only the plug-ins of a config know: whether a system's settings, a benchmark, scores and sources are right."""

from __future__ import annotations

from ratchet.agents.core.system import load_system
from ratchet.core.config import SPLITS, Config, PluginConfig, RewardsConfig, SplitConfig, is_missing
from ratchet.core.errors import UserError
from ratchet.core.plugins import is_path
from ratchet.questions.benchmark import load_benchmark
from ratchet.retrieval.sources.source import load_source
from ratchet.rewards.prompts import judge_prompts
from ratchet.rewards.reward import load_reward
from ratchet.training.objectives.objective import load_objective


def check_plugins(config: Config) -> None:
    """Check what only the plug-ins know: a system's settings and roles, a benchmark's name and splits, the scores, the
    settings of a source, the objective."""
    for key, system in config.systems.items():
        load_system(system, key)
    named: dict[str, SplitConfig] = {}
    if not is_missing(config.questions):
        named |= {f"questions.{name}": getattr(config.questions, name) for name in SPLITS}
    named |= {f"evaluation.benchmarks.{name}": split for name, split in config.evaluation.benchmarks.items()}
    for key, split in named.items():
        if split.benchmark:
            try:
                load_benchmark(split.benchmark).split(split)
            except UserError as error:
                raise UserError(f"{key}.{error}") from error
    for name, source in config.sources.items():
        if isinstance(source, PluginConfig):
            load_source(name, source)
    _check_scores(config)
    load_objective(config.training)


def _check_scores(config: Config) -> None:
    """Check the names of all scores, the judge's prompts, and that its model is there where one of them is judged."""
    judge_prompts(config.rewards)
    weights, scores = config.rewards.weights, config.evaluation.scores
    found = [load_reward(name, "rewards.weights" + ("" if is_path(name) else f".{name}")) for name in weights]
    found += [load_reward(name, "evaluation.scores") for name in scores]
    judge = config.rewards.judge
    # Only where the file names a judge: a config that only builds an index, searches or asks needs none.
    named = judge != RewardsConfig().judge and any(reward.needs_judge for reward in found)
    if named and (problem := config.why_no_model("rewards.judge", judge)):
        raise UserError(problem)
