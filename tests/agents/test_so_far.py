"""An answer in hand when a later action is malformed, or has no room: it is the result, and the status says why."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from agents.core.prompts.documents import MARK
from inference.completion import Completion, SamplingParams
from inference.engine import EngineError
from inference.scripted import Replies, ScriptedEngine
from ratchet.config import SelectConfig
from ratchet.records import Question, Trajectory
from rewards.selection import select
from tests.helpers.debating import NO, YES, Debate
from tests.helpers.playing import CLAIM, QUESTION, Shelf, act, engine, passage, play, query, review, say
from tests.helpers.reward_cases import rule_score
from tests.helpers.tiny import tiny_format

ADA, QUAY = passage(1, "Ada Torrin built the harbour."), passage(2, "The quay is of stone.")
SEARCHED = [act("searcher"), query("harbour"), review({1: True}, end=True)]
ANSWERED = [*SEARCHED, act("answerer"), say(response="Ada")]
BRIEF_SEARCHED = [
    say(agent="searcher"),
    say(search_query="harbour"),
    say(relevance=[False, True], end_search=True),
]
BRIEF_ANSWERED = [*BRIEF_SEARCHED, say(agent="answerer"), say(answer="Ada")]
BAD = '{"response": '
VERDICT, OTHER = f"Ada built it.\n{YES}", f"She did not.\n{NO}"
ADA_SAYS, BO_SAYS = f"One. {MARK} Ada", f"Two. {MARK} Bo"
OPEN = "NO PREFERENCE"
AWE_DIFFERS = ["Ada", "Bo", "Cy", "Di"]


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


async def ended(
    name: str, replies: Sequence[str], settings: dict[str, Any] | None = None, question: Question = QUESTION
) -> Trajectory:
    """The trajectory whose context is full once these replies are given."""
    agent = Filling(list(replies), len(replies))
    trajectory = await play({"name": name, "settings": settings or {}}, agent, Library({}), question=question)
    assert trajectory.status == "out_of_budget" and "context" in trajectory.error
    return trajectory


@pytest.mark.parametrize("style", ["paper", "brief"])
@pytest.mark.parametrize("later", ["coordinator", "reviser", "validator"])
async def test_mrag_keeps_its_response_when_a_later_action_is_malformed(style: str, later: str) -> None:
    paper = style == "paper"
    before = ANSWERED if paper else BRIEF_ANSWERED
    named = [] if later == "coordinator" else [act(later) if paper else say(agent=later)]
    config = {"name": "mrag", "settings": {"style": style, "explanations": paper}}
    trajectory = await play(config, engine([*before, *named, BAD]), Library({}))
    assert (trajectory.status, trajectory.answer, trajectory.passages) == ("unparsed", "Ada", (ADA,))
    assert trajectory.error.startswith(f"{later}: ")


async def test_mrag_keeps_the_documents_that_it_found_before_a_response() -> None:
    for replies in ([*SEARCHED, BAD], [act("searcher"), query("harbour"), review({1: True}, end=False), BAD]):
        trajectory = await play({"name": "mrag"}, engine(replies), Library({}))
        assert (trajectory.status, trajectory.answer, trajectory.passages) == ("unparsed", "", (ADA,))


async def test_mrag_says_whose_context_ended_it() -> None:
    full = await ended("mrag", ANSWERED)
    assert (full.answer, full.passages) == ("Ada", (ADA,)) and full.error.startswith("coordinator: ")


async def test_a_response_that_was_revised_replaces_the_first() -> None:
    replies = [*ANSWERED, act("reviser"), say(response="Ada Torrin"), BAD]
    trajectory = await play({"name": "mrag"}, engine(replies), Library({}))
    assert (trajectory.status, trajectory.answer) == ("unparsed", "Ada Torrin")


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
    assert [turn.verdict for turn in trajectory.turns] == [YES, NO]


@pytest.mark.parametrize(
    ("replies", "answer", "turns"),
    [
        ([VERDICT, VERDICT], YES, 2),
        ([VERDICT, OTHER], "", 2),
        ([VERDICT, VERDICT, OPEN, OTHER], YES, 3),
        ([VERDICT, VERDICT, OPEN, "both"], YES, 3),
    ],
)
async def test_a_debate_with_a_moderator_keeps_the_label_of_both_sides(
    replies: list[str], answer: str, turns: int
) -> None:
    rounds = 1 if replies[-1] == "both" else 3
    trajectory = await ended("mad_liang", replies, {"rounds": rounds}, CLAIM)
    assert (trajectory.answer, len(trajectory.turns)) == (answer, turns)
    assert trajectory.explanation == ("Ada built it.\n\nAda built it." if answer else "")


async def test_a_debate_keeps_the_label_of_both_sides_when_its_judge_names_none() -> None:
    agent = engine([VERDICT, VERDICT, OPEN, "both", "I cannot tell."])
    trajectory = await play({"name": "mad_liang", "settings": {"rounds": 1}}, agent, question=CLAIM)
    assert (trajectory.status, trajectory.answer, trajectory.turns[-1].speaker) == ("unparsed", YES, "judge")


@pytest.mark.parametrize(
    ("replies", "answer", "turns"),
    [
        (["[1]", "[2]", VERDICT, VERDICT], YES, 2),
        (["[1]", "[2]", VERDICT, VERDICT, "Yes"], YES, 3),
        (["[1]", "[2]", VERDICT, OTHER, "No"], "", 3),
    ],
)
async def test_a_debate_over_evidence_keeps_the_label_of_all_debaters(
    replies: list[str], answer: str, turns: int
) -> None:
    trajectory = await ended("madke", replies, {}, CLAIM)
    assert (trajectory.answer, trajectory.passages, len(trajectory.turns)) == (answer, (ADA, QUAY), turns)
    assert set(trajectory.candidates) == {"Agent 1", "Agent 2"}


@pytest.mark.parametrize(
    ("name", "settings", "replies", "answer", "passages"),
    [
        ("iter_retgen", {}, [f"{MARK} Ada"], "Ada", (ADA, QUAY)),
        ("sure", {}, ["(a) Ada (b) Bo"], "Ada", (ADA, QUAY)),
        ("sure", {}, ["(a) Ada (b) Bo", "one", "two"], "Ada", (ADA, QUAY)),
        ("ircot", {}, ["So the answer is: Ada."], "Ada", (ADA, QUAY)),
        ("flare", {}, ["Ada built it. She", "So the answer is: Ada. She was"], "Ada", (ADA, QUAY)),
        ("mad", {}, [BO_SAYS, ADA_SAYS, ADA_SAYS], "Ada", ()),
        ("mad_drag", {}, [ADA_SAYS, ADA_SAYS], "Ada", ()),
        ("mad_drag", {}, [ADA_SAYS, BO_SAYS], "", ()),
        ("drag", {"query_rounds": 0}, [ADA_SAYS, ADA_SAYS], "Ada", (ADA, QUAY)),
        ("drag", {"query_rounds": 0, "answer_rounds": 1}, [ADA_SAYS, BO_SAYS], "", (ADA, QUAY)),
        ("awe", {}, ["Ada"] * 4, "Ada", (ADA, QUAY)),
        ("awe", {}, [*AWE_DIFFERS, ">>> so <<<", ">>> so <<<"], "", (ADA, QUAY)),
        ("awe", {"paths": "knowledge"}, [f"{MARK} Ada"], "Ada", ()),
        ("awe", {"paths": "retrieval"}, ["Ada"], "Ada", (ADA, QUAY)),
    ],
)
async def test_an_answer_in_hand_is_kept_when_a_context_is_full(
    name: str, settings: dict[str, Any], replies: list[str], answer: str, passages: tuple[Any, ...]
) -> None:
    trajectory = await ended(name, replies, settings)
    assert (trajectory.answer.strip(), trajectory.passages) == (answer, passages)


async def test_candidates_are_kept_where_they_differ() -> None:
    awe = await ended("awe", AWE_DIFFERS)
    assert len(set(awe.candidates.values())) == 2 and not awe.answer
    assert (await ended("mad_drag", [ADA_SAYS, BO_SAYS])).candidates == {"Agent 1": "Ada", "Agent 2": "Bo"}


async def test_what_a_loop_read_is_kept_though_it_came_to_no_verdict() -> None:
    react = await ended("react", ["Thought: x\nAction: search[harbour]"], {}, CLAIM)
    assert (react.answer, react.passages, len(react.turns)) == ("", (ADA, QUAY), 1)
    fire = await ended("fire", [say(reasoning="x", search_query="harbour")], {}, CLAIM)
    assert (fire.answer, [p.id for p in fire.passages], len(fire.turns)) == ("", [ADA.id, QUAY.id], 1)
    call = say(thought="x", action="search", arguments={"query": "harbour"})
    config = {"name": "mermaid", "settings": {"decomposer": False, "memory": "off"}}
    mermaid = await play(config, engine([call, BAD]), Library({}), question=CLAIM)
    assert (mermaid.status, mermaid.answer, mermaid.passages) == ("unparsed", "", (ADA, QUAY))
    assert [turn.said for turn in mermaid.turns] == ["x"]


async def test_claims_that_were_checked_are_kept_where_the_outcome_has_no_label() -> None:
    two = CLAIM.model_copy(update={"labels": tuple(label for label in CLAIM.labels if label.stance != "unknown")})
    replies = [say(queries=["a", "b"]), "no verdict"]
    trajectory = await play(
        {"name": "factool", "settings": {"extract": False}}, engine(replies), Library({}), question=two
    )
    assert (trajectory.status, trajectory.answer) == ("unparsed", "")
    assert trajectory.turns[0].verdict == "unverified" and trajectory.passages == (ADA, QUAY)


async def test_an_answer_of_a_trajectory_that_did_not_finish_is_never_kept_for_training() -> None:
    trajectory = await play({"name": "mrag"}, engine([*ANSWERED[:-1], say(response="Ada Torrin"), BAD]), Library({}))
    assert (trajectory.status, trajectory.answer) == ("unparsed", "Ada Torrin")
    scores = {(trajectory.key, "em"): rule_score("em", QUESTION, trajectory)}
    for status in (("finished",), ("finished", "out_of_budget")):
        selection = select([QUESTION], [trajectory], scores, {"em": 1.0}, SelectConfig(keep_status=status))
        assert selection.kept == ()


async def test_a_trajectory_that_failed_has_no_answer_since_it_is_sampled_again() -> None:
    trajectory = await play({"name": "mrag"}, engine([*ANSWERED, EngineError("the server is gone")]), Library({}))
    assert (trajectory.status, trajectory.answer, trajectory.passages) == ("failed", "", ())
    assert len(trajectory.model_calls) == 5, "what was said stays in its events"


async def test_a_moderator_whose_prompt_is_longer_than_the_context_leaves_the_agreed_label() -> None:
    """A small context, which holds both sides' three rounds and the moderator's first two."""
    long = json.dumps("word " * 50)

    def reply(_: str, __: SamplingParams, messages: Sequence[Any]) -> str:
        return OPEN if "moderate" in messages[0]["content"] else f"{long}\n{YES}"

    agent = engine(reply, max_context=1520)
    trajectory = await play({"name": "mad_liang"}, agent, question=CLAIM)
    assert (trajectory.status, trajectory.answer) == ("out_of_budget", YES)
    assert trajectory.error == "moderator: its context of 1520 tokens is full" and len(trajectory.turns) == 8
