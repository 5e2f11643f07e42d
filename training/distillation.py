"""Distillation: what the agents of one run answered, as trajectories of a system that answers in one call.

Of every trajectory that the teacher's round kept, the student's system is played once: its search returns the documents
that the agents returned, and its one action is the agents' answer in the form that the student's prompt asks for
(`gold_action` of the system). So the labels are the ids of that text under the student's own prompt. The student did
not sample them, which training on its own samples does (Kim and Rush 2016, arXiv 1606.07947, section 3.2: learning from
a teacher's outputs, sequence by sequence).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from ratchet.agents.core.system import System, load_system
from ratchet.agents.core.task import Job, RunContext
from ratchet.core.config import Config
from ratchet.core.errors import UserError
from ratchet.core.files import write_jsonl, write_record
from ratchet.core.records import Passage, Question, Trajectory, content_key, questions_digest
from ratchet.core.runfolder import RoundFolder
from ratchet.core.selection import QuestionChoice, Selection
from ratchet.inference.chat import ChatFormat
from ratchet.inference.chat_formats import open_chat_format
from ratchet.inference.engine import Engine
from ratchet.inference.scripted import ScriptedEngine
from ratchet.questions.load import load_questions
from ratchet.sampling.pool import run_episode
from ratchet.sampling.store import DISTILLED, FIRST_SEGMENT, Manifest, TrajectoryStore
from ratchet.training.gold import check_takes_given_answers, gold_action_of
from ratchet.training.kept import KeptTrajectories

CONTEXT = RunContext(temperature=0.0, frozen_temperature=0.0, top_p=1.0, adapter=None, policy=DISTILLED)


class GivenDocuments:
    """An index that finds the same documents for every query."""

    digest = DISTILLED

    def __init__(self, passages: Sequence[Passage]) -> None:
        self._passages = list(passages)

    def search(self, query: str, k: int, offset: int = 0) -> list[Passage]:
        return self._passages[offset : offset + k]


def distill(teacher: KeptTrajectories, student: Config, folder: RoundFolder) -> Selection:
    """Write trajectories of the student's system and their selection into the round's folder, which takes no others.

    Kept trajectories of one question with the same answer and documents become one. Those without documents are left
    out where the student searches: its prompts always have some. Raises UserError where the student does not answer in
    one call, has other training questions, or the folder has a selection of something else.
    """
    model = student.models[student.training.model]
    system, chat = load_system(student.system), open_chat_format(model)
    _, act = gold_action_of(system, "distillation")
    check_takes_given_answers(chat, model, "distillation")
    questions = {one.id: one for one in load_questions(student.questions.train, student.seed)}
    choices = [choice for choice in teacher.selection.questions if choice.kept]
    _check_questions(choices, questions)
    taught = {one.key: one for one in teacher.store.load(teacher.selection.kept)}
    made: dict[str, Trajectory] = {}
    learnt: list[QuestionChoice] = []
    for choice in choices:
        rewards: dict[str, float | None] = {}
        for trajectory in (taught[key] for key in choice.kept if key in taught):
            question = questions[choice.question_id]
            action = act(_answered(question, trajectory.answer), system.settings)[1]
            played = _play(student, system, chat, question, action, trajectory)
            if not trajectory.passages and played.searches:
                continue  # answered from memory, where the student reads documents
            made.setdefault(played.key, played)
            rewards.setdefault(played.key, choice.rewards[trajectory.key])
        if rewards:
            reason = f"kept: {len(rewards)} answers of {teacher.store.system_and_policy()[0]}"
            changed = {"kept": tuple(rewards), "rewards": rewards, "candidates": (), "reason": reason}
            learnt.append(choice.model_copy(update=changed))
    rule = {"distilled from": str(teacher.source.folder.path)}
    selection = Selection(weights=teacher.selection.weights, rule=rule, questions=tuple(learnt))
    if folder.read_selection() == selection:
        return selection
    store = TrajectoryStore(folder.trajectories)
    manifest = Manifest(
        system=system.config,
        setting=asdict(CONTEXT),
        models=dict.fromkeys(system.roles, DISTILLED),
        index=DISTILLED,
        sources={},
        seed=student.seed,
        questions=questions_digest(questions.values()),
        samples=1,
        keys=tuple(made),
    )
    is_begun = store.manifest() == manifest  # by this command, before it was stopped
    if folder.selection.exists() or (store.segments and not is_begun):
        raise UserError(
            f"{folder.path}: has trajectories or a selection already; distill into a run folder of its own "
            "(--set run=runs/NEW)"
        )
    store.plan(manifest)
    write_jsonl(folder.trajectories / FIRST_SEGMENT, made.values())
    write_record(folder.selection, selection)
    return selection


def _check_questions(choices: Sequence[QuestionChoice], questions: Mapping[str, Question]) -> None:
    if not choices:
        raise UserError("--from: its selection kept no trajectory, so there is no answer to learn from")
    if missing := [one.question_id for one in choices if one.question_id not in questions]:
        raise UserError(
            f"--from: {len(missing)} of its {len(choices)} kept questions are not among this config's training "
            f"questions, such as {missing[0]}; give both configs the same questions.train"
        )


def _answered(question: Question, answer: str) -> Question:
    """The question with this as its gold answer."""
    update = {"label": answer} if question.labels else {"label": None, "answers": (answer,)}
    return question.model_copy(update=update)


def _play(
    student: Config, system: System, chat: ChatFormat, question: Question, action: str, teacher: Trajectory
) -> Trajectory:
    """The student's trajectory with the teacher's documents, and its answer as the action."""
    max_context = student.models[student.training.model].max_context
    key = content_key(DISTILLED, teacher.answer, teacher.passages, question, student.system)
    engines: dict[str, Engine] = {name: ScriptedEngine(chat, lambda *_: action, max_context) for name in system.models}
    job = Job(question, sample=0, key=key, seed=student.seed)
    played = asyncio.run(run_episode(job, system, engines, GivenDocuments(teacher.passages), CONTEXT))
    if len(played.model_calls) != 1 or played.status != "finished" or played.answer != teacher.answer:
        said = f"ended {played.status} {played.error}".strip()
        raise UserError(
            f"distillation is not possible here: {system.name} gave {played.answer!r} for the answer "
            f"{teacher.answer!r} of trajectory {teacher.key} in {len(played.model_calls)} calls ({said}); a student is "
            "a system of one call, with max_tokens and max_context for the answers and documents"
        )
    return played
