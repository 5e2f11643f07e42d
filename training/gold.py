"""The control of gold answers: a ceiling for what the same training can reach with the answers that were sampled.

Of every question one sampled trajectory is taken, and the action that gives its answer is replaced by the one that
gives the gold answer (`gold_action` of the system). Nothing follows it in its conversation; what was sampled before it,
and in other conversations, is learnt too, and so is what was kept of the curriculum. For a system of one call this is
supervised fine-tuning on gold answers. With several agents the others act as they were sampled, so it is the ceiling of
the answers alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any

from ratchet.agents.core.system import System, load_system
from ratchet.core.config import Config
from ratchet.core.errors import UserError
from ratchet.core.files import write_jsonl, write_record
from ratchet.core.records import ModelCall, Question, QuestionChoice, Selection, Span, Trajectory, content_key
from ratchet.core.runfolder import RoundFolder
from ratchet.inference.chat import ChatFormat
from ratchet.inference.chat_formats import open_chat_format
from ratchet.questions.load import load_questions
from ratchet.sampling.store import FIRST_SEGMENT, TrajectoryStore

GoldAction = Callable[[Question, Any], tuple[str, str]]


def write_gold(folder: RoundFolder, config: Config) -> None:
    """Write trajectories and selection of the round's control of gold answers to the training questions, in the trained
    model's chat format. Raises UserError where it has none."""
    loaded, model = load_system(config.system), config.models[config.training.model]
    role, action = gold_action_of(loaded)
    selection = folder.read_selection()
    if selection is None:
        raise UserError(f"{folder.selection}: does not exist; select the round's trajectories first: `ratchet score`")
    questions = {question.id: question for question in load_questions(config.questions.train, config.seed)}
    rewards = {key: value for choice in selection.questions for key, value in choice.rewards.items()}
    store = TrajectoryStore(folder.trajectories)
    chosen = _one_for_each_question(store, rewards, questions, role)
    chat = open_chat_format(model)
    if chat.reply_opening:
        raise UserError(
            f"--control gold is not possible here: the prompts of {model.path} begin a thought, and given answers have "
            "none; set its template: {enable_thinking: false}, where it knows that"
        )
    made: dict[str, Trajectory] = {}
    reasons: dict[str, str] = {}
    for name, question in questions.items():
        if not question.gold_answer:
            reasons[name] = "dropped: it has no gold answer"
        elif name not in chosen:
            reasons[name] = f"dropped: in no trajectory did the role {role} act"
        else:
            made[name] = with_last_action(chosen[name], question, role, action(question, loaded.settings)[1], chat)
            reasons[name] = "kept: one trajectory, with the gold answer"
    if not made:
        [(reason, count)] = Counter(reasons.values()).most_common(1)
        raise UserError(f"--control gold is not possible here: {count} x {reason}")
    control = folder.control("gold")
    kept = {name: (trajectory.key,) for name, trajectory in made.items()}
    gold = Selection(
        weights=selection.weights,
        rule={"control": "gold"},
        questions=tuple(
            QuestionChoice(
                question_id=name,
                kept=kept.get(name, ()),
                cause="kept" if name in kept else "none_finished",
                reason=reason,
                rewards=dict.fromkeys(kept.get(name, ()), 1.0),
            )
            for name, reason in reasons.items()
        ),
        curriculum=selection.curriculum,
    )
    led = [key for choice in selection.curriculum for key in choice.kept]
    write_jsonl(control.trajectories / FIRST_SEGMENT, chain(made.values(), store.read(led)))
    write_record(control.selection, gold)


def gold_action_of(system: System) -> tuple[str, GoldAction]:
    """(role whose action is the answer, function that gives it for a question). UserError without a trained one."""
    make = system.spec.gold_action
    if make is None:
        raise UserError(
            f"--control gold is not possible here: the system {system.name} does not say which action gives the right "
            "answer (`gold_action` of its `SYSTEM`)"
        )
    role = make(Question(id="", text=""), system.settings)[0]
    if not system.config.role(role).trainable:
        raise UserError(
            f"--control gold is not possible here: the role {role}, which gives the answer, is not trained "
            f"(system.roles.{role}.trainable)"
        )
    return role, make


def _one_for_each_question(
    store: TrajectoryStore, rewards: Mapping[str, float | None], questions: Mapping[str, Question], role: str
) -> dict[str, Trajectory]:
    """The best trajectory of each question: finished ones first, then by gold documents found, then by reward."""
    best: dict[str, tuple[tuple[bool, int, float, int], Trajectory]] = {}
    for trajectory in store.read(list(rewards)):
        question = questions.get(trajectory.question_id)
        if question is None or trajectory.status == "failed" or _last_call(trajectory, role) is None:
            continue
        documents = len({passage.document_id for passage in trajectory.passages} & set(question.gold_ids))
        rank = (trajectory.status == "finished", documents, rewards[trajectory.key] or 0.0, -trajectory.sample)
        if question.id not in best or rank > best[question.id][0]:
            best[question.id] = rank, trajectory
    return {name: trajectory for name, (_, trajectory) in best.items()}


def _last_call(trajectory: Trajectory, role: str) -> int | None:
    places = [
        at
        for at, event in enumerate(trajectory.events)
        if isinstance(event, ModelCall) and trajectory.conversations[event.conversation].role == role
    ]
    return places[-1] if places else None


def with_last_action(
    trajectory: Trajectory, question: Question, role: str, action: str, chat: ChatFormat
) -> Trajectory:
    """The trajectory with `action` in place of the role's last one, which ends its conversation."""
    at = _last_call(trajectory, role)
    assert at is not None
    call = trajectory.events[at]
    assert isinstance(call, ModelCall)
    new = (*chat.encode(action), chat.end_of_turn)
    old = trajectory.conversations[call.conversation]
    end = call.start + len(new)
    conversation = old.model_copy(
        update={
            "ids": old.ids[: call.start] + new,
            "spans": (
                *(span for span in old.spans if span.end <= call.start),
                Span(start=call.start, end=end, author="assistant", sampled=True),
            ),
        }
    )
    changed: dict[str, Any] = {"end": end, "text": action, "error": "", "finish_reason": "stop", "new_tokens": len(new)}
    changed |= {"thought_tokens": 0}
    events = list(trajectory.events)
    events[at] = call.model_copy(update={**changed, "parse": "free" if call.parse == "free" else "ok"})
    conversations = list(trajectory.conversations)
    conversations[call.conversation] = conversation
    return trajectory.model_copy(
        update={
            "key": content_key("gold", trajectory.key, new),
            "policy": "gold",
            "status": "finished",
            "answer": question.gold_answer,
            "error": "",
            "events": tuple(events),
            "conversations": tuple(conversations),
        }
    )
