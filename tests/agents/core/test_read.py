"""Free text in a form: read by the system's own reader, counted where it is out of form, never trained on then."""

from ratchet.agents.core.output import Malformed
from ratchet.agents.core.tools import Answer, Tools
from ratchet.core.config import RoleConfig, SystemConfig
from ratchet.core.records import Trajectory
from tests.helpers.playing import engine, run


def yes_or_no(text: str) -> bool:
    if text not in ("yes", "no"):
        raise Malformed("Say yes or no.")
    return text == "yes"


async def ask_whether(tools: Tools) -> Answer:
    dialogue = tools.dialogue("one")
    return Answer(str(await tools.read(dialogue, "Is it?", yes_or_no)))


async def guess_whether(tools: Tools) -> Answer:
    def read(text: str) -> bool:
        try:
            return yes_or_no(text)
        except Malformed as error:
            raise Malformed(str(error), "y" in text) from error

    return Answer(str(await tools.read(tools.dialogue("one"), "Is it?", read)))


def states(trajectory: Trajectory) -> list[tuple[str, int]]:
    return [(call.parse, call.attempt) for call in trajectory.model_calls]


def trained(trajectory: Trajectory) -> list[bool]:
    return [span.parsed for conversation in trajectory.conversations for span in conversation.spans if span.sampled]


async def test_text_in_a_form_is_what_its_reader_makes_of_it() -> None:
    agent = engine(["no"])
    trajectory = await run(ask_whether, agent)
    assert (trajectory.answer, trajectory.status) == ("False", "finished")
    assert states(trajectory) == [("ok", 0)] and trained(trajectory) == [True]
    assert agent.calls[0].params.schema is None


async def test_text_out_of_its_form_is_malformed_and_the_methods_own_rule_decides() -> None:
    trajectory = await run(guess_whether, engine(["yes!"]))
    assert (trajectory.answer, trajectory.status) == ("True", "finished")
    assert states(trajectory) == [("malformed", 0)] and trained(trajectory) == [False]
    assert trajectory.model_calls[0].error == "Say yes or no."
    ruled_by_nothing = await run(ask_whether, engine(["yes!"]))
    assert (ruled_by_nothing.status, ruled_by_nothing.error) == ("unparsed", "one: Say yes or no.")


async def test_text_out_of_its_form_is_asked_for_again_before_the_rule_decides() -> None:
    config = SystemConfig(malformed="reask", reasks=1)
    agent = engine(["perhaps", "no"])
    trajectory = await run(guess_whether, agent, config)
    assert trajectory.answer == "False" and states(trajectory) == [("malformed", 0), ("ok", 1)]
    assert "Say yes or no." in agent.calls[1].messages[-1]["content"] and trained(trajectory) == [False, True]
    stubborn = await run(guess_whether, engine(["perhaps", "yes!", "no"]), config)
    assert stubborn.answer == "True" and states(stubborn) == [("malformed", 0), ("malformed", 1)]


async def test_text_that_is_cut_off_is_malformed_and_read_where_it_can_be() -> None:
    agent = engine(["no and why"])
    config = SystemConfig(roles={"one": RoleConfig(max_tokens=len(agent.format.encode("no")))})
    trajectory = await run(ask_whether, agent, config)
    assert trajectory.model_calls[0].text == "no" and trajectory.answer == "False"
    assert states(trajectory) == [("malformed", 0)] and trained(trajectory) == [False]


async def test_text_that_fills_the_context_is_not_asked_for_again() -> None:
    agent = engine(lambda *_: "y" * 400, max_context=100)
    trajectory = await run(guess_whether, agent, SystemConfig(malformed="reask", reasks=3))
    assert (trajectory.answer, trajectory.status, len(agent.calls)) == ("True", "finished", 1)
