"""AwE: seven calls and three searches, who sees what in the debate, the ablations, and checked citations."""

from collections.abc import Sequence
from typing import Any

import pytest

from ratchet.agents.awe import ADVOCATE, JUDGE, NO_ARGUMENT, check_citations, has_quote, split_claims
from ratchet.agents.core.prompts import ALONE, MARK
from ratchet.core.records import Trajectory
from ratchet.inference.scripted import ScriptedEngine
from tests.helpers.playing import QUESTION, Shelf, engine, passage, play
from tests.helpers.snapshots import check_snapshot

KNOW = f"Answer the question from what you know. {ALONE}"
READ = f"Answer the question with the help of the documents. {ALONE}"

Q = QUESTION.text
FIRST = [passage(1, "Bo Lind drew maps."), passage(2, "Velm has a harbour."), passage(3), passage(4)]
KNOWN = [passage(5, "In 1204 Ada Torrin built the harbour.", "Velm"), passage(2, "Velm has a harbour."), passage(6)]
SECOND = [passage(2, "Velm has a harbour."), passage(7, "Bo Lind built a bridge."), passage(8)]
SHELF = {Q: FIRST, f"{Q} Ada?": KNOWN, f"{Q} Bo?": SECOND}
READINGS = {"1204": "Ada Torrin", "drew maps": "Bo?", "bridge": "Bo Lind", "": "None"}
"""What a reader says who finds this in its documents."""
AWE = {"name": "awe"}


def scripted(
    verdict: str = "Ada Torrin", known: str = ">>> She built it. <<<", retrieved: str = ">>> He was there. <<<"
) -> ScriptedEngine:
    """`known`, `retrieved`: what the two advocates say."""

    def reply(_prompt: str, _params: Any, messages: Sequence[Any]) -> str:
        system, user = messages[0]["content"], messages[-1]["content"]
        if system == KNOW:
            return "Ada?"
        if system == READ:
            return next(said for fact, said in READINGS.items() if fact in user)
        if system in ADVOCATE.values():
            return known if user.startswith("Answer: Ada Torrin") else retrieved
        assert system == JUDGE
        return verdict

    return engine(reply)


def told_the_judge(agent: ScriptedEngine) -> str:
    [told] = [str(c.messages[-1]["content"]) for c in agent.calls if c.messages[0]["content"] == JUDGE]
    return told


def in_order(agent: ScriptedEngine, trajectory: Trajectory) -> ScriptedEngine:
    """Its calls in the order of their dialogues: which path is ahead is a matter of chance."""
    ids = [conversation.ids for conversation in trajectory.conversations]
    agent.calls.sort(key=lambda call: [begun[: len(call.prompt)] == call.prompt for begun in ids], reverse=True)
    return agent


def parses(trajectory: Trajectory) -> dict[str, str]:
    return {call.role: call.parse for call in trajectory.model_calls}


async def test_each_path_has_its_queries_and_the_debate_its_answer() -> None:
    agent, shelf = scripted(), Shelf(SHELF)
    trajectory = await play(AWE, agent, shelf)
    assert (trajectory.answer, trajectory.status) == ("Ada Torrin", "finished")
    assert trajectory.candidates == {"knowledge_first": "Ada Torrin", "retrieval_first": "Bo Lind"}
    assert sorted(shelf.asked) == sorted((query, 3, 0) for query in SHELF)
    assert [call.role for call in trajectory.model_calls if call.parse == "ok"] == (
        ["knowledge_advocate", "retrieval_advocate", "judge"]
    )
    check_snapshot("awe", in_order(agent, trajectory))


@pytest.mark.parametrize(
    ("verdict", "bridge", "order"),
    [
        ("Ada Torrin", SECOND, ["c5", "c2", "c6", "c7", "c8"]),
        ("bo lind ", SECOND, ["c2", "c7", "c8", "c5", "c6"]),
        ("Someone else", SECOND, ["c5", "c2", "c6", "c7", "c8"]),
        # both paths agree
        ("Ada Torrin", [passage(9, "In 1204 she came."), *SECOND], ["c5", "c2", "c6", "c9", "c7"]),
    ],
)
async def test_the_evidence_of_the_answer_comes_first_and_no_document_twice(
    verdict: str, bridge: list[Any], order: list[str]
) -> None:
    trajectory = await play(AWE, scripted(verdict), Shelf({**SHELF, f"{Q} Bo?": bridge}))
    assert trajectory.answer == verdict.strip()
    assert [p.id for p in trajectory.passages] == order


