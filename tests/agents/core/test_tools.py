"""What a system may do, and that all of it is recorded: through systems of a few lines, made for these tests."""

import asyncio
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from pydantic import BaseModel

from ratchet.agents.core.tools import Answer, Tools
from ratchet.core.config import RoleConfig, SystemConfig
from ratchet.core.errors import UserError
from ratchet.inference.completion import Completion
from ratchet.inference.engine import EngineError
from ratchet.inference.scripted import ScriptedEngine
from tests.helpers.playing import Shelf, Solve, engine, passage, run, say


class City(BaseModel):
    name: str
    large: bool


async def ask_city(tools: Tools) -> Answer:
    city = await tools.ask(tools.dialogue("one", "Name a city."), "Which?", City)
    return Answer(city.name)


async def test_a_conversation_grows_and_every_call_sees_the_last_one_as_its_prefix() -> None:
    async def solve(tools: Tools) -> Answer:
        dialogue = tools.dialogue("one", "Be kind.")
        for word in ("a", "b", "c"):
            await tools.ask(dialogue, word)
        return Answer("done")

    agent = engine(["x", "y", "z"])
    trajectory = await run(solve, agent)
    prompts = [call.prompt for call in agent.calls]
    assert all(long[: len(short)] == short and len(long) > len(short) for short, long in pairwise(prompts))
    (conversation,) = trajectory.conversations
    assert conversation.ids[: len(prompts[2])] == prompts[2]
    for call, text in zip(trajectory.model_calls, ("x", "y", "z"), strict=True):
        emitted = conversation.ids[call.start : call.end]
        assert emitted == (*agent.format.encode(text), agent.format.end_of_turn)
        assert call.parse == "free" and call.new_tokens == len(emitted)
    sampled = [(s.start, s.end) for s in conversation.spans if s.sampled]
    assert sampled == [(c.start, c.end) for c in trajectory.model_calls]
    assert all(s.parsed for s in conversation.spans)


async def test_a_role_whose_model_is_not_open_is_told_with_the_system_that_asks_it() -> None:
    """The models of a system are those of its roles."""
    config = SystemConfig(name="mine", roles={"one": RoleConfig(model="judge")})
    with pytest.raises(UserError, match=r"mine: .*'judge' plays.* its roles \(agent\)"):
        await run(ask_city, engine([]), config=config)


@pytest.mark.parametrize("policy", ["constrain", "give_up"])
@pytest.mark.parametrize(
    ("said", "error"),
    [("Velm", "expected one JSON object"), ('{"name": "Velm"', "JSON"), ('{"name": "Velm"}', "large")],
)
async def test_malformed_output_ends_the_trajectory_as_unparsed(policy: Any, said: str, error: str) -> None:
    agent = engine([said, say(name="Velm", large=True)])
    trajectory = await run(ask_city, agent, SystemConfig(malformed=policy))
    assert (trajectory.status, trajectory.answer) == ("unparsed", "")
    assert (agent.calls[0].params.schema is None) == (policy == "give_up") and len(agent.calls) == 1
    assert error in trajectory.error and trajectory.error.startswith("one: ")
    (call,) = trajectory.model_calls
    assert call.parse == "malformed" and error in call.error and call.text == said
    assert [s.parsed for s in trajectory.conversations[0].spans if s.sampled] == [False]


async def test_reask_shows_the_error_and_counts_every_try() -> None:
    config = SystemConfig(malformed="reask", reasks=2)
    agent = engine(["Velm", '{"name": "Velm"}', say(name="Velm", large=True)])
    trajectory = await run(ask_city, agent, config)
    assert trajectory.answer == "Velm"
    assert [call.params.schema for call in agent.calls] == [None] * 3
    assert [(c.attempt, c.parse) for c in trajectory.model_calls] == [(0, "malformed"), (1, "malformed"), (2, "ok")]
    assert "large: Field required" in agent.calls[2].messages[-1]["content"]
    assert [s.parsed for s in trajectory.conversations[0].spans if s.sampled] == [False, False, True]
    assert (await run(ask_city, engine(["no"] * 9), config)).status == "unparsed"


async def test_redraw_asks_the_same_again_with_another_seed_and_tells_no_error() -> None:
    config = SystemConfig(malformed="redraw", reasks=2)
    agent = engine(["Velm", '{"name": "Velm"}', say(name="Velm", large=True)])
    trajectory = await run(ask_city, agent, config)
    assert trajectory.answer == "Velm"
    assert len({call.prompt for call in agent.calls}) == 1 and len({call.params.seed for call in agent.calls}) == 3
    assert [(c.attempt, c.parse, c.text) for c in trajectory.model_calls][:2] == [
        (0, "malformed", "Velm"),
        (1, "malformed", '{"name": "Velm"}'),
    ]
    [conversation], last = trajectory.conversations, trajectory.model_calls[-1]
    assert [s.parsed for s in conversation.spans if s.sampled] == [True], "what was drawn again is no part of it"
    assert conversation.ids[: last.start] == agent.calls[0].prompt
    retried = engine(["no"] * 9)
    failed = await run(ask_city, retried, config)
    assert [call.params.temperature for call in retried.calls] == [0.7, 0.7, 0.7], "published: it rises to 0.5"
    frozen = engine(["no"] * 9)
    roles = {"one": RoleConfig(trainable=False)}
    await run(ask_city, frozen, SystemConfig(malformed="redraw", reasks=5, roles=roles))
    warmer = [call.params.temperature for call in frozen.calls]
    assert warmer == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.5])
    assert (failed.status, len(failed.model_calls)) == ("unparsed", 3)
    assert [s.parsed for s in failed.conversations[0].spans if s.sampled] == [False]


