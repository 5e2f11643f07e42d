"""Forms of tool calls: the form of each family of models, found by what the model's own chat template writes.

A form is literal text around a tool's name and its arguments, and one of four ways to write these: an object that has
the name too (Hermes, Qwen 2.5 and 3, Llama 3, older Mistral), JSON behind the name (gpt-oss, DeepSeek, newer Mistral),
tags for each argument (Qwen 3.5, Nemotron 3, GLM 4.5, Muse), or a notation with bare words (Gemma 4, LFM 2).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

from ratchet.core.errors import UserError
from ratchet.core.text import read_json, storable_value
from ratchet.inference.completion import FunctionCall
from ratchet.inference.thoughts import without_thoughts
from ratchet.inference.tokenizer import SENTINEL, render_messages

NAME = re.compile(r"[\w.:/-]{1,200}")
"""Names of tools that every form can hold."""
KEY = re.compile(r"[^<>\"\n]{1,500}")
"""Names of arguments that tags can hold."""
CALL_ID = "call{:05d}"
"""Nine letters and digits: some templates take no other ids."""
OTHER_ENDS = ("<|eom_id|>",)
"""Tokens that end a turn and that no template writes behind a call of a program's tool: Llama 3 says that a built-in
tool is called."""
PYTHON = "<|python_tag|>"
PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}
BARE = rf"\s*(?:{re.escape(PYTHON)}\s*)?"
"""A pattern of the text before a call that has no mark: Llama 3 puts the token of its built-in tools before others
too."""
JSON_TYPES: dict[type, str] = {
    **{str: "string", int: "integer", float: "number", bool: "boolean"},
    **{type(None): "null", list: "array", dict: "object"},
}
Tools = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class CallForm:
    """The form in which a family of models writes the calls of a turn, one or several."""

    openings: tuple[str, ...]
    """Texts before the arguments, `{name}` for the tool's name. The first is the template's own."""
    closing: str
    arguments: Literal["object", "json", "pairs", "words"]
    mark: str
    """A regular expression that finds where the calls begin; empty where an object is all of the turn."""
    key: str = "arguments"
    """The key of the arguments in an object."""
    pair: tuple[str, str] = ("", "")
    """The texts before and behind the value of one argument, `{key}` for its name."""
    quote: str = ""
    """The quotation mark of a text among bare words."""
    section: tuple[str, str] = ("", "")
    """The texts around all calls."""
    between: str = ""
    """A regular expression of what may stand between two calls."""
    end: str = ""
    """The control token with which a turn of calls ends."""
    takes_text: bool = False
    """True if the template takes a call's arguments as JSON text alone, as DeepSeek's do."""

    def read(self, text: str, tools: Tools = ()) -> tuple[str, tuple[FunctionCall, ...]]:
        """Return (what is said before the calls, the calls) of what a model says after its thoughts; no calls in plain
        text.

        `tools`: those that were offered. Where arguments are written without quotes, their schemas tell texts from
        numbers. Raises ValueError for a call that is cut or cannot be read.
        """
        if not (re.search(self.mark, text) if self.mark else self._is_object(text)):
            return text, ()
        before, calls, at = self._read(text, tools)
        if rest := text[at:].strip():
            raise ValueError(f"{rest[:50]!r} follows a tool's call")
        return before.strip(), calls

    def _is_object(self, text: str) -> bool:
        try:
            value, _ = json.JSONDecoder().raw_decode(text.strip().removeprefix(PYTHON).strip())
        except (ValueError, RecursionError):
            return re.match(BARE + r'\{\s*"name"\s*:', text) is not None
        return isinstance(value, dict) and isinstance(value.get("name"), str) and self.key in value

    def _read(self, text: str, tools: Tools) -> tuple[str, tuple[FunctionCall, ...], int]:
        found = re.search(self.mark, text) if self.mark else re.match(BARE, text)
        if found is None:
            raise ValueError("no tool's call")
        calls = list[FunctionCall]()
        at = _match(_literal(self.section[0]), text, found.start() if self.mark else found.end()).end()
        while not calls or (self._opening.match(text, at) and (self.openings[0] or text[at : at + 1] == "{")):
            opening = _match(self._opening, text, at)
            if self.arguments == "object":
                value, at = _read_json(text, opening.end())
                calls += [self._object(one) for one in (value if isinstance(value, list) else [value])]
            else:
                name = next(name for key, name in opening.groupdict().items() if key.startswith("name") and name)
                value, at = self._read_arguments(text, opening.end(), _parameters(tools, name))
                calls.append(_call(name, value))
            at = _match(_literal(self.closing), text, at).end()
            if (between := re.compile(self.between).match(text, at)) and self._opening.match(text, between.end()):
                at = between.end()
        if not calls:
            raise ValueError("a list of no calls")
        return text[: found.start()], tuple(calls), _match(_literal(self.section[1]), text, at).end()

    @cached_property
    def _opening(self) -> re.Pattern[str]:
        return re.compile("|".join(_literal(text, number) for number, text in enumerate(self.openings)))

    def _object(self, value: Any) -> FunctionCall:
        if not isinstance(value, dict) or not isinstance(value.get("name"), str) or self.key not in value:
            raise ValueError(f"expected an object with name and {self.key}")
        return _call(value["name"], value[self.key])

    def _read_arguments(self, text: str, at: int, parameters: Mapping[str, Any]) -> tuple[Any, int]:
        if self.arguments == "json":
            value, at = _read_json(text, at)
        elif self.arguments == "words":
            value, at = _read_words(text, at)
        else:
            value = dict[str, Any]()
            kinds = parameters.get("properties")
            while found := self._pair.match(text, at):
                if found["key"] in value:
                    raise ValueError(f"the argument {found['key'][:50]!r} stands there twice")
                if re.search(self._pair_opening, found["value"]):
                    raise ValueError(f"the argument {found['key'][:50]!r} is not closed before the next one")
                kind = kinds.get(found["key"]) if isinstance(kinds, Mapping) else None
                value[found["key"]] = _typed(found["value"], resolved(kind, parameters), parameters)
                at = found.end()
        return value, at

    @cached_property
    def _pair_opening(self) -> str:
        before = re.escape(self.pair[0].strip()).replace(r"\{key\}", f"(?P<key>{KEY.pattern})")
        return re.sub(r"(\\\n|\\ )+", r"\\s*", before + (r"\n?" if self.pair[0][-1:] == "\n" else ""))

    @cached_property
    def _pair(self) -> re.Pattern[str]:
        """One argument. A line break beside the value is the form's own, where it has one there."""
        behind = (r"\n?" if self.pair[1][:1] == "\n" else "") + re.escape(self.pair[1].strip())
        return re.compile(rf"\s*{self._pair_opening}(?P<value>.*?){behind}\s*", re.DOTALL)


