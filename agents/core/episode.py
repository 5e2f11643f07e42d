"""One question, answered once by one system: the trajectory, whatever happens on the way."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from agents.core.registry import System
from agents.core.resources import Reach
from agents.core.tools import Answer, OutOfBudget, Setting, Tools, Unparsed
from inference.engine import Engine, EngineError
from inference.session import session
from ratchet.records import Event, Question, Status, Trajectory
from retrieval.index import Retriever
from retrieval.sources.source import SourceError

__all__ = ["Setting", "run_episode"]


async def run_episode(
    question: Question,
    system: System,
    engines: Mapping[str, Engine],
    retriever: Retriever,
    setting: Setting,
    *,
    key: str,
    sample: int,
    seed: int,
    watch: Callable[[Event], None] | None = None,
    reach: Reach | None = None,
) -> Trajectory:
    """Let the system answer, and return the record of it.

    What a model or a server does wrong is the trajectory's status and error, never an exception here; a UserError
    (the config is wrong) passes through. Where an action is malformed or a budget is used up, the answer is the one
    that the system had in hand (`tools.so_far`). A failed trajectory has none: it is sampled again.
    `watch` is called with each event as it ends.
    """
    tools = Tools(system.config, engines, retriever, setting, seed, watch, reach, question)
    answer, error = Answer(""), ""
    status: Status
    try:
        with session(question.id):
            answer = await system.solve(question, tools)
        status, error = answer.status, answer.error
    except Unparsed as problem:
        answer, status, error = tools.so_far, "unparsed", str(problem)
    except OutOfBudget as problem:
        answer, status, error = tools.so_far, "out_of_budget", str(problem)
    except (EngineError, SourceError) as problem:
        status, error = "failed", str(problem)
    finally:
        tools.close()
    return Trajectory(
        key=key,
        question_id=question.id,
        system=system.name,
        policy=setting.policy,
        sample=sample,
        seed=seed,
        status=status,
        answer=answer.text,
        explanation=answer.explanation,
        error=error,
        passages=answer.passages,
        candidates=dict(answer.candidates),
        turns=answer.turns,
        stopped=answer.stopped,
        events=tools.events,
        conversations=tools.conversations,
        seconds=tools.seconds,
    )
