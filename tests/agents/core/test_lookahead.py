"""Look-ahead: an answer that goes on from call to call, token for token, of which only what was used is learnt."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from ratchet.agents.core.lookahead import Draft, first_sentence
from ratchet.agents.core.tools import Answer, Tools
from ratchet.agents.iterative_rag import sentence_tokens, stated_answer
from ratchet.core.records import Trajectory
from ratchet.inference.completion import ChatTurn, Completion
from ratchet.inference.scripted import ScriptedEngine, ScriptedReply
from ratchet.training.rows import build_rows, check_rows
from tests.helpers.playing import engine, run
from tests.helpers.tiny import tiny_format

CHAT = tiny_format()


async def chain(tools: Tools, keep: Callable[[Draft], int] = sentence_tokens, max_tokens: int = 64) -> Answer:
    """Sentence by sentence, each in another prompt, until the model ends its turn."""
    prefix: tuple[int, ...] = ()
    for number in range(5):
        draft = await tools.draft(tools.dialogue("one"), f"Prompt {number}.", prefix, max_tokens, keep)
        prefix += draft.used
        if draft.finished:
            break
    return Answer(draft.decode(prefix))


def labels(trajectory: Trajectory) -> list[str]:
    """What the rows of a trajectory teach, row by row."""
    rows, _ = build_rows(trajectory, 10_000)
    assert check_rows(rows, {"k": trajectory}) == len(rows)
    return [CHAT.decode([i for i, learnt in zip(r.ids, r.loss_mask, strict=True) if learnt]) for r in rows]


async def test_the_next_call_goes_on_from_the_very_tokens_that_were_used() -> None:
    agent = engine(["Ada built it. She was", ScriptedReply((" Sh", 1.0), ("e was b", 1.0), ("old.", 1.0))])
    trajectory = await run(chain, agent)
    assert trajectory.answer == "Ada built it. She was bold."
    first, second = agent.calls
    prefix = CHAT.encode("Ada built it.")
    assert second.prompt[-len(prefix) :] == prefix
    _, parts = CHAT.follow([ChatTurn("user", "Prompt 1.")], 0, str)
    assert second.prompt[: -len(prefix)] == tuple(i for _, ids in parts for i in ids)
    assert second.messages[-1] == {"role": "assistant", "content": "Ada built it."}
    assert first.params.seed != second.params.seed
    # not as an encoder would write the text, but as it was sampled
    call = trajectory.model_calls[1]
    sampled = (*CHAT.encode(" Sh"), *CHAT.encode("e was b"), *CHAT.encode("old."), CHAT.end_of_turn)
    assert trajectory.conversations[1].ids[call.start : call.end] == sampled != CHAT.encode(" She was bold.")


async def test_what_was_used_is_learnt_once_and_nothing_else() -> None:
    trajectory = await run(chain, engine(["Ada built it. She was", " She was bold. And", " The end."]))
    assert labels(trajectory) == ["Ada built it.", " She was bold.", " The end.<|im_end|>"]
    # the log has all of it, and so has the price
    assert [call.text for call in trajectory.model_calls] == [
        "Ada built it. She was",
        " She was bold. And",
        " The end.",
    ]
    assert [call.new_tokens for call in trajectory.model_calls] == [
        len(CHAT.encode(text)) + 1 for text in ("Ada built it. She was", " She was bold. And", " The end.")
    ]
    assert all(call.parse == "free" for call in trajectory.model_calls)


async def test_a_draft_of_which_nothing_is_used_teaches_nothing() -> None:
    async def solve(tools: Tools) -> Answer:
        draft = await tools.draft(tools.dialogue("one"), "Go on.", (), 64, lambda _: 0)
        assert (draft.used, draft.finished, draft.ended) == ((), False, True)
        return Answer(draft.text)

    trajectory = await run(solve, engine(["Ada built it."]))
    assert (trajectory.status, trajectory.answer) == ("finished", "Ada built it.")
    rows, left_out = build_rows(trajectory, 10_000)
    assert not rows
    assert left_out == ["no parsed action"]


async def test_a_sentence_that_the_limit_cut_is_used_as_it_is_and_not_closed() -> None:
    trajectory = await run(chain, engine(["a b c d e f", " g."]))
    assert trajectory.answer == "a b c d e f"
    cut = await run(lambda tools: chain(tools, max_tokens=3), engine(["xyz", "abc", "d"]))
    assert cut.answer == "xyzabcd"
    assert labels(cut) == ["xyz", "abc", "d<|im_end|>"]


@pytest.mark.parametrize("text", ["Ada built it. Then", "Die Brücke – «gut»。 東京。", "🙂🙃. 🙂 x", "a\ufffdb. c"])
def test_a_cut_falls_between_letters_and_is_the_shortest_that_says_them(text: str) -> None:
    ids = CHAT.encode(text)
    draft = Draft((*ids, CHAT.end_of_turn), text, (), True, CHAT.decode)
    for characters in range(len(text)):
        if text[characters:].strip():
            kept = draft.tokens(characters)
            assert CHAT.decode(ids[:kept]).startswith(text[:characters])
            assert characters == 0 or not CHAT.decode(ids[: kept - 1]).startswith(text[:characters])
    assert draft.tokens(len(text)) == len(ids) + 1
    assert replace(draft, text=f"{text} \n").tokens(len(text)) == len(ids) + 1, "blanks are nothing left behind"


async def test_a_full_context_ends_the_chain_as_out_of_budget() -> None:
    trajectory = await run(chain, engine(["One two three four five six seven. X"] * 5, max_context=60))
    assert trajectory.status == "out_of_budget"
    assert 0 < len(trajectory.model_calls) < 5

    class Refuses(ScriptedEngine):
        """As a server does whose window is smaller than we were told."""

        async def generate(self, prompt: Any, *args: Any, **kwargs: Any) -> Completion:
            return Completion((), "", "context", len(prompt))

    trajectory = await run(chain, Refuses(CHAT, []))
    assert (trajectory.status, len(trajectory.model_calls)) == ("out_of_budget", 1)


@pytest.mark.parametrize("given", [None, (), (0.0,)])
async def test_missing_log_probabilities_are_a_failure_and_not_certainty(given: tuple[float, ...] | None) -> None:
    class Silent(ScriptedEngine):
        async def generate(self, *args: Any, **kwargs: Any) -> Completion:
            said = await super().generate(*args, **kwargs)
            return Completion(said.ids, said.text, said.finish_reason, said.prompt_tokens, logprobs=given)

    async def solve(tools: Tools) -> Answer:
        await tools.draft(tools.dialogue("one"), "Go on.", (), 64, sentence_tokens, logprobs=True)
        return Answer("")

    trajectory = await run(solve, Silent(CHAT, ["Ada built it."]))
    assert trajectory.status == "failed" and "log-probabilities" in trajectory.error


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("", ""),
        (" \n ", " \n "),
        ("no end", "no end"),
        (" One. Two.", " One."),
        ("One! two", "One!"),
        ("Who? Ada.", "Who?"),
        ("One...", "One..."),
        ("It was dear... but good. X", "It was dear... but good."),
        ('He said "no." Then', 'He said "no."'),
        ("One\nTwo", "One\n"),
        ("Dr. A. B. Torrin built it. She", "Dr. A. B. Torrin built it."),
        ("It cost 3.5 crowns. Then", "It cost 3.5 crowns."),
        ("He (b. 1204) saw No. 5 on Jan. 3. Then", "He (b. 1204) saw No. 5 on Jan. 3."),
        ("The answer is: no. Then", "The answer is: no."),
        ("1. One. Two", "1. One."),
        ("東京。大阪。", "東京。"),
        (". . x", "."),
    ],
)
def test_the_first_sentence(text: str, first: str) -> None:
    assert text[: first_sentence(text)] == first


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Ada built it. So the answer is: Ada Torrin.", "Ada Torrin"),
        ("the ANSWER IS Ada\nAnd more", "Ada"),
        ("The answer is: one. No, the answer is: two.", "two"),
        ("the answer isn't known", None),
        ("So the answer is:", None),
        ("So the answer is: .", None),
        ("", None),
    ],
)
def test_the_stated_answer(text: str, answer: str | None) -> None:
    assert stated_answer(text) == answer
