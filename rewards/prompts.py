"""The judge's prompts: templates that are filled in with JSON values, and a config's texts in their place.

Each prompt stands in the file of the reward that asks it. Fields and scales are those of Salemi et al. 2025 (arXiv
2506.10844), figures 22 to 25; the wording is ours. Each variable of a template is filled in as a JSON value: a quoted
string cannot pose as another field, whatever an answer or a document says. The fields that most calls share come first
(question, expected output, response), so that an engine's prefix cache serves them all.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from ratchet.agents.core.prompts import Prompt, Prompts, replace_prompts
from ratchet.agents.core.task import labels_text, task_text
from ratchet.core.config import RewardsConfig
from ratchet.core.plugins import known_plugins
from ratchet.core.records import Question, content_key
from ratchet.rewards.reward import Judged, Reward, load_reward

FORM = 3
"""Raise it when a reply's fields, how they are read, or the material's layout change: stored verdicts of another form
are not reused."""


def version_of(*parts: Any) -> str:
    """12 hexadecimal digits of the texts that a judged score asks with."""
    return content_key(FORM, *parts)[:12]


def template(instructions: str, fields: Sequence[str], note: str) -> Prompt:
    """Instructions, then one JSON object with a variable for each field."""
    material = ",\n".join(f' "{name}": {{{{{name}}}}}' for name in fields)
    return Prompt(f"{instructions}\n\n{{\n{material}\n}}", note=note)


def fill(prompts: Prompts, slot: str, question: Question, **material: Any) -> str:
    """The prompt of a slot, with `material` and the variables that every prompt knows
    (`agents.core.prompts.TASK`), all but the question's form as JSON."""
    task = {"question": question.text, "task": task_text(question), "labels": labels_text(question.labels)}
    values = {name: _json(value) for name, value in (task | material).items()}
    return prompts[slot].fill({"form": question.form, **values})


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=1).replace("\n", "\n ")  # inside an object indented by one


def expected_output(question: Question) -> str:
    """The expected output of a question, for the judge: the reference, or the short answers, or the nuggets."""
    return question.reference or "; ".join(question.answers) or "\n".join(question.nuggets)


REASON_FIRST = re.compile(r'(- "rationale": .*)\n(- "score": .*)')


@cache
def builtin_prompts() -> Prompts:
    """The prompts of all built-in rewards, by slot, in our own words."""
    judged = [reward for reward in map(load_reward, known_plugins("rewards")) if isinstance(reward, Judged)]
    return {slot: prompt for reward in judged for slot, prompt in reward.prompts.items()}


def judge_prompts(rewards: RewardsConfig) -> Prompts:
    """The judge's prompts: ours in the order of `rewards.verdicts`, with the config's (`rewards.prompts`) in their
    place. Raises UserError."""
    own = builtin_prompts()
    if rewards.verdicts == "score_first":
        own = {slot: replace(one, text=REASON_FIRST.sub(r"\2\n\1", one.text)) for slot, one in own.items()}
    return own if rewards.prompts is None else replace_prompts(own, Path(rewards.prompts), "rewards.prompts")


def replaced_texts(prompts: Prompts, own: Prompts) -> str:
    """12 hexadecimal digits of the texts in `prompts` that are not those of `own`, of its slots; "" where all are."""
    replaced = {slot: prompts[slot].text for slot in own if prompts[slot].text != own[slot].text}
    return content_key("prompts", replaced)[:12] if replaced else ""


LISTS = "nugget_scores.user"
"""The prompt that is asked with `rewards.nuggets_per_call` alone: others' scores do not depend on it."""


def replaced_digest(rewards: RewardsConfig, reward: Reward) -> str:
    """12 hexadecimal digits of the texts that the config has in place of a reward's prompts, and of that of lists where
    it is asked; "" where there are none."""
    if not isinstance(reward, Judged):
        return ""
    # What outside code asks a judge is its own; it may ask with any of ours as well.
    own = dict(builtin_prompts() if reward.is_outside else reward.prompts)
    if own.pop(LISTS, None) and rewards.nuggets_per_call > 1:
        own[LISTS] = Prompt("")
    return replaced_texts(judge_prompts(rewards), own)
