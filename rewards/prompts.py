"""The judge's prompts of all built-in rewards, and the texts that a config has in their place (`rewards.prompts`).

Fields and scales are those of Salemi et al. 2025 (arXiv 2506.10844), figures 22 to 25; the wording is ours. Each prompt
stands in the file of the reward that asks it.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from ratchet.agents.core.prompts import Prompt, Prompts, replace_prompts
from ratchet.core.config import RewardsConfig
from ratchet.rewards import claims, nuggets
from ratchet.rewards.builtin import correctness, faithfulness, group_ranking, precision, relevance
from ratchet.rewards.material import replaced_texts
from ratchet.rewards.reward import Judged, Reward

PROMPTS: Prompts = {
    **nuggets.PROMPTS,
    **correctness.PROMPTS,
    **claims.PROMPTS,
    **faithfulness.PROMPTS,
    **precision.PROMPTS,
    **relevance.PROMPTS,
    **group_ranking.PROMPTS,
}
"""By slot, with the score that asks it."""
REASON_FIRST = re.compile(r'(- "rationale": .*)\n(- "score": .*)')


def judge_prompts(rewards: RewardsConfig) -> Prompts:
    """The judge's prompts: `PROMPTS` in the order of `rewards.verdicts`, with the config's in their place. Raises
    UserError."""
    own = PROMPTS if rewards.verdicts == "reason_first" else {slot: _score_first(one) for slot, one in PROMPTS.items()}
    return own if rewards.prompts is None else replace_prompts(own, Path(rewards.prompts), "rewards.prompts")


def _score_first(prompt: Prompt) -> Prompt:
    return replace(prompt, text=REASON_FIRST.sub(r"\2\n\1", prompt.text))


def replaced_digest(rewards: RewardsConfig, reward: Reward) -> str:
    """12 hexadecimal digits of the texts that the config has in place of a reward's prompts; "" where it has none."""
    if not isinstance(reward, Judged):
        return ""
    # What outside code asks a judge is its own; it may ask with any of ours as well.
    return replaced_texts(judge_prompts(rewards), PROMPTS if reward.is_outside else reward.prompts)
