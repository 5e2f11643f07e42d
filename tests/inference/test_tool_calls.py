"""Tool calls in each family's own form: as trl's templates write them, and as models say them."""

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xgrammar.testing import _is_grammar_accept_string as accepts

from ratchet.inference.chat import Dialogue
from ratchet.inference.chat_formats import THOUGHT_KEYS, RenderedFormat
from ratchet.inference.completion import ChatTurn, Completion, FunctionCall, SamplingParams
from ratchet.inference.http.connection import token_request
from ratchet.inference.schemas import SchemaRefused, call_grammar
from ratchet.inference.thoughts import without_thoughts
from ratchet.inference.tokenizer import render_messages
from ratchet.inference.tool_calls import CallForm, template_call
from tests.helpers.templates import NAMES, templated_format
from tests.helpers.tiny import STYLES, tiny_format
from tests.inference.test_messages import HERMES, LLAMA, with_template

TOOLED = [name for name in NAMES if templated_format(name).calls]
ALL = pytest.mark.parametrize("name", TOOLED)
PROPERTIES = {"q": {"type": "string"}, "k": {"type": "integer"}, "more": {"type": "object"}}
SCHEMA = {"type": "object", "properties": PROPERTIES, "required": ["q"]}
OFFERED = [{"type": "function", "function": {"name": "search", "description": "Finds.", "parameters": SCHEMA}}]
CALL = FunctionCall.of("search", {"q": "Velm?", "k": 2}, "call00001")
SAID = {
    "qwen3": "<think>\nfar\n</think>\n\n<tool_call>\n"
    '{"name": "search", "arguments": {"q": "Velm?", "k": 2}}\n</tool_call>',
    "qwen2_5": 'So:\n<tool_call>\n{"arguments": {"k": 2, "q": "Velm?"}, "name": "search"}\n</tool_call>',
    "llama3_2": '{"name": "search", "parameters": {"q": "Velm?", "k": 2}}',
    "qwen3_5_think": "far\n</think>\n\n<tool_call>\n<function=search>\n<parameter=q>\nVelm?\n</parameter>\n"
    "<parameter=k>\n2\n</parameter>\n</function>\n</tool_call>",
    "glm4moe": "\n<think>far</think>\n<tool_call>search\n<arg_key>q</arg_key>\n<arg_value>Velm?</arg_value>\n"
    "<arg_key>k</arg_key>\n<arg_value>2</arg_value>\n</tool_call>",
    "gptoss": "<|channel|>analysis<|message|>far<|end|><|start|>assistant<|channel|>commentary to=functions.search "
    '<|constrain|>json<|message|>{"q": "Velm?", "k": 2}',
    "muse_glimmer": " to=self<|message|>far<|eom|><|start|>assistant to=search<|message|><atem:function_calls>\n"
    '<atem:invoke name="search">\n<atem:parameter name="q">Velm?</atem:parameter>\n<atem:parameter name="k">2'
    "</atem:parameter>\n</atem:invoke>\n</atem:function_calls>",
    "gemma4_v5": '<|channel>thought\nfar\n<channel|><|tool_call>call:search{k:2,q:<|"|>Velm?<|"|>}<tool_call|>',
    "lfm2_2_5": "<think>far</think><|tool_call_start|>[search(q='Velm?', k=2)]<|tool_call_end|>",
}
TEXTS = st.lists(
    st.sampled_from(["Velm", "75001", "true", " ", "\n", '"', "'", "\\", "{", "}", "<b", "</b>", "<tool_call>", "é"]),
    max_size=4,
).map("".join)
VALUES = st.recursive(TEXTS | st.integers(-9, 9) | st.booleans() | st.none(), lambda inner: st.lists(inner, max_size=2))
ARGUMENTS = st.fixed_dictionaries(
    {"q": TEXTS}, optional={"k": st.integers(), "more": st.dictionaries(st.sampled_from("ab"), VALUES, max_size=2)}
)


def form_of(name: str) -> CallForm:
    form = templated_format(name).calls
    assert form is not None
    return form


