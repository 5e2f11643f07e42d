"""Samples that rules lead: which ones, under which keys, with what record, and how they are selected and counted."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ratchet.agents.core.system import load_system
from ratchet.agents.core.task import Job
from ratchet.core.config import Config, RoleConfig, SamplingConfig, SelectConfig, SystemConfig, TeacherConfig
from ratchet.core.errors import UserError
from ratchet.core.records import Question, Score, ToolCall, Trajectory
from ratchet.rewards.builtin.useful_searches import useful_searches
from ratchet.rewards.selection import select, select_at_random
from ratchet.rewards.summary import selection_lines
from ratchet.sampling.pool import (
    Pass,
    check_led,
    plan_curriculum,
    plan_jobs,
    run_episode,
    with_exploration,
    with_teacher,
)
from ratchet.sampling.store import Trajectories
from ratchet.training.rows import build_rows
from tests.helpers.configs import config_values
from tests.helpers.playing import SETTING, Shelf, engine, passage, say
from tests.helpers.tiny_index import tiny_index

SYSTEM = load_system(
    SystemConfig(
        name="mrag",
        settings={"style": "brief", "explanations": False, "agents": ["searcher"], "valid_moves": True},
    )
)
QUESTION = Question(
    id="q", text="Where was the builder of the Oarabel born?", answers=("Grisket",), gold_ids=("d1", "d2")
)
FERRY = passage(1, "The Oarabel is a ferry. It was built by Wilka Brandeleck.", "Oarabel")
PERSON = passage(2, "Wilka Brandeleck was born in Grisket.", "Wilka Brandeleck")
SHELF = Shelf({"Oarabel": [FERRY], "Wilka Brandeleck": [PERSON]})
REPLIES = [
    say(agent="searcher"),
    say(search_query="Oarabel"),
    say(relevance=[True], end_search=False, new_search_query="Wilka Brandeleck"),
    say(relevance=[True], end_search=True),
    say(agent="answerer"),
    say(answer="Grisket"),
    say(agent="finisher"),
]


def planned(**changes: Any) -> tuple[Pass, list[Job]]:
    sampling = SamplingConfig.model_validate({"samples": 4, **changes})
    one = Pass(
        SYSTEM.config, SETTING, [QUESTION], 4, Path("x"), explore=sampling.explore, curriculum=sampling.curriculum
    )
    jobs = plan_jobs([QUESTION], 4, 0, SYSTEM.identity, SETTING, {"coordinator": "m"}, "i")
    return one, with_exploration(jobs, one)


def play(job: Job) -> Trajectory:
    return asyncio.run(run_episode(job, SYSTEM, {"agent": engine(REPLIES)}, SHELF, SETTING))


def led(rule: str, *learners: str, key: str = "k") -> Trajectory:
    """A sample of the curriculum, its actions from the script."""
    return play(Job(QUESTION, 4, key, 1, learners=learners)).model_copy(update={"explored": (rule,)})


def test_only_the_last_samples_explore_and_only_their_keys_change() -> None:
    free, some = planned()[1], planned(explore={"samples": 1})[1]
    assert [job.key for job in some[:3]] == [job.key for job in free[:3]] and some[3].key != free[3].key
    assert [[rule.name for rule in job.rules] for job in some] == [[], [], [], ["search_again", "quote_names"]]
    other = planned(explore={"samples": 1, "rules": ["search_again"]})[1]
    assert other[3].key not in (some[3].key, free[3].key)
    with pytest.raises(ValueError, match=r"explore\.samples: 5 of 4 samples"):
        SamplingConfig.model_validate({"samples": 4, "explore": {"samples": 5}})
    with pytest.raises(UserError, match="does not know the actions of no_retrieval"):
        check_led(planned(explore={"samples": 1})[0], load_system(SystemConfig(name="no_retrieval")), SHELF)


def test_a_teacher_plays_the_first_samples_which_may_explore_too() -> None:
    free, led_last = planned()[1], planned(explore={"samples": 4})[1]
    engines = {"big": engine([])}
    jobs = with_teacher(led_last, TeacherConfig(model="big", samples=2), engines)
    assert [(job.teacher, bool(job.rules)) for job in jobs] == [("big", True)] * 2 + [("", True)] * 2
    assert jobs[2:] == led_last[2:] and len({job.key for job in (*jobs, *led_last, *free)}) == 10
    engines["big"].fingerprint = "another"
    assert with_teacher(led_last, TeacherConfig(model="big", samples=1), engines)[0].key != jobs[0].key


def test_a_curriculum_adds_a_sample_for_each_of_its_rules(tmp_path: Path) -> None:
    index = tiny_index(tmp_path, [{"id": p.document_id, "title": p.title, "text": p.text} for p in (FERRY, PERSON)])
    one, jobs = planned(
        curriculum={"searcher": "gold_searches", "coordinator": "gold_searches", "answerer": "gold_documents"}
    )
    searching, reading = plan_curriculum(jobs, one, index)
    assert (searching.learners, reading.learners) == (("searcher", "coordinator"), ("answerer",))
    assert (searching.sample, reading.sample) == (4, 5) and len({searching.key, reading.key, jobs[0].key}) == 3
    assert [gold.title for gold in searching.gold] == ["Oarabel", "Wilka Brandeleck"]
    with pytest.raises(UserError, match=r"curriculum\.reader: mrag has no such role"):
        check_led(planned(curriculum={"reader": "gold_documents"})[0], SYSTEM, index)
    frozen = load_system(SYSTEM.config.model_copy(update={"roles": {"answerer": RoleConfig(trainable=False)}}))
    with pytest.raises(UserError, match=r"curriculum\.answerer: this role is not trained"):
        check_led(one, frozen, index)
    with pytest.raises(UserError, match="in an index on this machine"):
        check_led(one, SYSTEM, SHELF)
    learning = {"sampling": {"curriculum": {"answerer": "gold_documents"}}, "training": {"objective": "dpo"}}
    with pytest.raises(ValueError, match=r"curriculum: training\.objective=dpo compares attempts"):
        Config.model_validate(config_values(tmp_path, **learning))
    unknown = [replace(job, question=QUESTION.model_copy(update={"gold_ids": ("other",)})) for job in jobs]
    with pytest.raises(UserError, match="no training question has gold_ids of documents in the index"):
        plan_curriculum(unknown, one, index)


def test_actions_that_are_calls_of_tools_cannot_be_narrowed(tmp_path: Path) -> None:
    rule = tmp_path / "rule.py"
    rule.write_text("def narrow(point):\n    return None\n")
    native = load_system(SystemConfig(name="mermaid", settings={"actions": "native"}))
    for changes in ({"explore": {"samples": 1, "rules": [str(rule)]}}, {"curriculum": {"executor": "gold_searches"}}):
        with pytest.raises(UserError, match="rules narrow actions in JSON"):
            check_led(planned(**changes)[0], native, SHELF)


def test_a_rule_that_leaves_an_action_as_it_is_leaves_its_decoding_free() -> None:
    """Where malformed actions are asked for again, only those that a rule narrows are constrained."""
    system = load_system(SYSTEM.config.model_copy(update={"malformed": "reask"}))
    agent = engine(REPLIES)
    job = planned(explore={"samples": 1})[1][3]
    assert asyncio.run(run_episode(job, system, {"agent": agent}, SHELF, SETTING)).status == "finished"
    constrained = [call.params.schema is not None for call in agent.calls]
    assert constrained == [True, True, True, True, False, False, False]


@pytest.mark.parametrize(
    "body", ["raise KeyError('gold')", "return 'no schema'", "return {'type': 'strin'}", "return {'enum': [{1}]}"]
)
def test_an_error_in_a_rule_names_its_file(tmp_path: Path, body: str) -> None:
    rule = tmp_path / "rule.py"
    rule.write_text(f"def narrow(point):\n    {body}\n")
    with pytest.raises(UserError, match=rf"{rule}: narrow failed on the question 'q'"):
        play(planned(explore={"samples": 1, "rules": [str(rule)]})[1][3])


def test_a_narrowed_action_is_asked_for_with_the_narrowed_schema_and_recorded_as_any_other() -> None:
    asked: list[Any] = []
    agent = engine(REPLIES)
    generate = agent.generate

    async def watched(prompt: Any, params: Any, adapter: Any = None, messages: Any = ()) -> Any:
        asked.append(params.schema)
        return await generate(prompt, params, adapter, messages)

    agent.generate = watched  # type: ignore[method-assign]
    job = planned(explore={"samples": 1})[1][3]
    trajectory = asyncio.run(run_episode(job, SYSTEM, {"agent": agent}, SHELF, SETTING))
    assert trajectory.status == "finished" and trajectory.explored == ("search_again", "quote_names")
    assert asked[1]["properties"]["search_query"] == {"enum": ["Oarabel"]}
    assert [kind["properties"]["end_search"] for kind in asked[2]["anyOf"]] == [{"enum": [False]}]
    assert len(asked[3]["anyOf"]) == 2, "the second review is free"
    rows, _ = build_rows(trajectory, 10_000)
    assert {row.role for row in rows} == {"coordinator", "searcher", "answerer"}


def test_a_sample_of_the_curriculum_teaches_its_roles_alone() -> None:
    trajectory = led("gold_documents", "answerer")
    rows, _ = build_rows(trajectory, 10_000)
    assert [row.role for row in rows] == ["answerer"]


def test_samples_of_the_curriculum_are_selected_apart() -> None:
    free = play(Job(QUESTION, 0, "free", 1))
    searching, reading = led("gold_searches", "searcher", key="s"), led("gold_documents", "answerer", key="a")
    found = Trajectories.of([free, searching, reading])
    scores = {
        (key, "f1"): Score(trajectory=key, name="f1", value=value)
        for key, value in (("free", 0.2), ("s", 0.0), ("a", 1.0))
    }
    selection = select([QUESTION], found, scores, {"f1": 1.0}, SelectConfig(min_reward=0.5))
    assert [choice.cause for choice in selection.questions] == ["reward_too_low"]
    assert {choice.learners: choice.kept for choice in selection.curriculum} == {
        ("searcher",): ("s",),
        ("answerer",): ("a",),
    }
    assert selection.kept == ("a", "s"), "the searcher found both documents, whatever was answered"
    lenient = select([QUESTION], found, scores, {"f1": 1.0}, SelectConfig())
    drawn = {select_at_random(lenient, found.outlines.values(), seed).questions[0].kept for seed in range(9)}
    assert drawn == {("free",)}, "the control draws among the free ones alone"
    missed = Question(**{**QUESTION.model_dump(), "gold_ids": ("d1", "d3")})
    assert select([missed], found, scores, {"f1": 1.0}, SelectConfig(min_reward=0.5)).kept == ("a",)
    strict = SelectConfig(min_reward=0.5, drop_all_equal=True, difficulty="failure_rate")
    alone = select([QUESTION], found, scores, {"f1": 1.0}, strict).curriculum
    assert {(choice.kept, choice.weight) for choice in alone} == {(("s",), 1.0), (("a",), 1.0)}
    counted = selection_lines(selection)[-1]
    assert "free: 1 sampled, 0 above 0.5, 0 kept; curriculum of searcher: 1 sampled, 1 above 0.5, 1 kept" in counted


def test_few_and_many_searches_may_be_kept_in_balance() -> None:
    """Of the free ones and of led searches the surplus goes, of led reading nothing."""
    one_hop = [*REPLIES[:2], say(relevance=[True], end_search=True), *REPLIES[4:]]
    questions = [QUESTION.model_copy(update={"id": f"q{i}", "gold_ids": ("d1",)}) for i in range(4)]

    def sampled(number: int, rule: str = "", *learners: str) -> Trajectory:
        agent = engine(REPLIES if number == 0 else one_hop)
        job = Job(questions[number], 0, f"{rule}{number}", 1, learners=learners)
        made = asyncio.run(run_episode(job, SYSTEM, {"agent": agent}, SHELF, SETTING))
        return made.model_copy(update={"explored": (rule,) if rule else ()})

    found = [
        sampled(number, *how)
        for number in range(4)
        for how in ((), ("gold_searches", "searcher"), ("gold_documents", "answerer"))
    ]
    scores = {(one.key, "f1"): Score(trajectory=one.key, name="f1", value=1.0) for one in found}
    rule = SelectConfig(balance_searches=True)
    selection = select(questions, Trajectories.of(found), scores, {"f1": 1.0}, rule)
    assert [choice.cause for choice in selection.questions].count("surplus") == 2
    kept = {
        learners: [key for one in selection.curriculum if one.learners == learners for key in one.kept]
        for learners in (("searcher",), ("answerer",))
    }
    assert len(kept["searcher",]) == 2 and "gold_searches0" in kept["searcher",] and len(kept["answerer",]) == 4
    assert selection == select(questions, Trajectories.of(found[::-1]), scores, {"f1": 1.0}, rule)


def test_a_search_is_useful_where_it_finds_something_needed_that_none_had_found() -> None:
    trajectory = play(Job(QUESTION, 0, "free", 1))
    inputs: Any = None
    assert useful_searches(QUESTION, trajectory, inputs) == (1.0, "")
    one_hop = QUESTION.model_copy(update={"gold_ids": ("d1",)})
    assert useful_searches(one_hop, trajectory, inputs)[0] == pytest.approx(2 / 3)  # of two searches one was needed
    by_answer = QUESTION.model_copy(update={"gold_ids": ()})
    assert useful_searches(by_answer, trajectory, inputs)[0] == pytest.approx(2 / 3)  # the second brought the answer
    unknown = QUESTION.model_copy(update={"gold_ids": ("d9",)})
    assert useful_searches(unknown, trajectory, inputs)[0] == 0.0
    titles = ("Oarabel", "Wilka Brandeleck")
    assert useful_searches(unknown.model_copy(update={"gold_titles": titles}), trajectory, inputs) == (1.0, "")
    assert useful_searches(QUESTION, trajectory.model_copy(update={"events": ()}), inputs)[0] == 0.0
    called = [
        ToolCall(role="executor", source="i", tool="search", arguments={}, passages=search.passages, at=0, seconds=0)
        for search in trajectory.searches
    ]
    assert useful_searches(QUESTION, trajectory.model_copy(update={"events": tuple(called)}), inputs) == (1.0, "")