async def test_the_retrieval_path_alone_is_iter_retgen_of_two_rounds() -> None:
    drafts = [f"Bo Lind drew maps,\nso he built it. {MARK} Bo Lind", f"No. {MARK} Ada Torrin"]
    played = {}
    ways: dict[str, dict[str, Any]] = {"awe": {"paths": "retrieval"}, "iter_retgen": {"rounds": 2}}
    for name, settings in ways.items():
        agent, shelf = engine(list(drafts)), Shelf({})
        config = {"name": name, "settings": {**settings, "answer_form": "marked"}}
        trajectory = await play(config, agent, shelf)
        played[name] = (shelf.asked, [call.messages for call in agent.calls], trajectory.answer)
    assert played["awe"] == played["iter_retgen"] and played["awe"][2] == "Ada Torrin"
    assert played["awe"][0][1][0] == f"{Q} {drafts[0]}"


async def test_the_knowledge_path_asks_with_what_the_model_said() -> None:
    said, shelf = f"She drew it. {MARK} Ada Torrin", Shelf({})
    settings = {"paths": "knowledge", "answer_form": "marked"}
    trajectory = await play({"name": "awe", "settings": settings}, engine([said, said]), shelf)
    assert shelf.asked == [(f"{Q} {said}", 3, 0)] and trajectory.answer == "Ada Torrin"


@pytest.mark.parametrize(
    ("paths", "answer", "queries", "calls", "documents"),
    [
        ("knowledge", "Ada Torrin", [f"{Q} Ada?"], ["knowledge", "knowledge_reader"], ["c5", "c2", "c6"]),
        ("retrieval", "Bo Lind", [Q, f"{Q} Bo?"], ["retrieval_drafter", "retrieval_reader"], ["c2", "c7", "c8"]),
    ],
)
async def test_one_path_alone_has_no_debate(
    paths: str, answer: str, queries: list[str], calls: list[str], documents: list[str]
) -> None:
    shelf = Shelf(SHELF)
    trajectory = await play({**AWE, "settings": {"paths": paths}}, scripted(), shelf)
    assert (trajectory.answer, trajectory.status, trajectory.candidates) == (answer, "finished", {})
    assert [query for query, _, _ in shelf.asked] == queries
    assert [call.role for call in trajectory.model_calls] == calls
    assert [p.id for p in trajectory.passages] == documents


@pytest.mark.parametrize(
    ("said", "argument", "parse"),
    [
        ("Well: >>> One.\nTwo. <<< There.", "One.\nTwo.", "ok"),
        ("She built it.", "She built it.", "malformed"),
        (">>> She built it.", "She built it.", "malformed"),
        ("She built it. <<<", "She built it.", "malformed"),
        (">>><<<", "", "malformed"),
    ],
)
async def test_an_argument_stands_between_its_marks_else_it_is_malformed_and_the_whole_text(
    said: str, argument: str, parse: str
) -> None:
    agent = scripted(known=said)
    trajectory = await play(AWE, agent, Shelf(SHELF))
    assert f"Argument-1: {' '.join(argument.split())}\nAnswer-2:" in told_the_judge(agent)
    assert parses(trajectory)["knowledge_advocate"] == parse and parses(trajectory)["retrieval_advocate"] == "ok"


