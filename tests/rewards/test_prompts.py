"""The judge's prompts, pinned."""

from __future__ import annotations

from pathlib import Path

from ratchet.records import Passage, Question
from rewards.prompts import Claim, claims_prompt, expected_prompt, match_prompt, nuggets_prompt, support_prompt
from tests.helpers.pinned import check_pinned

QUESTION = Question(id="q", text="Where does Velm lie?", reference="Velm lies by the sea.")
CLAIMS = (Claim(id=1, aspect="Velm is a harbour.", explanation="It places it.", evidence="a harbour"),)


def test_the_judges_prompts_are_pinned() -> None:
    expected, response = "Velm lies by the sea.", "Velm is a harbour."
    passages = [Passage(id="p", document_id="d", title="Velm", text='Velm says: "the sea".')]
    prompts = [
        nuggets_prompt(QUESTION, expected),
        match_prompt(QUESTION, expected, response, {"aspect": "It lies by the sea."}),
        claims_prompt(QUESTION, response),
        support_prompt(QUESTION, passages, CLAIMS),
        expected_prompt(QUESTION, expected, CLAIMS),
    ]
    check_pinned(Path(__file__).parent / "snapshots/judge.txt", "\n\n======\n".join(prompts) + "\n")
