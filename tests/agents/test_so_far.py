"""An answer in hand when a later action is malformed, or has no room: it is the result, and the status says why."""

import asyncio
from typing import Any

import pytest

from ratchet.agents.core.prompts import MARK
from ratchet.core.config import SelectConfig
from ratchet.core.records import Trajectory
from ratchet.inference.completion import Completion
from ratchet.inference.engine import EngineError
from ratchet.inference.scripted import Replies, ScriptedEngine
from ratchet.rewards.selection import select
from ratchet.sampling.store import Trajectories
from tests.helpers.any_system import task_of
from tests.helpers.debating import NO, YES, Debate
from tests.helpers.playing import CLAIM, QUESTION, Shelf, act, engine, passage, play, query, review, say
from tests.helpers.reward_cases import rule_score
from tests.helpers.tiny import tiny_format

ADA, QUAY = passage(1, "Ada Torrin built the harbour."), passage(2, "The quay is of stone.")
BOTH = (ADA, QUAY)
SEARCHED = [act("searcher"), query("harbour"), review({1: True}, end=True)]
ANSWERED = [*SEARCHED, act("answerer"), say(response="Ada")]
BRIEF_ANSWERED = [
    *[say(agent="searcher"), say(search_query="harbour"), say(relevance=[False, True], end_search=True)],
    *[say(agent="answerer"), say(answer="Ada")],
]
BAD = '{"response": '
VERDICT, OTHER = f"Ada built it.\n{YES}", f"She did not.\n{NO}"
ADA_SAYS, BO_SAYS = f"One. {MARK} Ada", f"Two. {MARK} Bo"
OPEN = "NO PREFERENCE"
NO_QUERIES: dict[str, Any] = {"query_rounds": 0}
ONE_ROUND: dict[str, Any] = {"rounds": 1}


class Library(Shelf):
    """Has the same two passages for every query."""

    def search(self, query: str, k: int, offset: int = 0) -> list[Any]:
        return [ADA, QUAY][offset : offset + k]


class Filling(ScriptedEngine):
    """An engine whose context is full after so many calls."""

    def __init__(self, replies: Replies, calls: int) -> None:
        self.left = calls
        super().__init__(tiny_format(), replies)

    async def generate(self, *given: Any) -> Completion:
        said = await super().generate(*given)
        self.left -= 1
        if not self.left:
            self.max_context = 0
        return said


async def mrag(*replies: Any, **settings: Any) -> Trajectory:
    return await play({"name": "mrag", "settings": settings}, engine(list(replies)), Library({}))


@pytest.mark.slow
@pytest.mark.parametrize("style", ["paper", "brief"])
@pytest.mark.parametrize("later", ["coordinator", "reviser", "validator"])
async def test_mrag_keeps_its_response_when_a_later_action_is_malformed(style: str, later: str) -> None:
    paper = style == "paper"
    named = [] if later == "coordinator" else [act(later) if paper else say(agent=later)]
    before = ANSWERED if paper else BRIEF_ANSWERED
    trajectory = await mrag(*before, *named, BAD, style=style, explanations=paper)
    assert (trajectory.status, trajectory.answer, trajectory.passages) == ("unparsed", "Ada", (ADA,))
    assert trajectory.error.startswith(f"{later}: ")


@pytest.mark.parametrize(
    ("replies", "answer"),
    [
        (SEARCHED, ""),
        ([act("searcher"), query("harbour"), review({1: True}, end=False)], ""),
        ([*ANSWERED, act("reviser"), say(response="Ada Torrin")], "Ada Torrin"),
    ],
)
async def test_mrag_keeps_the_documents_that_it_found_and_the_last_response(replies: list[str], answer: str) -> None:
    trajectory = await mrag(*replies, BAD)
    assert (trajectory.status, trajectory.answer, trajectory.passages) == ("unparsed", answer, (ADA,))


LOW = {f"{agent} {n}": 0 for agent in ("rag", "search") for n in (1, 2, 3)}
"""Scores below every threshold: the agents go on although they give the same label."""


async def test_tool_mad_keeps_the_label_that_both_agents_give_when_the_judge_has_no_room() -> None:
    debate = Debate({"rag": [NO, YES], "search": [YES]}, LOW)
    debate.engine = Filling(debate.reply, 2 * 14)
    trajectory = await debate.play(rounds=2)
    assert (trajectory.status, trajectory.answer) == ("out_of_budget", YES)
    assert trajectory.error.startswith("judge: ") and trajectory.explanation.startswith("Reasons of rag 2.")
    assert trajectory.candidates == {"rag": YES, "search": YES} and len(trajectory.turns) == 4
    assert {p.id[:-2] for p in trajectory.passages} == {"rag 2", "search 2"}


async def test_tool_mad_keeps_the_label_that_both_agents_give_when_the_judge_names_none() -> None:
    trajectory = await Debate({"rag": [YES], "search": [YES]}, LOW, ruling="Hard to say.").play(rounds=1)
    assert (trajectory.status, trajectory.answer) == ("unparsed", YES)
    assert trajectory.error.startswith("judge: ") and trajectory.stopped == "judge after round 1"
    assert trajectory.explanation == "Reasons of rag 1.\n\nReasons of search 1.", "the reasons for this very label"


async def test_tool_mad_has_no_answer_in_hand_where_its_agents_differ() -> None:
    debate = Debate({"rag": [YES], "search": [NO]})
    debate.engine = Filling(debate.reply, 14)
    trajectory = await debate.play(rounds=1)
    assert (trajectory.status, trajectory.answer, trajectory.explanation) == ("out_of_budget", "", "")
    assert trajectory.candidates == {"rag": YES, "search": NO} and len(trajectory.passages) == 6


