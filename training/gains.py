"""The gains of actions for `training.credit: information_gain`, computed with the model that training starts from.

Before each of its actions, a conversation ends where the model is to speak. There the gold answer's log-probability is
taken, as the mean over its tokens; the gain of an action is what it rose by until the next time that the model speaks
in this conversation. All of a conversation's values come from one forward pass over its stored ids, and one over the
answer for each action, which reuses the keys and values of what stands before it; what a conversation has in common
with the one before it is not computed again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import DynamicCache

from inference.adapters import checked_digest
from inference.chat_formats import open_chat_format
from inference.local.model import model_fingerprint
from ratchet.config import ModelConfig, TrainingConfig
from ratchet.files import Segment, read_json_file, write_json
from ratchet.progress import Progress
from ratchet.records import Question, Trajectory
from training.actions import Action, parsed_actions
from training.credit import ActionGain, TrajectoryGains, credited, read_gains
from training.kept import KeptTrajectories
from training.lora import add_lora, load_model, mixes_precision, on_cpu, start_from_adapter

SEGMENT = "part-0.jsonl"


def compute_gains(
    kept: Sequence[KeptTrajectories],
    questions: Mapping[str, Question],
    model: ModelConfig,
    training: TrainingConfig,
    start: Path | None,
    folder: Path,
) -> None:
    """Compute what `folder` lacks, trajectory by trajectory; each is on disk before the next one. `questions`: by the
    names that `credited` gives. `start`: the adapter that training continues; gains of another one are deleted."""
    policy_file = folder / "policy.json"
    made_of = {"model": model_fingerprint(model), "adapter": checked_digest(start) if start else None}
    if policy_file.exists() and read_json_file(policy_file) != made_of:
        (folder / SEGMENT).unlink(missing_ok=True)
    write_json(policy_file, made_of)
    known = read_gains(folder)
    missing = [(part, [key for key in credited(part) if key not in known]) for part in kept]
    left = sum(len(keys) for _, keys in missing)
    if not left:
        return
    chat = open_chat_format(model)
    policy = load_model(model)
    if start is not None:
        policy = add_lora(policy, training.lora, 0)
        start_from_adapter(policy, start)
    policy = policy.to(torch.bfloat16 if mixes_precision(model, training, 1) else torch.float32)
    scorer = AnswerScorer(policy.to("cpu" if on_cpu(model) else "cuda").eval())
    with Segment(folder / SEGMENT) as segment, Progress("credit of actions", len(known) + left, len(known)) as progress:
        for part, keys in missing:
            names = credited(part)
            for trajectory in part.store.read(keys):
                answer = tuple(chat.encode(questions[names[trajectory.key]].gold_answer))
                segment.append(_gains_of(scorer, trajectory, answer))
                progress.advance()


def _gains_of(scorer: AnswerScorer, trajectory: Trajectory, answer: Sequence[int]) -> TrajectoryGains:
    """No gains where the question has no gold answer."""
    by_conversation: dict[int, list[Action]] = {}
    for action in parsed_actions(trajectory):
        by_conversation.setdefault(action.conversation, []).append(action)
    gains: list[ActionGain] = []
    for number, actions in by_conversation.items():
        starts = [action.start for action in actions]
        if len(starts) < 2 or not answer:
            continue
        conversation = trajectory.conversations[number]
        values = scorer.values(conversation.role, conversation.ids, starts, answer)
        gains += [
            ActionGain(number, at, after - before)
            for at, before, after in zip(starts, values, values[1:], strict=False)
        ]
    return TrajectoryGains(trajectory=trajectory.key, gains=tuple(gains))


class AnswerScorer:
    """Log-probabilities of answers under a model. Of each role the keys and values of the last conversation stay: the
    next one of it begins alike, with the same instructions and often the same question."""

    def __init__(self, policy: Any) -> None:
        self._policy = policy
        self._device = next(policy.parameters()).device
        self._held: dict[str, tuple[Sequence[int], DynamicCache]] = {}

    @torch.no_grad()
    def values(self, role: str, ids: Sequence[int], starts: Sequence[int], answer: Sequence[int]) -> list[float]:
        """At each of these ascending positions of `ids`, the mean log-probability of the tokens of `answer` there."""
        held, cache = self._held.pop(role, ((), DynamicCache()))
        # What is cached stands before the last token of a prompt, so that its own forward pass gives a logit.
        at = 0
        while at < min(len(held), starts[0] - 1) and held[at] == ids[at]:
            at += 1
        if len(held) > at:
            cache.crop(at - len(held))
        values: list[float] = []
        target = torch.tensor(answer, device=self._device)
        for start in starts:
            if start - 1 > at:
                self._logits(ids[at : start - 1], cache, 1)
            at = start - 1
            logits = self._logits([ids[at], *answer[:-1]], cache, len(answer))
            values.append(float(logits.float().log_softmax(-1).gather(1, target[:, None]).mean()))
            cache.crop(-len(answer))
        self._held[role] = ids[:at], cache
        return values

    def _logits(self, ids: Sequence[int], cache: DynamicCache, last: int) -> torch.Tensor:
        """Those of the last tokens, (last, vocabulary)."""
        given = torch.tensor([ids], device=self._device)
        found: torch.Tensor = self._policy(
            input_ids=given, past_key_values=cache, use_cache=True, logits_to_keep=last
        ).logits[0]
        return found