FORMS = (
    CallForm(
        ("<tool_call>\n<function={name}>\n",),
        "</function>\n</tool_call>",
        "pairs",
        "<tool_call>|<function=",
        pair=("<parameter={key}>\n", "\n</parameter>\n"),
    ),
    CallForm(
        ("<tool_call>{name}\n",),
        "</tool_call>",
        "pairs",
        "<tool_call>",
        pair=("<arg_key>{key}</arg_key>\n<arg_value>", "</arg_value>\n"),
    ),
    CallForm(
        (
            ' to={name}<|message|><atem:function_calls>\n<atem:invoke name="{name}">\n',
            '<atem:function_calls>\n<atem:invoke name="{name}">\n',
        ),
        "</atem:invoke>\n</atem:function_calls>",
        "pairs",
        r"(?:to=[^\s<]{1,200}<\|message\|>)?<atem:",
        pair=('<atem:parameter name="{key}">', "</atem:parameter>\n"),
        between=r"<\|eom\|>\s*<\|start\|>assistant",
    ),
    CallForm(
        ("<|tool_call>call:{name}",), "<tool_call|>", "words", r"<\|tool_call>", pair=("{key}:", ","), quote='<|"|>'
    ),
    CallForm(
        ("{name}",),
        "",
        "words",
        r"<\|tool_call_start\|>",
        pair=("{key}=", ", "),
        quote="'",
        section=("<|tool_call_start|>[", "]<|tool_call_end|>"),
        between=r"\s*,\s*",
    ),
    CallForm(
        (
            " to=functions.{name}<|channel|>commentary json<|message|>",
            "<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>",
            " to=functions.{name}<|channel|>commentary <|constrain|>json<|message|>",
        ),
        "",
        "json",
        r"(?:<\|channel\|>commentary\s*)?to=functions\.",
    ),
    CallForm(("[TOOL_CALLS]{name}[ARGS]",), "", "json", r"\[TOOL_CALLS\]"),
    CallForm(
        ("<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>",),
        "<｜tool▁call▁end｜>",
        "json",
        "<｜tool▁calls▁begin｜>|<｜tool▁call▁begin｜>",
        section=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
    ),
    CallForm(
        ("<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n",),
        "\n```<｜tool▁call▁end｜>",
        "json",
        "<｜tool▁calls▁begin｜>|<｜tool▁call▁begin｜>",
        section=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
    ),
)
"""Forms that are more than an object between two marks, which `find_form` reads off the template."""


