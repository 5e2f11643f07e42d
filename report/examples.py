"""Three questions that show what training changed: one gained, one still wrong, one broken, each as plain steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ratchet.core.records import Question, Recall, Search, ToolCall, Trajectory
from ratchet.evaluation.comparisons import CHANGE, ROUNDING
from ratchet.evaluation.results import BASE, TRAINED, Results
from ratchet.report.gather import Gathered, Section
from ratchet.report.view import cut, expected_answers

MAX_STEPS, MAX_TITLES, MAX_TEXT = 4, 3, 300


def choose_examples(results: Results, ids: Sequence[str]) -> dict[str, str]:
    """Kind of example to question id: the largest gain, the lowest value that stayed low, the largest loss."""
    base, trained = results.arm(BASE), results.arm(TRAINED)
    if base is None or trained is None:
        return {}
    before, after, large = base.known(results.primary), trained.known(results.primary), CHANGE - ROUNDING
    change = {i: after[i] - before[i] for i in ids if i in before and i in after}
    found = {
        "gained": max((i for i in change if change[i] >= large), key=lambda i: change[i], default=""),
        "still wrong": min((i for i in change if before[i] < large > after[i]), key=lambda i: after[i], default=""),
        "broken": min((i for i in change if change[i] <= -large), key=lambda i: change[i], default=""),
    }
    return {kind: i for kind, i in found.items() if i}


def make_examples(gathered: Gathered) -> list[dict[str, Any]]:
    """An example of each kind that is among the questions on the page. UserError where a record was changed."""
    results, section = gathered.results, gathered.evaluated
    if results is None or section is None:
        return []
    arms = {i: {arm for arm, _ in lines} for i, lines in section.lines.items()}
    questions = {one.id: one for one in section.questions if arms[one.id] >= {BASE, TRAINED}}
    chosen = choose_examples(results, [*questions])
    return [_example(kind, questions[i], results, section) for kind, i in chosen.items()]


def _example(kind: str, question: Question, results: Results, section: Section) -> dict[str, Any]:
    base = _trajectory(section, question, BASE, best=kind == "broken")
    trained = _trajectory(section, question, TRAINED, best=kind == "gained")
    steps = [*_steps(trained, question)]
    return {
        "kind": kind,
        "question": question,
        "before_after": [
            arm.values[question.id][results.primary] for arm in results.arms if arm.name in (BASE, TRAINED)
        ],
        "key": trained.key,
        "steps": steps[:MAX_STEPS],
        "more_steps": len(steps[MAX_STEPS:]),
        "answer": cut(trained.answer, MAX_TEXT),
        "expected": " or ".join(expected_answers(question)),
        "base_answer": cut(base.answer, MAX_TEXT),
    }


def _trajectory(section: Section, question: Question, arm: str, best: bool) -> Trajectory:
    """The best or the worst of an arm's samples, by reward."""
    lines = [line for name, line in section.lines[question.id] if name == arm]
    return (max if best else min)(lines, key=lambda line: section.rewards[line.trajectory.key] or 0.0).read()


def _steps(trajectory: Trajectory, question: Question) -> Iterator[tuple[str, list[tuple[str, bool]]]]:
    """What was asked and, for each passage found, its title and whether its document is gold."""
    for event in trajectory.events:
        if isinstance(event, Search | ToolCall | Recall):
            if isinstance(event, Search):
                asked = event.query
            else:
                asked = ", ".join(event.entities if isinstance(event, Recall) else map(str, event.arguments.values()))
            found = event.passages[:MAX_TITLES]
            titles = [
                (cut(passage.title or passage.id, 80), passage.document_id in question.gold_ids) for passage in found
            ]
            yield cut(asked, MAX_TEXT), titles