async def test_what_is_cut_off_is_malformed_even_if_it_parses() -> None:
    text = say(name="Velm", large=True)
    whole = engine([text])
    config = SystemConfig(roles={"one": RoleConfig(max_tokens=len(whole.format.encode(text)))})
    trajectory = await run(ask_city, whole, config)
    assert trajectory.status == "unparsed" and "cut off (length)" in trajectory.error
    assert trajectory.model_calls[0].text == text


async def test_free_text_that_is_cut_off_is_kept_but_never_trained_on() -> None:
    async def solve(tools: Tools) -> Answer:
        return Answer(await tools.ask(tools.dialogue("one"), "Tell."))

    config = SystemConfig(roles={"one": RoleConfig(max_tokens=3)})
    trajectory = await run(solve, engine(["a long story of the sea"]), config)
    assert trajectory.status == "unparsed" and trajectory.answer and "cut off" in trajectory.error
    assert trajectory.model_calls[0].parse == "malformed"
    assert [s.parsed for s in trajectory.conversations[0].spans if s.sampled] == [False]


async def test_the_context_bounds_max_tokens_then_ends_the_conversation() -> None:
    async def solve(tools: Tools) -> Answer:
        dialogue = tools.dialogue("one")
        while True:
            await tools.ask(dialogue, "x" * 50)

    cut = await run(ask_city, engine(lambda *_: say(name="V" * 400, large=True), max_context=200))
    assert (cut.status, cut.model_calls[0].parse) == ("out_of_budget", "malformed"), "an object that it cuts"
    agent = engine(lambda *_: "ok", max_context=300)
    trajectory = await run(solve, agent)
    assert trajectory.status == "out_of_budget" and "300" in trajectory.error
    assert len(agent.calls) > 1
    for call in agent.calls:
        assert call.params.max_tokens == 300 - len(call.prompt) >= 16


async def test_frozen_roles_play_the_base_model_at_their_own_temperature() -> None:
    config = SystemConfig(roles={"two": RoleConfig(model="other", trainable=False, max_tokens=9)})

    async def solve(tools: Tools) -> Answer:
        await tools.ask(tools.dialogue("one"), "a")
        return Answer(await tools.ask(tools.dialogue("two"), "b"))

    agent, other = engine(["x"]), engine(["y"])
    trajectory = await run(solve, {"agent": agent, "other": other}, config)
    assert (agent.calls[0].adapter, agent.calls[0].params.temperature) == ("adapters/one", 0.7)
    assert (other.calls[0].adapter, other.calls[0].params.temperature) == (None, 0.1)
    assert other.calls[0].params.max_tokens == 9 and other.calls[0].params.top_p == 0.95
    assert [(c.role, c.model, c.trainable) for c in trajectory.conversations] == [
        ("one", "agent", True),
        ("two", "other", False),
    ]


async def test_seeds_differ_by_call_and_repeat_whatever_the_order_of_concurrent_calls() -> None:
    def racing(first: float, second: float) -> Solve:
        async def chain(tools: Tools, role: str, wait: float) -> None:
            dialogue = tools.dialogue(role)
            for _ in range(3):
                await asyncio.sleep(wait)
                await tools.ask(dialogue, role)

        async def solve(tools: Tools) -> Answer:
            await asyncio.gather(chain(tools, "one", first), chain(tools, "two", second))
            return Answer("")

        return solve

    async def seeds(seed: int, first: float, second: float) -> set[tuple[str, int]]:
        agent = engine(lambda *_: "x")
        await run(racing(first, second), agent, seed=seed)
        return {(str(call.messages[-1]["content"]), call.params.seed) for call in agent.calls}

    one = await seeds(1, 0.001, 0.005)
    assert len({seed for _, seed in one}) == 6
    assert one == await seeds(1, 0.005, 0.001)
    assert not one & await seeds(2, 0.001, 0.005)