def own_words(name: str, *calls: FunctionCall) -> str:
    """The template's own text of a reply that calls tools, up to the token that ends it."""
    chat = templated_format(name)
    said = [template_call(call.name, call.value, "call00001") for call in calls]
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "Where?"},
        {"role": "assistant", "content": "", "tool_calls": said},
    ]
    opening, text = (render_messages(chat.tokenizer, messages[:end], end == 1) for end in (1, 2))
    text = text.removeprefix(opening) if text.startswith(opening) else text.rpartition("Where?")[2]
    for i in chat.end_ids:
        text = text.rstrip().removesuffix(chat.decode([i]))
    return text


@ALL
@settings(max_examples=15)
@given(arguments=ARGUMENTS)
def test_what_the_template_writes_is_read_back_or_malformed(name: str, arguments: dict[str, Any]) -> None:
    form, call = form_of(name), FunctionCall.of("search", arguments)
    text = without_thoughts(own_words(name, call))
    inside = json.dumps(arguments, ensure_ascii=False)
    ambiguous = any(mark in inside for mark in {"pairs": ["</"], "words": ["'", "\\"]}.get(form.arguments, ()))
    try:
        assert form.read(text, OFFERED)[1] == (call,) or ambiguous
    except ValueError:
        assert ambiguous, text


@pytest.mark.parametrize("name", SAID)
def test_a_reply_with_thoughts_is_a_call_and_cut_anywhere_it_is_malformed(name: str) -> None:
    form, text = form_of(name), without_thoughts(SAID[name])
    before, calls = form.read(text, OFFERED)
    assert calls == (CALL,) and before == ("So:" if name == "qwen2_5" else "")
    assert json.loads(calls[0].arguments) == {"q": "Velm?", "k": 2}
    for end in range(text.index("search"), len(text.rstrip())):
        with pytest.raises(ValueError, match=r"call|arguments|object"):
            form.read(text[:end], OFFERED)
    with pytest.raises(ValueError, match="follows"):
        form.read(f"{text} so", OFFERED)
    assert form.read("It was Ada.") == ("It was Ada.", ())


@ALL
def test_a_call_and_its_result_go_on_in_the_row_in_which_it_was_sampled(name: str) -> None:
    chat = templated_format(name)
    dialogue = Dialogue("r", "m", chat, True)
    dialogue.extend([ChatTurn("user", "Where?")], OFFERED)
    prompt = chat.decode(dialogue.ids)
    thinks = isinstance(chat, RenderedFormat) and not prompt.endswith("</think>\n\n")
    thought = dict.fromkeys(THOUGHT_KEYS, "far") if thinks else {}
    said = {"role": "assistant", "content": "", "tool_calls": [template_call(CALL.name, CALL.value, CALL.id)]}
    result = {"role": "tool", "tool_call_id": CALL.id, "content": "by the coast"}
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Where?"}, said | thought, result]
    shown = render_messages(chat.tokenizer, messages, True, tools=OFFERED)
    assert shown.startswith(prompt)
    reply = shown[len(prompt) :]
    ends = [re.escape(chat.decode([i])) for i in chat.end_ids]
    end = re.compile("|".join(ends)).search(reply, reply.index("Velm?"))
    assert end is not None
    ids = tuple(chat.tokenizer.encode(reply[: end.end()], add_special_tokens=False))
    dialogue.assistant(Completion(ids, reply[: end.start()], "stop", 1), True)
    _, calls = form_of(name).read(dialogue.turns[-1].text, OFFERED)
    dialogue.turns[-1] = replace(dialogue.turns[-1], text="", calls=(replace(calls[0], id=CALL.id),))
    dialogue.extend([ChatTurn("tool", "by the coast", answers=CALL.id)], OFFERED)
    assert len(dialogue.rows) == 1 and chat.decode(dialogue.ids) == shown
    assert [i for s in dialogue.spans if s.sampled for i in dialogue.ids[s.start : s.end]] == list(ids)
    assert all(span.parsed for span in dialogue.spans)


