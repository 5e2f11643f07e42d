"""The baselines where no transcript says it (transcripts/): settings of papers, readers, and odd models."""

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ratchet.agents.debates import majority_answer, nearest_query
from ratchet.agents.mad_liang import LEVELS
from ratchet.agents.react import FORM, read_action
from ratchet.core.config import ModelConfig, load_config
from ratchet.core.errors import UserError
from ratchet.core.records import Passage, Question, Trajectory
from ratchet.inference.local.engine import LocalEngine
from ratchet.inference.scripted import ScriptedEngine
from ratchet.questions.labels import choice_labels
from tests.helpers.playing import CLAIM, QUESTION, SETTING, Shelf, engine, passage, play, say

FACTS = {f"Fact {n} is so.": [passage(3 * n + i) for i in range(1, 4)] for n in range(1, 6)}
"""Three new paragraphs for every thought."""
FACTS_SAID = ["Fact 1 is so. X", *(f" Fact {n} is so. X" for n in range(2, 6)), "Ada"]


@pytest.mark.parametrize(
    ("answers", "winner"),
    [
        (["Ada", "Bo", "bo!"], "Bo"),
        (["Ada", "Bo", "Cy"], "Ada"),
        (["Cy", "Bo", "the cy", "a Bo"], "Cy"),
        (["", "  ", "Bo"], "Bo"),
        (["", ".", "."], "."),
        (["O'Malley", "Bo", "O\u2019Malley"], "O'Malley"),
    ],
)
def test_in_mad_a_tie_goes_to_the_earliest_and_silence_has_no_vote(answers: list[str], winner: str) -> None:
    assert majority_answer({str(number): answer for number, answer in enumerate(answers)}).text == winner


def test_drags_nearest_query_is_the_one_that_is_most_alike() -> None:
    assert nearest_query({"Who built it?": [], "When was it built?": []}, "when was it") == "When was it built?"


@pytest.mark.parametrize("name", ["naive_gen", "naive_rag", "iter_retgen", "awe", "ircot"])
async def test_an_answer_behind_the_words_of_drags_script_is_asked_for_and_read(name: str) -> None:
    said = "It was built long ago. The answer is: Ada Torrin"
    replies = {"awe": [said] * 4 + [">>> So it is. <<<"] * 2 + ["Ada Torrin"], "ircot": ["It is old.", said]}
    agent = engine(replies.get(name, [said] * 3))
    trajectory = await play({"name": name, "settings": {"answer_form": "marked"}}, agent)
    assert (trajectory.status, trajectory.answer) == ("finished", "Ada Torrin")
    systems = [call.messages[0]["content"] for call in agent.calls if call.messages[0]["content"].startswith("Answer")]
    readers = [text for text in systems if "step by step" not in text]
    assert readers and all('End with "The answer is:"' in text and "answer alone" not in text for text in readers)


@pytest.mark.parametrize("name", ["naive_rag", "iter_retgen", "awe", "ircot"])
async def test_the_best_document_may_stand_next_to_the_question(name: str) -> None:
    replies = {"awe": ["Ada"] * 4 + [">>> So it is. <<<"] * 2 + ["Ada"], "ircot": ["The answer is Ada.", "Ada"]}
    found, shown = [passage(1, "The best."), passage(2, "The next.")], {}
    for order in ("best_first", "best_last"):
        agent = engine(replies.get(name, ["Ada"] * 3))
        shelf = Shelf({QUESTION.text: found, f"{QUESTION.text} Ada": found})
        trajectory = await play({"name": name, "settings": {"order": order}}, agent, shelf)
        assert list(trajectory.searches[0].passages) == found, "the record has the search's own order"
        prompts = [str(call.messages[-1]["content"]) for call in agent.calls]
        shown[order] = next(text for text in prompts if "The best." in text and "Question:" in text)
    assert "The best." in shown["best_first"].split("[2]")[0] and "The best." in shown["best_last"].split("[2]")[1]


@pytest.mark.parametrize("name", ["awe", "awe_drag"])
async def test_ircots_last_call_reads_all_that_awes_settings_retrieve(name: str) -> None:
    settings = load_config(f"configs/papers/{name}.yaml").evaluation.baselines["IRCoT"].settings
    agent, world = engine(list(FACTS_SAID)), {QUESTION.text: [passage(n) for n in range(1, 4)], **FACTS}
    trajectory = await play({"name": "ircot", "settings": settings}, agent, Shelf(world))
    retrievals = 5 if settings.get("reader") == "never" else 6
    assert len(trajectory.searches) == retrievals and len(trajectory.passages) == 3 * retrievals
    assert all(p.text in str(agent.calls[-1].messages) for p in trajectory.passages)