def find_form(
    tokenizer: Any, end_of_turn: str, control: re.Pattern[str], variables: Mapping[str, Any]
) -> CallForm | None:
    """Return the form of a tokenizer's chat template; None where it takes no tools, or writes calls in no known
    form."""
    call = FunctionCall.of("probe_tool", {"a": "some words", "b": 1})
    name, asked = call.name, {"role": "user", "content": SENTINEL.format("u")}
    result = {"role": "tool", "content": "r", "tool_call_id": CALL_ID.format(0), "name": name}
    offered = {"type": "function", "function": {"name": name, "description": "", "parameters": {}}}
    try:
        if name not in render_messages(tokenizer, [asked], tools=[offered], variables=variables):
            return None
        opening = render_messages(tokenizer, [asked], True, variables=variables)
    except UserError:
        return None
    for arguments in (call.value, call.arguments):
        said = {"role": "assistant", "content": "", "tool_calls": [template_call(name, arguments, CALL_ID.format(0))]}
        try:
            text = render_messages(tokenizer, [asked, said], variables=variables)
            break
        except UserError:
            continue
    else:
        return None
    text = text.removeprefix(opening) if text.startswith(opening) else text.rpartition(asked["content"])[2]
    for form in (*FORMS, *_object_forms(without_thoughts(text).partition(end_of_turn)[0], name)):
        try:
            _, calls, _ = form._read(text, ())
        except ValueError:
            continue
        if calls == (call,):
            end = _end(tokenizer, form, [asked, said, result], control, variables)
            return replace(form, end=end, takes_text=isinstance(arguments, str))
    return None


def _end(
    tokenizer: Any,
    form: CallForm,
    messages: Sequence[Mapping[str, Any]],
    control: re.Pattern[str],
    variables: Mapping[str, Any],
) -> str:
    """Return the control token that the template writes behind a call which a result follows; "" where it takes no
    result."""
    try:
        text = render_messages(tokenizer, messages, True, variables=variables).rpartition(messages[0]["content"])[2]
        found = control.search(text, form._read(text, ())[2])
    except (UserError, ValueError):
        return ""
    return found[0] if found else ""


def _object_forms(text: str, name: str) -> list[CallForm]:
    """Return the form of a turn that is one object with the name and the arguments of a tool, in a list or not, between
    marks; none where there is no such object."""
    at = text.find(name)
    while at > 0 and (at := text.rfind("{", 0, at)) >= 0:
        try:
            value, end = json.JSONDecoder().raw_decode(text, at)
        except ValueError:
            continue
        keys = [key for key, one in value.items() if key != "name" and isinstance(one, dict | str)]
        if value.get("name") == name and keys:
            before, behind = text[:at].lstrip(), text[end:].rstrip()
            mark = before.strip().rstrip("[").strip()
            if before.endswith("["):
                section, between = (before, behind), r"\s*,\s*"
                return [CallForm(("",), "", "object", re.escape(mark), keys[-1], section=section, between=between)]
            between = "" if mark else r"\s*;\s*"  # as Llama 3 writes it
            return [CallForm((before,), behind, "object", re.escape(mark), keys[-1], between=between)]
    return []


def template_call(name: Any, arguments: Any, id: Any) -> dict[str, Any]:
    """Return a call as templates and chat completions have it; what a program sent may be anything."""
    return {"type": "function", "id": id, "function": {"name": name, "arguments": arguments}}


# Parts of a call


def _call(name: str, arguments: Any) -> FunctionCall:
    call = FunctionCall.of(name, storable_value(arguments))
    if not isinstance(call.value, dict):
        raise ValueError("a tool's arguments are no object")
    return call


def _parameters(tools: Tools, name: str) -> Mapping[str, Any]:
    for tool in tools:
        function = tool.get("function")
        if isinstance(function, Mapping) and function.get("name") == name:
            schema = function.get("parameters")
            return schema if isinstance(schema, Mapping) else {}
    return {}


def pointed(root: Any, reference: str) -> Any:
    """The part of a JSON schema that a reference such as #/$defs/name leads to; None where it leads to nothing."""
    for name in reference.split("/")[1:]:
        name = name.replace("~1", "/").replace("~0", "~")
        root = root.get(name) if isinstance(root, Mapping) else None
    return root