@ALL
def test_a_forced_call_has_a_grammar_that_allows_the_templates_own_words(name: str) -> None:
    form = form_of(name)
    other = {"type": "function", "function": {"name": "other"}}
    grammar = call_grammar(form, [other, *OFFERED])
    text = without_thoughts(own_words(name, CALL)).strip("\n")
    assert accepts(grammar, text if text.startswith(" ") or name != "gptoss" else f" {text}"), text
    assert not accepts(grammar, "It was Ada.") and not accepts(grammar, text[:-1])
    assert not accepts(call_grammar(form, [other]), text)


TURNS = """\
{%- for m in messages %}{% if loop.first and tools %}<|im_start|>system
{{ tools | tojson }}<|im_end|>
{% endif %}<|im_start|>{{ m.role }}
{{ m.content }}{% if m.tool_calls %}CALLS{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
OTHERS = {
    "DeepSeek V3": "<｜tool▁calls▁begin｜>{% for c in m.tool_calls %}<｜tool▁call▁begin｜>{{ c.type }}<｜tool▁sep｜>"
    "{{ c.function.name + '\n```json\n' + c.function.arguments }}\n```<｜tool▁call▁end｜>{% endfor %}"
    "<｜tool▁calls▁end｜>",
    "DeepSeek V3.1": "<｜tool▁calls▁begin｜>{% for c in m.tool_calls %}<｜tool▁call▁begin｜>{{ c.function.name }}"
    "<｜tool▁sep｜>{{ c.function.arguments | tojson }}<｜tool▁call▁end｜>{% endfor %}<｜tool▁calls▁end｜>",
    "Mistral 3": "{% for c in m.tool_calls %}[TOOL_CALLS]{{ c.function.name }}[ARGS]{{ c.function.arguments | tojson }}"
    "{% endfor %}",
    "Mistral 7B v0.3": "[TOOL_CALLS] [{% for c in m.tool_calls %}{{ c.function | tojson }}{{ ', ' if not loop.last }}"
    "{% endfor %}]",
}
"""Forms of models whose templates are not among trl's, or show no tools there."""


@pytest.mark.parametrize("name", OTHERS)
def test_forms_of_other_families(name: str) -> None:
    form = with_template(TURNS.replace("CALLS", OTHERS[name])).calls
    assert form is not None and form.takes_text == (name == "DeepSeek V3")
    chat = with_template(TURNS.replace("CALLS", OTHERS[name]))
    calls = [template_call(CALL.name, CALL.arguments if form.takes_text else CALL.value, "call00001")] * 2
    said: dict[str, Any] = {"role": "assistant", "content": "", "tool_calls": calls}
    text = render_messages(chat.tokenizer, [said]).partition("assistant\n")[2].partition("<|im_end|>")[0]
    assert form.read(f"So: {text}", OFFERED) == ("So:", (CALL, CALL))
    one = render_messages(chat.tokenizer, [said | {"tool_calls": calls[:1]}]).partition("assistant\n")[2]
    one = one.partition("<|im_end|>")[0]
    assert accepts(call_grammar(form, OFFERED), one)
    for end in range(one.index("search") + 6, len(one)):
        with pytest.raises(ValueError, match=r"call|object|cannot"):
            form.read(one[:end], OFFERED)


def test_a_forced_call_of_bare_words_has_simple_arguments_each_at_its_place() -> None:
    fields = {"b": {"type": "string"}, "c": {"enum": ["x", "don't"]}, "a": {"type": "integer"}, "l": {"type": "array"}}
    function: dict[str, Any] = {"name": "f", "parameters": {"type": "object", "properties": fields, "required": ["b"]}}
    form = form_of("gemma4_v5")
    grammar = call_grammar(form, [{"function": function}])
    b, c = '<|"|>t<|"|>', """<|"|>don't<|"|>"""
    for inside, allowed in (
        (f"a:1,b:{b},c:{c}", True),
        (f"b:{b}", True),
        (f"b:{b},c:{c}", True),
        ("a:1", False),
        (f",b:{b}", False),
        (f"a:1b:{b}", False),
        (f"b:{b},l:[]", False),
        (f"b:{b},c:{b}", False),
    ):
        text = f"<|tool_call>call:f{{{inside}}}<tool_call|>"
        assert accepts(grammar, text) == allowed, text
        assert not allowed or form.read(text)[1][0].value["b"] == "t"
    assert accepts(
        call_grammar(form_of("lfm2_2_5"), [{"function": {"name": "f"}}]), "<|tool_call_start|>[f()]<|tool_call_end|>"
    )
    function["parameters"]["required"] = ["l"]
    with pytest.raises(SchemaRefused, match="auto"):
        call_grammar(form, [{"function": function}])


