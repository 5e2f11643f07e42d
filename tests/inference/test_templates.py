"""Every chat template that comes with trl: prompts are the template's own, and labels are what was sampled."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratchet.core.config import ThoughtsConfig
from ratchet.core.errors import UserError
from ratchet.core.records import Trajectory
from ratchet.inference.chat import Dialogue
from ratchet.inference.chat_formats import JOIN, THOUGHT_KEYS, RenderedFormat, WrapperFormat, chat_format, with_thoughts
from ratchet.inference.completion import ChatTurn, Completion, FunctionCall, SamplingParams
from ratchet.inference.engine import generate
from ratchet.inference.thoughts import split_thought
from ratchet.inference.token_format import template_ids
from ratchet.inference.tokenizer import render_messages
from ratchet.report.view import rows_text
from ratchet.training.labels import Labels
from tests.helpers.templates import NAMES, templated_format, templated_tokenizer

ALL = pytest.mark.parametrize("name", NAMES)
THINKING = [name for name in NAMES if name.startswith(("qwen3_5_think", "qwen3_6", "nemotron", "deepseek", "glm"))]
WORDS = st.lists(st.sampled_from(["Velm", "is", "a", "harbour", "<|im_end|>", "</think>", "?"]), min_size=1, max_size=5)
TEXTS = WORDS.map(" ".join)
SCHEMA, FORM = {"type": "object"}, '{"a": 1}'


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
def test_a_programs_messages_of_one_role_and_its_late_system_message_are_shown(name: str) -> None:
    chat = templated_format(name)
    dialogue = Dialogue("r", "m", chat, True)
    for number, first in enumerate(([ChatTurn("system", "Be brief.")], [])):
        late = [ChatTurn("user", f"Where {number}?"), ChatTurn("user", "Who?"), ChatTurn("system", "In English.")]
        dialogue.extend([*first, *late], [])
        shown = chat.decode(dialogue.ids).rpartition(f"Where {number}?")[2]
        assert 0 <= shown.index("Who?") < shown.index("In English."), shown
        joined = JOIN.join(["", "Who?", "In English."])
        assert not (chat.alternates and not chat.places_system) or shown.startswith(joined), shown
        dialogue.assistant(reply(chat, "far\n</think>\n\nOslo." if chat.reply_opening else "Oslo."), True)
    if name in ("cohere", "gemma3"):
        assert isinstance(chat, WrapperFormat) and chat.alternates and not chat.places_system


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
    rows = [dialogue.freeze(row) for row in dialogue.rows]
    assert [row.ids[start:end] for row in rows for start, end in row.actions()] == said
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
    assert [len(dialogue.freeze(row).actions()) for row in dialogue.rows] == [1, 1]


WRAPPERS = {"cohere", "cohere2", "gemma3", "lfm2", "lfm2_v2", "llama3", "llama3_1", "llama3_2", "phi3", "phi3_5"}
WRAPPERS |= {"qwen2_5", "qwen2_5_vl", "qwen3_instruct_2507", "qwen3_vl"}
"""Templates without thoughts that write every message in one way, so that a dialogue keeps one row."""


def test_models_without_thoughts_keep_one_row() -> None:
    assert {name for name in NAMES if isinstance(templated_format(name), WrapperFormat)} == WRAPPERS


def test_thoughts_that_the_prompt_opens_are_no_answer() -> None:
    chat = templated_format("qwen3_5_think")
    assert chat.reply_opening == "<think>\n"
    dialogue = Dialogue("r", "m", chat, True)
    dialogue.user("Where?")
    dialogue.assistant(reply(chat, "Perhaps Oslo.\n</think>\n\nIt is Rome."), True)
    assert (dialogue.turns[-1].thought, dialogue.turns[-1].text) == ("Perhaps Oslo.", "It is Rome.")


class Thinker:
    """An engine that says one text where it is free, from where the prompt has come to, and `FORM` under a schema."""

    max_context, fingerprint = 1000, "thinker"

    def __init__(self, chat: Any, free: str) -> None:
        self.format, self.asked = chat, list[SamplingParams]()
        self.dialogue = Dialogue("r", "m", chat, True)
        self.dialogue.user("Where?")
        self.free = (*chat.tokenizer.encode(free, add_special_tokens=False), chat.end_of_turn)

    async def generate(
        self, prompt: Sequence[int], params: SamplingParams, adapter: str | None = None, messages: Any = ()
    ) -> Completion:
        self.asked.append(params)
        rest = self.free[len(prompt) - len(self.dialogue.ids) :]
        if params.schema is not None:
            rest = reply(self.format, FORM).ids
        stops = {self.format.end_of_turn, *params.stop_ids}
        end = next((n for n, i in enumerate(rest, 1) if i in stops), len(rest))
        ids = tuple(rest[: min(end, params.max_tokens)])
        text = self.format.decode([i for i in ids if i != self.format.end_of_turn])
        return Completion(ids, text, "stop" if ids[-1] in stops else "length", len(prompt))

    async def close(self) -> None: ...

    async def play(self, max_tokens: int = 200, schema: dict[str, Any] | None = SCHEMA) -> Completion:
        completion = await generate(self, self.dialogue.ids, SamplingParams(1.0, max_tokens=max_tokens, schema=schema))
        start, end = self.dialogue.assistant(completion, True)
        assert tuple(self.dialogue.ids[start:end]) == completion.ids
        return completion

    @property
    def spans(self) -> list[tuple[str, bool, bool]]:
        """(text, whether it is a thought, whether it was sampled) of what the assistant said."""
        spans = [span for span in self.dialogue.spans if span.author == "assistant"]
        texts = [self.format.decode(self.dialogue.ids[span.start : span.end]) for span in spans]
        return [(text, span.thought, span.sampled) for text, span in zip(texts, spans, strict=True)]


@pytest.mark.parametrize(
    ("name", "free", "expected"),
    [
        ("qwen3_5_think", "far</think>\n\nOslo.", [("far</think>", True, True), ("\n\n", True, False)]),
        ("qwen3", "<think>far</think>\n\nOslo.", [("<think>far</think>", True, True), ("\n\n", True, False)]),
        ("qwen3", "Oslo.", []),
        ("glm4moe", "<think>far</think>\nOslo.", [("<think>far</think>", True, True), ("\n", True, False)]),
    ],
)
async def test_a_schema_holds_from_the_end_of_the_thought_on(
    name: str, free: str, expected: list[tuple[str, bool, bool]]
) -> None:
    engine = Thinker(templated_format(name), free)
    completion = await engine.play()
    assert engine.spans == [*expected, (FORM + engine.format.decode([engine.format.end_of_turn]), False, True)]
    assert [params.schema for params in engine.asked[:-1]] == [None] * (len(engine.asked) - 1)
    assert engine.asked[-1].schema == SCHEMA and len({params.seed for params in engine.asked}) == len(engine.asked)
    assert split_thought(engine.format.reply_opening + completion.text) == ("far" if expected else "", FORM)
    assert engine.dialogue.freeze().actions() == [
        (engine.dialogue.ids.index(completion.ids[0], 3), len(engine.dialogue.ids))
    ]


@pytest.mark.parametrize("schema", [None, SCHEMA])
async def test_a_thought_that_reaches_its_budget_is_closed_and_the_closing_is_no_label(
    schema: dict[str, Any] | None,
) -> None:
    chat = chat_format(templated_tokenizer("qwen3"), thoughts=ThoughtsConfig(budget=3))
    engine = Thinker(chat, "<think>far and further and on and on and on and on and on")
    completion = await engine.play(schema=schema)
    thought, closing, answer = engine.spans
    assert closing == ("\n</think>\n\n", True, False) and thought[1:] == (True, True) and answer[1:] == (False, True)
    assert len(chat.tokenizer.encode(thought[0], add_special_tokens=False)) == 3
    assert chat.decode(completion.ids) == "".join(text for text, *_ in engine.spans)
    short = Thinker(chat, "Oslo.")
    assert (await short.play(schema=None)).text == "Oslo." and short.spans == [("Oslo.<|im_end|>", False, True)]


async def test_a_thought_without_an_end_is_all_of_the_completion() -> None:
    engine = Thinker(templated_format("qwen3_5_think"), "far and further")
    completion = await engine.play(max_tokens=4)
    assert len(engine.asked) == 1 and completion.finish_reason == "length" and len(completion.ids) == 4
    assert [thought for _, thought, _ in engine.spans] == [True]


@pytest.mark.parametrize(("kept", "rows"), [(None, 2), (True, 1), (False, 2)])
def test_thoughts_are_kept_in_later_turns_or_dropped(kept: bool | None, rows: int) -> None:
    chat = chat_format(templated_tokenizer("qwen3"), thoughts=ThoughtsConfig(kept=kept))
    dialogue = Dialogue("r", "m", chat, True, "Be brief.")
    for question in ("Where?", "Who?"):
        dialogue.user(question)
        dialogue.assistant(reply(chat, f"<think>\nfar {question}\n</think>\n\nOslo."), True)
    assert len(dialogue.rows) == rows
    text = chat.decode(dialogue.ids)
    assert ("far Where?" in text) == (kept is True)
    assert text.count("<|im_start|>") == 5 and text.endswith("Oslo.<|im_end|>")


def test_a_role_may_think_in_another_way_than_its_model() -> None:
    tokenizer, dialogue = templated_tokenizer("qwen3"), Dialogue("r", "m", templated_format("qwen3"), True)
    chat = chat_format(tokenizer, thoughts=ThoughtsConfig(budget=5, kept=True))
    brief = with_thoughts(chat, ThoughtsConfig(enabled=False))
    assert with_thoughts(chat, ThoughtsConfig()) is chat and brief is with_thoughts(chat, ThoughtsConfig(enabled=False))
    dialogue = Dialogue("r", "m", brief, True)
    dialogue.user("Where?")
    assert brief.decode(dialogue.ids).endswith("<think>\n\n</think>\n\n") and brief.thinking is None
    longer = with_thoughts(chat, ThoughtsConfig(budget=9))
    assert longer.thinking and (longer.thinking.budget, getattr(longer, "kept", None)) == (9, True)
    assert len({one.digest for one in (chat, brief, longer, templated_format("qwen3"))}) == 4


@pytest.mark.parametrize(
    ("name", "thoughts", "problem"),
    [
        ("llama3_2", {"enabled": True}, r"thoughts.enabled: .*enable_thinking"),
        ("llama3_2", {"budget": 5}, r"thoughts.budget: .*leave it out"),
        ("qwen3", {"enabled": False, "budget": 5}, r"thoughts.budget: .*told not to think"),
    ],
)
def test_settings_that_a_template_does_not_know_are_refused(name: str, thoughts: dict[str, Any], problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        chat_format(templated_tokenizer(name), thoughts=ThoughtsConfig(**thoughts))


def test_variables_of_the_template_reach_it_and_the_models_identity() -> None:
    tokenizer = templated_tokenizer("qwen3")
    thinking, brief = chat_format(tokenizer), chat_format(tokenizer, variables={"enable_thinking": False})
    assert thinking.digest != brief.digest
    dialogue = Dialogue("r", "m", brief, True)
    dialogue.user("Where?")
    assert brief.decode(dialogue.ids).endswith("<think>\n\n</think>\n\n")


TOOL = {"type": "function", "function": {"name": "look", "description": "d", "parameters": {"type": "object"}}}
STEPS = st.lists(
    st.tuples(st.sampled_from(["ask", "call", "call"]), TEXTS, TEXTS, st.booleans()), min_size=2, max_size=5
)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["qwen3", "qwen3_5_think", "qwen3_6", "glm4moe", "nemotron_3_nano"])
@pytest.mark.parametrize("kept", [None, True])
@settings(max_examples=15, deadline=None)
@given(steps=STEPS)
def test_the_context_of_every_label_is_what_the_model_was_shown(
    name: str, kept: bool | None, steps: list[tuple[str, str, str, bool]]
) -> None:
    """Random histories of questions, calls of a tool and their results, with thoughts and without."""
    chat = chat_format(templated_tokenizer(name), thoughts=ThoughtsConfig(kept=kept))
    dialogue, served = Dialogue("r", "m", chat, True), list[tuple[tuple[int, ...], tuple[int, ...]]]()
    for number, (kind, text, thought, thinks) in enumerate(steps):
        answers_call = bool(dialogue.turns and dialogue.turns[-1].calls)
        new = ChatTurn("tool", text, answers=f"call{number - 1:05d}") if answers_call else ChatTurn("user", text)
        dialogue.extend([new], [TOOL])
        opening = "" if chat.reply_opening else "<think>"
        marks = [template_ids(chat, mark) for mark in (opening, "\n</think>\n\n")]
        ids = (*marks[0], *chat.encode(thought), *marks[1]) if thinks else ()
        ids = (*ids, *chat.encode(text))
        completion = Completion((*ids, chat.end_of_turn), chat.decode(ids), "stop", 1)
        served.append((tuple(dialogue.ids), completion.ids))
        dialogue.assistant(completion, True)
        if kind == "call":
            calls = (FunctionCall.of("look", {"q": text}, f"call{number:05d}"),)
            dialogue.turns[-1] = replace(dialogue.turns[-1], calls=calls)
    rows = [dialogue.freeze(row) for row in dialogue.rows]
    assert [(row.ids[:start], row.ids[start:end]) for row in rows for start, end in row.actions()] == served
    assert [row.rewritten for row in rows] == [False, *[True] * (len(rows) - 1)]
    trajectory = Trajectory(
        key="k", question_id="q", system="s", policy="base", sample=0, seed=0, status="finished", answer="",
        conversations=tuple(rows),
    )  # fmt: skip
    assert len(rows) == 1 or f"{len(rows)} token rows of 1 dialogue:" in rows_text(trajectory)
    for row, mask in zip(rows, map(Labels().mask, rows), strict=True):
        learnt = {at for start, end in row.actions() for at in range(start, end)}
        assert {at for at, one in enumerate(mask) if one} == learnt
        masked = {at for at, one in enumerate(Labels(thoughts=False).mask(row)) if one}
        assert learnt - masked == {at for s in row.spans if s.sampled and s.thought for at in range(s.start, s.end)}
