"""Every chat template that comes with trl: prompts are the template's own, and labels are what was sampled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.chat import Dialogue
from inference.chat_formats import chat_format
from inference.completion import Completion, SamplingParams
from inference.rendered import JOIN, THOUGHT_KEYS, RenderedFormat
from inference.rendering import render_messages
from inference.thinking import generate
from inference.thoughts import split_thought
from inference.wrappers import WrapperFormat
from tests.helpers.templates import NAMES, templated_format, templated_tokenizer

ALL = pytest.mark.parametrize("name", NAMES)
THINKING = [name for name in NAMES if name.startswith(("qwen3_5_think", "qwen3_6", "nemotron", "deepseek", "glm"))]
WORDS = st.lists(st.sampled_from(["Velm", "is", "a", "harbour", "<|im_end|>", "</think>", "?"]), min_size=1, max_size=5)
TEXTS = WORDS.map(" ".join)


def reply(chat: Any, text: str) -> Completion:
    """What a model samples that says `text` and ends its turn."""
    ids = (*chat.tokenizer.encode(text, add_special_tokens=False), chat.end_of_turn)
    return Completion(ids, text, "stop", 1)


def own_text(chat: Any, messages: list[dict[str, Any]]) -> str:
    """The template's own prompt for clean messages."""
    if isinstance(chat, RenderedFormat) and chat.folds_system and messages[0]["role"] == "system":
        first = messages[1] | {"content": messages[0]["content"] + JOIN + messages[1]["content"]}
        messages = [first, *messages[2:]]
    if isinstance(chat, RenderedFormat) and chat.lists_content:
        messages = [m | {"content": [{"type": "text", "text": m["content"]}]} for m in messages]
    return render_messages(chat.tokenizer, messages, generation=True)


@ALL
@pytest.mark.parametrize("system", [None, "Be brief."])
def test_every_prompt_is_the_templates_own(name: str, system: str | None) -> None:
    chat = templated_format(name)
    dialogue, messages = Dialogue("r", "m", chat, True, system), list[dict[str, Any]]()
    if system:
        messages.append({"role": "system", "content": system})
    for question, thought, answer in (("Where?", "far", "Oslo."), ("Who?", "long", "Ada."), ("When?", "", "Now.")):
        dialogue.user(question)
        messages.append({"role": "user", "content": question})
        expected = own_text(chat, messages)
        assert chat.decode(dialogue.ids) == expected
        assert dialogue.ids == chat.tokenizer.encode(expected, add_special_tokens=False)
        thoughts = {}
        if chat.reply_opening and thought:
            thoughts = dict.fromkeys(THOUGHT_KEYS, thought)
        said = f"{thought}\n</think>\n\n{answer}" if thoughts else answer
        dialogue.assistant(reply(chat, said), True)
        messages.append({"role": "assistant", "content": answer, **thoughts})


@ALL
@settings(max_examples=10)
@given(texts=st.lists(TEXTS, min_size=4, max_size=4))
def test_what_is_sampled_is_the_label_and_nothing_forges_a_turn(name: str, texts: list[str]) -> None:
    chat = templated_format(name)
    dialogue, said = Dialogue("r", "m", chat, True, texts[0]), list[tuple[int, ...]]()
    for text in texts[1:]:
        dialogue.user(text)
        completion = reply(chat, "far\n</think>\n\nOslo." if chat.reply_opening else "Oslo.")
        dialogue.assistant(completion, True)
        said.append(completion.ids)
    sampled = [tuple(row.ids[s.start : s.end]) for row in dialogue.rows for s in row.spans if s.sampled]
    assert sampled == said
    for row in dialogue.rows:
        for span in row.spans:
            if span.author in ("user", "system"):
                assert chat.control_ids.isdisjoint(row.ids[span.start : span.end])