async def test_which_of_two_failing_branches_is_faster_changes_nothing_of_the_trajectory() -> None:
    def racing(first: float, second: float) -> Solve:
        async def chain(tools: Tools, role: str, wait: float) -> None:
            dialogue = tools.dialogue(role)
            for word in ("a", "b"):
                await asyncio.sleep(wait)
                await tools.ask(dialogue, word)
            await tools.ask(dialogue, "c", City)

        async def solve(tools: Tools) -> Answer:
            await tools.gather(chain(tools, "one", first), chain(tools, "two", second))
            return Answer("")

        return solve

    async def ended(first: float, second: float) -> tuple[str, str, list[tuple[int, ...]]]:
        trajectory = await run(racing(first, second), engine(lambda *_: "x"))
        return trajectory.status, trajectory.error, [talk.ids for talk in trajectory.conversations]

    status, error, conversations = await ended(0.001, 0.005)
    assert status == "unparsed" and error.startswith("one: ") and len(conversations) == 2
    assert (status, error, conversations) == await ended(0.005, 0.001)


async def test_concurrent_calls_are_recorded_in_the_order_of_their_beginning() -> None:
    async def solve(tools: Tools) -> Answer:
        slow, fast = tools.dialogue("one"), tools.dialogue("two")
        got = await asyncio.gather(tools.ask(slow, "slow"), tools.ask(fast, "fast"), tools.search("one", "q", 2))
        return Answer(str(got[0]))

    agent = engine(lambda prompt, *_: "S" if "slow" in prompt else "F")
    agent.delay = 0.02
    seen: list[str] = []
    trajectory = await run(solve, agent, shelf=Shelf({"q": [passage(1)]}), watch=lambda e: seen.append(e.kind))
    assert agent.max_running == 2
    assert [e.kind for e in trajectory.events] == ["model", "model", "search"]
    assert [c.text for c in trajectory.model_calls] == ["S", "F"]
    assert seen == ["search", "model", "model"]
    assert trajectory.searches[0].passages == (passage(1),)


async def test_engine_errors_fail_the_trajectory_and_keep_its_past() -> None:
    async def solve(tools: Tools) -> Answer:
        dialogue = tools.dialogue("one")
        tools.note("one", "beginning")
        await tools.ask(dialogue, "a")
        return Answer(await tools.ask(dialogue, "b"))

    trajectory = await run(solve, engine(["x", EngineError("the server is gone")]))
    assert (trajectory.status, trajectory.error, trajectory.answer) == ("failed", "the server is gone", "")
    assert [e.kind for e in trajectory.events] == ["note", "model"]


async def test_a_request_that_runs_out_of_time_fails_the_trajectory(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = engine([say(name="Velm", large=True)])
    whole = agent.generate

    async def late(*given: Any) -> Completion:
        return replace(await whole(*given), finish_reason="timeout")

    monkeypatch.setattr(agent, "generate", late)
    trajectory = await run(ask_city, agent)
    assert trajectory.status == "failed" and "time" in trajectory.error


async def test_interrupts_pass_through() -> None:
    def stop(*_: Any) -> str:
        raise KeyboardInterrupt

    async def interrupted() -> None:
        await run(ask_city, engine(stop))

    with pytest.raises(KeyboardInterrupt):
        await interrupted()


async def test_examples_of_the_config_stand_for_the_systems_own_and_are_never_trained_on() -> None:
    async def solve(tools: Tools) -> Answer:
        own = (("Which is old?", "Rome"),)
        for role in ("one", "two"):
            await tools.ask(tools.dialogue(role, "Name a city.", own), "Which?")
        return Answer("")

    agent = engine(["Oslo", "Lima"])
    role = RoleConfig(examples=(("Which is cold?", "Nuuk"), ("Which is warm?", "Suva")))
    played = await run(solve, agent, SystemConfig(roles={"one": role}))
    said = [[message["content"] for message in call.messages] for call in agent.calls]
    assert said == [
        ["Name a city.", "Which is cold?", "Nuuk", "Which is warm?", "Suva", "Which?"],
        ["Name a city.", "Which is old?", "Rome", "Which?"],
    ]
    for conversation, reply in zip(played.conversations, ("Oslo", "Lima"), strict=True):
        learnt = [conversation.ids[s.start : s.end] for s in conversation.spans if s.sampled]
        assert [agent.format.decode(ids[:-1]) for ids in learnt] == [reply]


async def test_what_runs_beside_a_branch_that_failed_goes_no_further() -> None:
    async def talk(tools: Tools, role: str) -> None:
        dialogue = tools.dialogue(role)
        for turn in range(5):
            await tools.ask(dialogue, f"{role} {turn}")

    async def solve(tools: Tools) -> Answer:
        await asyncio.gather(talk(tools, "one"), talk(tools, "two"))
        return Answer("")

    def reply(prompt: str, *_: Any) -> str:
        if "two 1" in prompt:
            raise EngineError("the server is gone")
        return "x"

    agent = ScriptedEngine(engine([]).format, reply, delay=0.005)
    played = await run(solve, agent)
    assert played.status == "failed"
    await asyncio.sleep(0.05)
    assert len(agent.calls) <= 5, "two turns of each, and at most one that was on its way"