@pytest.mark.parametrize(
    ("verdict", "answer", "parse"),
    [
        ("The answer is: Ada", "Ada", "ok"),
        ("Answer-2", "Bo Lind", "malformed"),
        ("Answer 1 is correct.", "Ada Torrin", "malformed"),
        ("Answer 1 is wrong: it was Cy.", "Answer 1 is wrong: it was Cy.", "malformed"),
        ("answer-2: Bo", "Bo", "malformed"),
        ("Answer-1:", "Ada Torrin", "malformed"),
        ("Answer 12", "Answer 12", "ok"),
        ("", "", "malformed"),
    ],
)
async def test_the_verdict_is_an_answer_and_not_its_label(verdict: str, answer: str, parse: str) -> None:
    trajectory = await play(AWE, scripted(verdict), Shelf(SHELF))
    status = "finished" if answer else "unparsed"
    assert (trajectory.answer, trajectory.status, parses(trajectory)["judge"]) == (answer, status, parse)


# Checked citations


async def test_the_judge_sees_valid_claims_with_their_quotes_and_the_rest_is_a_note() -> None:
    agent = scripted(
        known='>>> A builder is named [1: "Ada Torrin  Built the harbour."]. Tall [1: "Ada was tall"]. Yes. <<<',
        retrieved='>>> He did it [1: "Ada Torrin built the harbour"]. <<<',
    )
    trajectory = await play({**AWE, "settings": {"citations": "checked"}}, agent, Shelf(SHELF))
    assert told_the_judge(agent) == (
        f"Question: {Q}\nAnswer-1: Ada Torrin\n"
        'Argument-1: A builder is named. [1: "Ada Torrin Built the harbour."]\n'
        f"Answer-2: Bo Lind\nArgument-2: {NO_ARGUMENT}"
    )
    notes = {event.role: event.text for event in trajectory.events if event.kind == "note"}
    assert notes["knowledge_advocate"] == ('2 of 3 claims have no valid quote:\n- Tall. [1: "Ada was tall"]\n- Yes.')
    assert notes["retrieval_advocate"].startswith("1 of 1 claims")  # the other path's document is not its own
    check_snapshot("awe_checked", in_order(agent, trajectory))


@pytest.mark.parametrize(
    ("argument", "claims"),
    [
        ('One. [1: "a b"] Two. [2: "c d"]', ['One. [1: "a b"]', 'Two. [2: "c d"]']),
        ('One [1: "A. B! C?"] and [2: “d\n e”] on. Two', ['One and on. [1: "A. B! C?"] [2: "d e"]', "Two"]),
        ('Dr. J. Torrin built it! [ 1 : "a "b" c" ]', ['Dr. J. Torrin built it! [1: "a "b" c"]']),
        ('北京[1: "首都 a"]。猫！[2: "c。d"]狗', ['北京。 [1: "首都 a"]', '猫！ [2: "c。d"]', "狗"]),
        ('[1: "a b"]', []),
        ("It cost 3.5 marks (p. 4) [1: a b].", ["It cost 3.5 marks (p. 4) [1: a b]."]),
        ('One\0 [x: "a b"] 0', ['One [x: "a b"] 0']),
    ],
)
def test_claims_are_sentences_with_the_citations_at_their_end(argument: str, claims: list[str]) -> None:
    assert [str(claim) for claim in split_claims(argument)] == claims


@pytest.mark.parametrize(
    ("number", "quote", "found"),
    [
        (1, "In 1204\n ADA", True),
        (1, "Velm: In 1204", True),
        (1, "harbour", False),
        (1, "", False),
        (1, "Torrin made", False),
        (2, "Ada Torrin built", False),
        (0, "fact 6", False),
        (4, "Velm has", False),
        (3, "北京大学", True),
        (3, "京", False),
        (3, "Velm's har\u00adbour 1204-10", True),
    ],
)
def test_a_quote_is_two_words_or_more_of_the_document_that_is_cited(number: int, quote: str, found: bool) -> None:
    other = passage(6, "他住在北京大学。Velm\u2019s harbour 1204\u201310")
    assert has_quote(number, quote, [*KNOWN[:2], other]) is found


def test_one_valid_citation_is_enough_and_only_valid_ones_are_shown() -> None:
    valid, dropped = check_citations('She built it [3: "no such words"] [1: "Ada Torrin"].', KNOWN)
    assert [str(claim) for claim in valid] == ['She built it. [1: "Ada Torrin"]'] and not dropped