@pytest.mark.parametrize(
    ("name", "settings", "replies", "answer", "passages", "turns"),
    [
        ("mrag", {}, ANSWERED, "Ada", (ADA,), 0),
        ("iter_retgen", {}, [f"{MARK} Ada"], "Ada", BOTH, 0),
        ("sure", {}, ["(a) Ada (b) Bo"], "Ada", BOTH, 0),
        ("sure", {}, ["(a) Ada (b) Bo", "one", "two"], "Ada", BOTH, 0),
        ("ircot", {}, ["So the answer is: Ada."], "Ada", BOTH, 0),
        ("flare", {}, ["Ada built it. She", "So the answer is: Ada. She was"], "Ada", BOTH, 0),
        ("mad", {}, [BO_SAYS, ADA_SAYS, ADA_SAYS], "Ada", (), 0),
        ("mad_drag", {}, [ADA_SAYS, ADA_SAYS], "Ada", (), 0),
        ("mad_drag", {}, [ADA_SAYS, BO_SAYS], "", (), 0),
        ("drag", NO_QUERIES, [ADA_SAYS, ADA_SAYS], "Ada", BOTH, 0),
        ("drag", {**NO_QUERIES, "answer_rounds": 1}, [ADA_SAYS, BO_SAYS], "", BOTH, 0),
        ("awe", {}, ["Ada"] * 4, "Ada", BOTH, 0),
        ("awe", {}, ["Ada", "Bo", "Cy", "Di", ">>> so <<<", ">>> so <<<"], "", BOTH, 0),
        ("awe", {"paths": "knowledge"}, [f"{MARK} Ada"], "Ada", (), 0),
        ("awe", {"paths": "retrieval"}, ["Ada"], "Ada", BOTH, 0),
        ("mad_liang", {}, [VERDICT, VERDICT], YES, (), 2),
        ("mad_liang", {}, [VERDICT, OTHER], "", (), 2),
        ("mad_liang", {}, [VERDICT, VERDICT, OPEN, OTHER], YES, (), 3),
        ("mad_liang", ONE_ROUND, [VERDICT, VERDICT, OPEN, "both"], YES, (), 3),
        ("madke", {}, ["[1]", "[2]", VERDICT, VERDICT], YES, BOTH, 2),
        ("madke", {}, ["[1]", "[2]", VERDICT, VERDICT, "Yes"], YES, BOTH, 3),
        ("madke", {}, ["[1]", "[2]", VERDICT, OTHER, "No"], "", BOTH, 3),
        ("react", {}, ["Thought: x\nAction: search[harbour]"], "", BOTH, 1),
        ("fire", {}, [say(reasoning="x", search_query="harbour")], "", BOTH, 1),
    ],
)
async def test_an_answer_in_hand_is_kept_when_a_context_is_full(
    name: str, settings: dict[str, Any], replies: list[str], answer: str, passages: tuple[Any, ...], turns: int
) -> None:
    """Debates without a judge's word keep what all sides say; loops keep what they read."""
    agent = Filling(replies, len(replies))
    trajectory = await play({"name": name, "settings": settings}, agent, Library({}), question=task_of(name))
    assert trajectory.status == "out_of_budget" and "context" in trajectory.error
    assert (trajectory.answer.strip(), len(trajectory.turns)) == (answer, turns)
    assert [p.document_id for p in trajectory.passages] == [p.document_id for p in passages]
    assert bool(trajectory.explanation) == (answer == YES)
    if name in ("mad", "mad_drag", "mad_liang", "madke") or (name == "awe" and not settings):
        assert len(trajectory.candidates) >= 2, "also where they differ"


async def test_what_mermaid_read_is_kept_though_it_came_to_no_verdict() -> None:
    call = say(thought="x", action="search", arguments={"query": "harbour"})
    config = {"name": "mermaid", "settings": {"decomposer": False, "memory": "off"}}
    mermaid = await play(config, engine([call, BAD]), Library({}), question=CLAIM)
    assert (mermaid.status, mermaid.answer, mermaid.passages) == ("unparsed", "", BOTH)
    assert [turn.said for turn in mermaid.turns] == ["x"]


async def test_claims_that_were_checked_are_kept_where_the_outcome_has_no_label() -> None:
    two = CLAIM.model_copy(update={"labels": tuple(label for label in CLAIM.labels if label.stance != "unknown")})
    agent = engine([say(queries=["a", "b"]), "no verdict"])
    trajectory = await play({"name": "factool", "settings": {"extract": False}}, agent, Library({}), question=two)
    assert (trajectory.status, trajectory.answer) == ("unparsed", "")
    assert trajectory.turns[0].verdict == "unverified" and trajectory.passages == BOTH


def test_an_answer_of_a_trajectory_that_did_not_finish_is_never_kept_for_training() -> None:
    trajectory = asyncio.run(mrag(*ANSWERED[:-1], say(response="Ada Torrin"), BAD))
    assert (trajectory.status, trajectory.answer) == ("unparsed", "Ada Torrin")
    scores = {(trajectory.key, "em"): rule_score("em", QUESTION, trajectory)}
    for status in (("finished",), ("finished", "out_of_budget")):
        selection = select(
            [QUESTION], Trajectories.of([trajectory]), scores, {"em": 1.0}, SelectConfig(keep_status=status)
        )
        assert selection.kept == ()


async def test_a_trajectory_that_failed_has_no_answer_since_it_is_sampled_again() -> None:
    trajectory = await mrag(*ANSWERED, EngineError("the server is gone"))
    assert (trajectory.status, trajectory.answer, trajectory.passages) == ("failed", "", ())
    assert len(trajectory.model_calls) == 5, "what was said stays in its events"
