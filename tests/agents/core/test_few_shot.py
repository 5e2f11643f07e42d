"""Worked examples: made with any task's labels, in the very form that each system reads."""

from __future__ import annotations

import pytest

from agents import mad_liang, madke, react
from agents.core.few_shot import task_with_options, worked_examples
from agents.core.labels import read_verdict
from agents.core.prompts.template import PromptSet
from questions.labels import AVERITEC, FEVER_TWO, HOVER, YES_NO_MAYBE, choice_labels
from ratchet.records import Label, Question
from tests.helpers.playing import CLAIM, Shelf, engine, passage, play
from tests.helpers.snapshots import check_snapshot

EXAM = Question(id="m1", text="Which metal rusts?", labels=choice_labels(dict(zip("ABCDE", "vwxyz", strict=True))))
PUBMED = Question(id="p1", text="Does it help?", labels=YES_NO_MAYBE)
SHELF = Shelf({CLAIM.text: [passage(1), passage(2)]})
SAID = "Ada did it.\nSUPPORTS"


def claim(labels: tuple[Label, ...]) -> Question:
    return CLAIM.model_copy(update={"labels": labels, "label": None})


@pytest.mark.parametrize(
    ("question", "right"),
    [
        (CLAIM, ["SUPPORTS", "REFUTES"]),
        (claim(FEVER_TWO), ["SUPPORTS", "REFUTES"]),
        (claim(AVERITEC), ["Supported", "Refuted"]),
        (claim(HOVER), ["SUPPORTED", "NOT_SUPPORTED"]),
        (PUBMED, ["yes", "no"]),
        (EXAM, ["B", "A"]),
        (EXAM.model_copy(update={"labels": EXAM.labels[:2]}), ["B", "A"]),
    ],
)
def test_examples_have_the_tasks_labels_and_are_in_form(question: Question, right: list[str]) -> None:
    worked = worked_examples(question)
    assert [example.label for example in worked] == right
    for example in worked:
        verdict = read_verdict(example.verdict, question.labels)
        assert (verdict.label, verdict.reasons) == (example.label, example.reason)
        assert example.task.startswith(f"{question.form.capitalize()}: ")
    for user, assistant in react.worked_exchanges(question, PromptSet(react.PROMPTS).text):
        assert react.read_step(assistant, question.labels).action == ("finish" if "Documents" in user else "search")
    roles = madke.examples_of(question, PromptSet(madke.PROMPTS).text)
    assert [madke.read_choice(choice, 2, 3) for _, choice in roles.pop("selector")] == [(1,), (2,)]
    assert [read_verdict(said, madke.AGREED).label for _, said in roles.pop("judge")] == ["Yes", "No"]
    sides = mad_liang.examples_of(question, PromptSet(mad_liang.PROMPTS).text)
    for turns in (*roles.values(), *map(sides.get, ("affirmative", "negative", "moderator"))):
        assert [read_verdict(said, question.labels).label for _, said in turns or ()] == right


def test_a_choice_lists_its_options_as_the_examples_do() -> None:
    assert task_with_options(EXAM, True).splitlines() == [
        "Question: Which metal rusts?",
        "A: v",
        "B: w",
        "C: x",
        "D: y",
        "E: z",
    ]
    assert worked_examples(EXAM)[0].task.splitlines()[1:] == ["A: wool", "B: iron", "C: milk", "D: paper"]
    assert task_with_options(EXAM, False) == "Question: Which metal rusts?"
    assert task_with_options(CLAIM, True) == task_with_options(CLAIM, False) == f"Claim: {CLAIM.text}"


@pytest.mark.parametrize(
    ("name", "settings", "replies"),
    [
        ("cot", {}, [SAID]),
        ("cot", {"extraction": True}, ["Ada did it.", "SUPPORTS"]),
        ("react", {}, ["Action: finish[SUPPORTS]"]),
        ("mad_liang", {"rounds": 1}, [SAID, SAID, "So?\nNO PREFERENCE", "SUPPORTS", SAID]),
        ("madke", {"rounds": 1}, ["[1]", "[2]", SAID, SAID, "Yes", SAID]),
    ],
)
async def test_each_system_shows_them_before_the_first_turn_where_its_settings_say_so(
    name: str, settings: dict[str, object], replies: list[str]
) -> None:
    agent = engine(replies)
    config = {"name": name, "settings": {**settings, "examples": True}}
    trajectory = await play(config, agent, SHELF, question=CLAIM)
    assert trajectory.answer == "SUPPORTS" and len(agent.calls) == len(replies)
    for call in agent.calls:
        roles = [message["role"] for message in call.messages]
        assert roles[:4] == ["system", "user", "assistant", "user"] and len(roles) >= 6
    sampled = [c.text for c in trajectory.model_calls]
    assert sampled == replies  # what examples say is nobody's action
    check_snapshot(f"{name}_{'_'.join(settings)}_examples".replace("__", "_"), agent)