@pytest.mark.parametrize("name", THINKING)
def test_a_dialogue_whose_thoughts_are_dropped_becomes_a_row_for_each_reply(name: str) -> None:
    chat = templated_format(name)
    assert isinstance(chat, RenderedFormat)
    dialogue = Dialogue("r", "m", chat, True)
    for question in ("Where?", "Who?"):
        dialogue.user(question)
        dialogue.assistant(
            reply(chat, "far\n</think>\n\nOslo." if chat.reply_opening else "<think>far</think>Oslo."), True
        )
    assert len(dialogue.rows) == 2
    first, second = (chat.decode(row.ids) for row in dialogue.rows)
    assert "far" in first and second.count("far") == 1, "the first thought is not in what the second reply was shown"
    assert [sum(span.sampled for span in row.spans) for row in dialogue.rows] == [1, 1]


def test_models_without_thoughts_keep_one_row() -> None:
    for name in ("qwen2_5", "llama3_2", "phi3", "gemma3"):
        chat = templated_format(name)
        assert isinstance(chat, WrapperFormat)


def test_thoughts_that_the_prompt_opens_are_no_answer() -> None:
    chat = templated_format("qwen3_5_think")
    assert chat.reply_opening == "<think>\n"
    dialogue = Dialogue("r", "m", chat, True)
    dialogue.user("Where?")
    dialogue.assistant(reply(chat, "Perhaps Oslo.\n</think>\n\nIt is Rome."), True)
    assert (dialogue.turns[-1].thought, dialogue.turns[-1].text) == ("Perhaps Oslo.", "It is Rome.")


class Thinker:
    """An engine that thinks until it is stopped, and then says what a schema asks for."""

    max_context, fingerprint = 1000, "thinker"

    def __init__(self, thought: str) -> None:
        self.format = templated_format("qwen3_5_think")
        self.thought, self.asked = thought, list[SamplingParams]()

    async def generate(
        self, prompt: Sequence[int], params: SamplingParams, adapter: str | None = None, messages: Any = ()
    ) -> Completion:
        self.asked.append(params)
        said = self.thought if params.schema is None else '{"a": 1}'
        ids = self.format.tokenizer.encode(said, add_special_tokens=False)
        ids = (*ids, self.format.end_of_turn) if params.schema else tuple(ids)[: params.max_tokens]
        return Completion(ids, said, "length" if len(ids) == params.max_tokens else "stop", len(prompt))

    async def close(self) -> None: ...


async def test_a_schema_holds_from_the_end_of_the_thought_on() -> None:
    engine, schema = Thinker("far</think>"), {"type": "object"}
    dialogue = Dialogue("r", "m", engine.format, True)
    dialogue.user("Where?")
    completion = await generate(engine, dialogue.ids, SamplingParams(1.0, max_tokens=200, schema=schema))
    assert [params.schema for params in engine.asked] == [None, schema]
    assert engine.asked[0].stop_ids == (engine.format.thought_end,)
    assert completion.text == 'far</think>{"a": 1}' and completion.ids[-1] == engine.format.end_of_turn
    assert split_thought(engine.format.reply_opening + completion.text) == ("far", '{"a": 1}')
    start, end = dialogue.assistant(completion, True)
    assert tuple(dialogue.ids[start:end]) == completion.ids
    assert [span.parsed for span in dialogue.spans if span.sampled] == [True]


async def test_a_thought_without_an_end_is_all_of_the_completion() -> None:
    engine = Thinker("far and further")
    completion = await generate(engine, (1, 2), SamplingParams(1.0, max_tokens=4, schema={"type": "object"}))
    assert len(engine.asked) == 1 and completion.finish_reason == "length" and len(completion.ids) == 4


def test_variables_of_the_template_reach_it_and_the_models_identity() -> None:
    tokenizer = templated_tokenizer("qwen3")
    thinking, brief = chat_format(tokenizer), chat_format(tokenizer, variables={"enable_thinking": False})
    assert thinking.digest != brief.digest
    dialogue = Dialogue("r", "m", brief, True)
    dialogue.user("Where?")
    assert brief.decode(dialogue.ids).endswith("<think>\n\n</think>\n\n")
