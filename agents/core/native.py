"""Actions as calls of tools in the model's own form, in place of a form that a prompt describes (`actions: native`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

from ratchet.agents.core.output import Malformed
from ratchet.agents.core.tools import Tools
from ratchet.core.errors import UserError
from ratchet.inference.chat import Dialogue
from ratchet.inference.completion import FunctionCall
from ratchet.inference.tool_calls import CallForm

Actions = Literal["text", "native"]
Said = tuple[str, tuple[FunctionCall, ...]]


def function(name: str, about: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """A tool as OpenAI's API has it. `parameters`: the JSON schema of its arguments."""
    return {"type": "function", "function": {"name": name, "description": about, "parameters": dict(parameters)}}


def dialogue_with(tools: Tools, role: str, system: str, offered: Sequence[Mapping[str, Any]]) -> Dialogue:
    """Open a role's conversation in which it may call these tools. UserError where the model has no form for calls."""
    config, chat = tools.role(role), tools.chat_format(role)
    if chat.calls is None:
        raise UserError(
            f"models.{config.model}: its chat template has no form for calls of tools, which {role} makes; set "
            "system.settings.actions: text"
        )
    if config.examples:
        raise UserError(f"system.roles.{role}.examples: they are texts, and {role} calls tools (actions: native)")
    return tools.open(Dialogue(role, config.model, chat, config.trainable, system or None, offered))


def calls_of(dialogue: Dialogue) -> Callable[[str], Said]:
    """The reader of a dialogue with tools: (what is said before the calls, the calls). It raises Malformed."""
    assert dialogue.chat.calls is not None, "a dialogue with tools is opened with a form for them"
    return partial(read_calls, dialogue.chat.calls, dialogue.tools or ())


def read_calls(form: CallForm, tools: Sequence[Mapping[str, Any]], text: str) -> Said:
    """`CallForm.read`, which raises Malformed here."""
    try:
        return form.read(text, tools)
    except ValueError as error:
        raise Malformed(str(error)) from None