def resolved(schema: Any, root: Mapping[str, Any], levels: int = 16, seen: set[str] | None = None) -> dict[str, Any]:
    """A JSON schema with what its $ref and allOf say, and a constant as the one choice. `seen`: references that were
    followed; each is followed once, however often a schema of a few lines repeats it at every level."""
    if not isinstance(schema, Mapping) or not levels:
        return {}
    seen = set() if seen is None else seen
    made = {key: value for key, value in schema.items() if key not in ("$ref", "allOf", "const")}
    parts, reference = [], schema.get("$ref")
    if isinstance(reference, str) and reference not in seen:
        seen.add(reference)
        parts.append(pointed(root, reference))
    parts += schema["allOf"] if isinstance(schema.get("allOf"), list) else []
    for part in parts:
        made = resolved(part, root, levels - 1, seen) | made
    return made | ({"enum": [schema["const"]]} if "const" in schema else {})


def _literal(text: str, number: int = 0) -> str:
    """A regular expression of literal text with blanks of any length, and names in the groups `name` and a number."""
    parts = [re.escape(part) for part in text.split()]
    pattern = r"\s*" + r"\s*".join(parts) + r"\s*"
    named = pattern.replace(r"\{name\}", f"(?P<name{number}>{NAME.pattern})", 1)
    return named.replace(r"\{name\}", f"(?P=name{number})")


def _match(pattern: str | re.Pattern[str], text: str, at: int) -> re.Match[str]:
    found = re.compile(pattern).match(text, at)
    if found is None:
        raise ValueError(f"a tool's call cannot be read at {text[at : at + 50]!r}")
    return found


def _read_json(text: str, at: int) -> tuple[Any, int]:
    try:
        return json.JSONDecoder().raw_decode(text, at)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"a tool's call cannot be read ({error})") from None


def _typed(text: str, schema: Mapping[str, Any], root: Mapping[str, Any]) -> Any:
    """The value of an argument that is written without quotes: text where its schema has text alone, or text and
    nothing that this is, or where it is no JSON. Python's spelling of true, false and null is read too."""
    kinds = _kinds(schema, root)
    if kinds == {"string"}:
        return text
    try:
        value = read_json(PYTHON_WORDS.get(text, text))
    except ValueError:
        return text
    return text if "string" in kinds and JSON_TYPES[type(value)] not in kinds else value


def _kinds(schema: Mapping[str, Any], root: Mapping[str, Any]) -> set[str]:
    """The JSON types that a schema, its choices or its alternatives have; none where that is left open."""
    either, kinds = schema.get("anyOf") or schema.get("oneOf"), set[str]()
    for part in [resolved(part, root) for part in either] if isinstance(either, list) else [schema]:
        values, named = part.get("enum"), part.get("type")
        if isinstance(values, list):
            found = {JSON_TYPES[type(value)] for value in values}
        else:
            found = {kind for kind in (named if isinstance(named, list) else [named]) if isinstance(kind, str)}
        if not found:
            return set()
        kinds |= found
    return kinds | {"integer"} if "number" in kinds else kinds


WORDS = re.compile(
    r"""<\|"\|>(?P<marked>.*?)<\|"\|>|(?P<quoted>"(?:\\.|[^"\\])*")|'(?P<single>(?:\\.|[^\\])*?)'(?=\s*[,)\]}])"""
    r"""|(?P<mark>[{}()\[\],:=])|(?P<word>[^{}()\[\],:=\s<"']+)|\s+""",
    re.DOTALL,
)
"""One token of a notation with bare words."""
ESCAPES = {"\\": "\\", "'": "'", '"': '"', "n": "\n", "r": "\r", "t": "\t"}
ESCAPED = re.compile(r"\\([\\'\"nrt])")


def _read_words(text: str, at: int) -> tuple[Any, int]:
    """(the arguments, where they end) of a notation that has names without quotes, and text in quotes of its own."""
    parts, depth = list[str](), 0
    while (not parts or depth) and (found := WORDS.match(text, at)):
        at = found.end()
        if mark := found["mark"]:
            depth += (mark in "{([") - (mark in "})]")
            parts.append({"(": "{", ")": "}", "=": ":"}.get(mark, mark))
        elif found["quoted"]:
            parts.append(found["quoted"])
        elif (word := found["word"]) is None:
            if found["marked"] is not None:
                parts.append(json.dumps(found["marked"]))
            elif found["single"] is not None:
                parts.append(json.dumps(ESCAPED.sub(lambda one: ESCAPES[one[1]], found["single"])))
        elif re.match(r"\s*[:=]", text[at : at + 50]):
            parts.append(json.dumps(word))
        else:
            parts.append(PYTHON_WORDS.get(word, word))
    if not parts or depth or parts[0] != "{":
        raise ValueError("a tool's call is cut in its arguments")
    try:
        return json.loads("".join(parts), strict=False), at
    except (ValueError, RecursionError) as error:
        raise ValueError(f"a tool's arguments cannot be read ({error})") from None