@ALL
def test_names_of_any_letters_can_be_forced(name: str) -> None:
    form, key = form_of(name), "maße"
    schema = {"type": "object", "properties": {key: {"type": "string", "enum": ["é1", "😀a"]}}, "required": [key]}
    offered = [{"type": "function", "function": {"name": "größe", "parameters": schema}}]
    grammar = call_grammar(form, offered)
    for value in ("é1", "😀a"):
        text = without_thoughts(own_words(name, FunctionCall.of("größe", {key: value}))).strip("\n")
        assert accepts(grammar, text if text.startswith(" ") or name != "gptoss" else f" {text}"), text
        assert form.read(text, offered)[1][0].value == {key: value}


STRING, NULL = {"type": "string"}, {"type": "null"}
DEFINED = {"$defs": {"x": {"enum": ["5", "true"]}}}


@pytest.mark.parametrize("name", ["glm4moe", "qwen3_5_nothink", "muse_glimmer"])
@pytest.mark.parametrize(
    ("schema", "said", "value"),
    [
        ({"anyOf": [STRING, NULL]}, "123", "123"),
        ({"type": ["string", "null"]}, "null", None),
        ({"type": ["string", "number"]}, "1", 1),
        ({"type": ["string", "integer"]}, "true", "true"),
        ({"enum": ["true", "false"]}, "true", "true"),
        ({"enum": [1, 2]}, "1", 1),
        ({"anyOf": [STRING, {"$ref": "#/$defs/x"}]}, '{"a": 1}', '{"a": 1}'),
        ({"anyOf": [STRING, {"$ref": "#/$defs/none"}]}, '{"a": 1}', {"a": 1}),
        ({"$ref": "#/$defs/x"}, "5", "5"),
        ({"allOf": [{"$ref": "#/$defs/x"}], "description": "a code"}, "true", "true"),
        ({"const": "1"}, "1", "1"),
        ({"const": 1}, "1", 1),
        ({}, "NaN", "NaN"),
        ({}, "True", True),
    ],
)
def test_what_tags_hold_is_of_a_type_that_its_schema_names(
    name: str, schema: dict[str, Any], said: str, value: Any
) -> None:
    offered = [{"type": "function", "function": {"name": "f", "parameters": {"properties": {"q": schema}, **DEFINED}}}]
    text = without_thoughts(own_words(name, FunctionCall.of("f", {"q": "WORD"}))).replace("WORD", said)
    [call] = form_of(name).read(text, offered)[1]
    assert call.value == {"q": value} and type(call.value["q"]) is type(value)


TAGGED = pytest.mark.parametrize("name", ["glm4moe", "qwen3_5_nothink", "muse_glimmer"])
LATER = {"q": STRING, "k": {"type": "string"}}


@TAGGED
def test_an_argument_that_is_not_closed_is_malformed_and_no_longer_value(name: str) -> None:
    form = form_of(name)
    text = without_thoughts(own_words(name, FunctionCall.of("f", {"q": "a", "k": "b"})))
    close = form.pair[1].strip()
    assert form.read(text)[1][0].value == {"q": "a", "k": "b"}
    for cut in (text.replace(close, "", 1), "".join(text.rsplit(close, 1))):
        with pytest.raises(ValueError, match=r"not closed|cannot be read"):
            form.read(cut)