async def test_a_letter_that_lost_some_of_its_bytes_is_no_part_of_flares_query() -> None:
    agent = engine([])
    euro = agent.format.encode("€")
    assert len(euro) == 3

    class Bytes(ScriptedEngine):
        async def generate(self, prompt: Any, params: Any, *args: Any, **kwargs: Any) -> Any:
            said = await super().generate(prompt, params, *args, **kwargs)
            if len(self.calls) > 1:
                return said
            ids = (*agent.format.encode("It cost 5 "), *euro, agent.format.end_of_turn)
            logprobs = tuple(-3.0 if i == euro[1] else 0.0 for i in ids)
            return type(said)(ids, "It cost 5 €", "stop", 1, logprobs=logprobs)

    trajectory = await play({"name": "flare"}, Bytes(agent.format, ["", "So the answer is: 5."]), Shelf({}))
    assert trajectory.searches[1].query == "It cost 5"


async def test_flares_text_holds_no_more_than_max_tokens() -> None:
    agent = engine(["abcdefghij"] * 3)
    trajectory = await play({"name": "flare", "settings": {"look_ahead": 4, "max_tokens": 10}}, agent)
    assert [(call.params.max_tokens, call.params.logprobs) for call in agent.calls] == [(n, True) for n in (4, 4, 2)]
    assert (trajectory.answer, trajectory.events[-1].kind) == ("abcdabcdab", "note")


@pytest.mark.model
def test_the_real_model_is_sure_of_one_thing_and_unsure_of_another(smollm2: Path) -> None:
    """In this process, with its own probabilities: a theta of 0 keeps every sentence, one of 1 none."""
    local = LocalEngine(ModelConfig(path=str(smollm2), max_context=1000, cache_gb=0.1))
    found = Passage(id="c1", document_id="d1", title="Harbour of Velm", text="The harbour has a mole.")

    async def one(theta: float) -> Trajectory:
        config = {"name": "flare", "settings": {"iterations": 2, "look_ahead": 8, "theta": theta}}
        return await play(config, {"agent": local}, Shelf({QUESTION.text: [found]}), replace(SETTING, adapter=None))

    async def both() -> list[Trajectory]:
        played = [await one(0.0), await one(1.0)]
        await local.close()
        return played

    easy, strict = asyncio.run(both())
    assert easy.status == strict.status == "finished"
    assert len(easy.searches) == 1 and len(easy.model_calls) <= 2
    assert len(strict.searches) == 1 + len(strict.model_calls) // 2 and len(strict.model_calls) in (2, 4)
    assert all(search.query.strip() for search in strict.searches)


async def test_the_level_of_mad_liang_says_how_much_the_sides_disagree() -> None:
    agent = engine(["Ada did it.\nSUPPORTS"] * 3)
    await play({"name": "mad_liang", "settings": {"level": 3}}, agent, question=CLAIM)
    for call in agent.calls[:2]:
        assert [rule in str(call.messages[0]["content"]) for rule in LEVELS] == [False, False, False, True]


def test_a_turn_of_blank_lines_alone_is_read_in_no_time() -> None:
    begun = time.process_time()
    for line in ("\n*", "\n", "* ", "Action:\n", "Action 1"):
        assert read_action(line * 10_000, CLAIM.labels).problem == FORM
    assert read_action("So:\n\n**search[Velm]**", CLAIM.labels).argument == "Velm"
    assert time.process_time() - begun < 30


@pytest.mark.parametrize(
    ("name", "steps", "said"),
    [
        ("fire", 1, [say(reasoning="", search_query="x"), say(reasoning="So.", final_answer="SUPPORTS")]),
        (
            "mermaid",
            2,
            [say(thought="", action="search", arguments={"query": "x"}), say(thought="", verdict="SUPPORTS")],
        ),
    ],
)
async def test_the_grammar_of_the_last_step_allows_an_answer_alone(name: str, steps: int, said: list[str]) -> None:
    agent = engine(said)
    more = {"decomposer": False} if name == "mermaid" else {}
    await play({"name": name, "settings": {"steps": steps, **more}}, agent, question=CLAIM)
    assert ["anyOf" in (call.params.schema or {}) for call in agent.calls] == [True, False]


async def test_a_task_whose_labels_are_no_truth_is_refused_by_claim_checkers() -> None:
    exam = Question(id="m1", text="Which?", labels=choice_labels({"A": "one", "B": "two"}))
    with pytest.raises(UserError, match=r"m1.*stance"):
        await play({"name": "factool"}, engine([]), question=exam)
