"""The answer behind a thought, and the markers that a sentence merely mentions."""

import pytest

from ratchet.inference.thoughts import without_thoughts

HARMONY = "<|channel|>analysis<|message|>Bo? {}<|end|><|start|>assistant<|channel|>final"


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Ada", "Ada"),
        ("  Ada\n", "  Ada\n"),
        ("<think>Bo</think>Ada", "Ada"),
        ("Bo? The answer is: Bo\n</think>\n\nAda", "Ada"),  # the template has opened the thought
        ("Bo</think>Ada", "Ada"),
        ("<think></think>\n\nAda", "Ada"),
        ("<think>Bo</think>Cy<think>Di</think>Ada", "Ada"),
        ('<think>He said "Bo"</think>"Ada"', '"Ada"'),
        ("<thinking>Bo</thinking>Ada", "Ada"),
        ("<reasoning>Bo</reasoning>Ada", "Ada"),
        ('<think>Bo</think>{"a": "\x04</think>"}', '{"a": "\x04</think>"}'),
        ("<thought>Bo</thought>Ada", "Ada"),
        ("<seed:think>Bo</seed:think>Ada", "Ada"),
        ("[THINK]Bo[/THINK]Ada", "Ada"),
        ("<think>... Bo?</think>, Ada", ", Ada"),
        ("\n</think>: Ada", ": Ada"),
        ("<|START_THINKING|>Bo<|END_THINKING|>Ada", "Ada"),
        ("<|begin_of_thought|>Bo<|end_of_thought|>Ada", "Ada"),
        ("◁think▷Bo◁/think▷Ada", "Ada"),
        ("<|channel>thought\nBo\n<channel|>Ada", "Ada"),
        (" to=self<|message|>Bo<|eom|><|start|>assistant to=user<|message|>Ada", "Ada"),
        (f"{HARMONY}<|message|>Ada", "Ada"),
        (f"{HARMONY} <|constrain|>json<|message|>Ada", "Ada"),
        # Opened and never closed: there is no answer.
        ("<think>Bo", ""),
        ("<think>Bo</think>Cy\n<think>Di", ""),
        ('{"score": 1}<think>no, {"score": 2}', ""),
        ("<|channel|>analysis<|message|>Bo", ""),
        ("Bo</think>", ""),
        # What an answer says about markers is the answer.
        ("The tag is `</think>`.", "The tag is `</think>`."),
        ("It ends with </think>.", "It ends with </think>."),
        ("The <think> tag opens a thought", "The <think> tag opens a thought"),
        ('{"answer": "close it with </think> then"}', '{"answer": "close it with </think> then"}'),
        ('<think>Bo</think>{"answer": "with </think> then"}', '{"answer": "with </think> then"}'),
        ("<think>not `</think>` yet</think>Ada", "Ada"),
    ],
)
def test_what_follows_the_last_thought_is_the_answer(text: str, answer: str) -> None:
    assert without_thoughts(text) == answer == without_thoughts(answer)