@TAGGED
@pytest.mark.parametrize("value", ["cat <<EOF\n<b>it's</b> </p\nEOF", "<", "a << 2 </", "'\"\\"])
def test_a_forced_call_writes_any_text_that_closes_no_tag(name: str, value: str) -> None:
    form, function = form_of(name), {"name": "f", "parameters": {"properties": LATER, "required": ["q", "k"]}}
    grammar = call_grammar(form, [{"function": function}])
    text = without_thoughts(own_words(name, FunctionCall.of("f", {"q": value, "k": "b"}))).strip("\n")
    assert accepts(grammar, text), text
    assert form.read(text, [{"function": function}])[1][0].value == {"q": value, "k": "b"}
    close = form.pair[1].strip()
    assert not accepts(grammar, text.replace(close, f"{close} {close}", 1)), "the tag closes once"
    assert not accepts(grammar, text.replace(close, "", 1)), "and opens no other inside"


@pytest.mark.parametrize("name", ["gemma4_v5", "lfm2_2_5"])
@pytest.mark.parametrize("value", ["it's", "cat <<EOF\n</b>", "a \\ b"])
def test_a_forced_call_of_bare_words_writes_quotes_and_line_breaks(name: str, value: str) -> None:
    form = form_of(name)
    escaped = value.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n")
    said = f"'{escaped}'" if form.quote == "'" else f"{form.quote}{value}{form.quote}"
    opened, closed = ("<|tool_call_start|>[f(q=", ")]<|tool_call_end|>")
    if name == "gemma4_v5":
        opened, closed = ("<|tool_call>call:f{q:", "}<tool_call|>")
    for kind in (STRING, {"enum": [value, "b"]}):
        function = {"name": "f", "parameters": {"properties": {"q": kind}, "required": ["q"]}}
        assert accepts(call_grammar(form, [{"function": function}]), f"{opened}{said}{closed}")
    assert form.read(f"{opened}{said}{closed}")[1][0].value == {"q": value}


def test_several_calls_and_other_spellings_of_them() -> None:
    bare = with_template(LLAMA).calls
    hermes = with_template(HERMES).calls
    assert hermes is not None and bare is not None
    one = '<tool_call>{"name": "search", "arguments": "{\\"k\\": 2, \\"q\\": \\"Velm?\\"}"}</tool_call>'
    assert hermes.read(f"{one}\n{one}", OFFERED)[1] == (CALL, CALL)
    assert bare.read('{"answer": "Ada"}') == ('{"answer": "Ada"}', ())
    bare_call = '{"name": "search", "parameters": {"q": "Velm?", "k": 2}}'
    assert bare.read(f"<|python_tag|>{bare_call}; {bare_call}", OFFERED) == ("", (CALL, CALL))
    for name in TOOLED:
        form = form_of(name)
        if not name.startswith(("llama", "gptoss")):
            calls = form.read(without_thoughts(own_words(name, CALL, CALL)), OFFERED)[1]
            assert calls == (CALL, CALL), name


def test_a_template_without_tools_has_no_form() -> None:
    assert all(tiny_format(style).calls is None for style in STYLES)
    shows_no_calls = {"lfm2"}
    assert {name for name in NAMES if name.startswith(("qwen3", "gemma4", "nemotron", "lfm2"))} - {
        *TOOLED
    } == shows_no_calls


def test_every_token_that_ends_a_turn_is_known() -> None:
    ends = {name: {templated_format(name).decode([i]) for i in templated_format(name).end_ids} for name in TOOLED}
    assert ends["gptoss"] == {"<|return|>", "<|call|>"} and ends["llama3_1"] == {"<|eot_id|>", "<|eom_id|>"}
    assert ends["glm4moe"] == {"<|user|>", "<|observation|>"} and ends["gemma4"] == {"<turn|>", "<|tool_response>"}
    assert ends["qwen3"] == {"<|im_end|>"}
    chat = templated_format("gptoss")
    sent = token_request("m", [1], SamplingParams(1.0, stop_ids=(5,)), 9, chat, send_seed=True)
    assert sent["stop_token_ids"] == [*chat.end_ids, 5]
