"""Which chat format a model has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from ratchet.core.config import ModelConfig, ThoughtsConfig
from ratchet.core.errors import UserError
from ratchet.inference.chat import ChatFormat
from ratchet.inference.rendered import RenderedFormat
from ratchet.inference.rendering import SENTINEL, check_template, render
from ratchet.inference.tokenizer import load_tokenizer
from ratchet.inference.turns import ChatTurn
from ratchet.inference.wrappers import WrapperFormat

AS_THE_TEMPLATE = ThoughtsConfig()
SWITCHES = ("enable_thinking", "thinking")
"""What templates call the variable that turns thoughts on or off."""


def open_chat_format(model: ModelConfig) -> WrapperFormat | RenderedFormat:
    """The format of a config's open model. UserError where its tokenizer or template cannot be used."""
    return chat_format(load_tokenizer(model.path, model.revision), model.path, model.template, model.thoughts)


def chat_format(
    tokenizer: Any,
    where: str = "the model",
    variables: Mapping[str, Any] | None = None,
    thoughts: ThoughtsConfig = AS_THE_TEMPLATE,
) -> WrapperFormat | RenderedFormat:
    """Wrappers where the template is exactly these, else every prompt rendered by the template. UserError for a
    template that cannot be used, or knows no such settings.

    `variables`: of the template, such as enable_thinking.
    """
    check_template(tokenizer, where)
    if not variables and thoughts == AS_THE_TEMPLATE and keeps_thoughts(tokenizer, where):
        try:
            return WrapperFormat.from_tokenizer(tokenizer, where)
        except UserError:
            pass  # what is wrong is told by the format that takes any template
    chat = RenderedFormat.from_tokenizer(tokenizer, where, variables)
    if thoughts.enabled is not None:
        switched = {**chat.variables, _switch(chat): thoughts.enabled}
        chat = RenderedFormat.from_tokenizer(tokenizer, where, switched)
    if thoughts.budget is not None and chat.thinking is None:
        why = "marks no thoughts by single tokens, or is told not to think"
        raise UserError(f"thoughts.budget: {where} {why}, so no thought can be closed; leave it out")
    thinking = replace(chat.thinking, budget=thoughts.budget) if chat.thinking else None
    return replace(chat, thinking=thinking, kept=thoughts.kept)


def with_thoughts(chat: ChatFormat, thoughts: ThoughtsConfig) -> ChatFormat:
    """The format of a role that thinks in another way than its model does elsewhere. UserError as `chat_format`."""
    if thoughts == AS_THE_TEMPLATE:
        return chat
    if not isinstance(chat, WrapperFormat | RenderedFormat):
        raise UserError("thoughts: a model that is reached as text (engine: chat-api) thinks as its service lets it")
    return _with_thoughts(chat, thoughts)


@lru_cache(maxsize=64)
def _with_thoughts(chat: WrapperFormat | RenderedFormat, thoughts: ThoughtsConfig) -> RenderedFormat | WrapperFormat:
    if isinstance(chat, WrapperFormat):
        return chat_format(chat.tokenizer, thoughts=thoughts)
    before = ThoughtsConfig(budget=chat.thinking.budget if chat.thinking else None, kept=chat.kept)
    both = before.model_copy(update=thoughts.model_dump(exclude_none=True))
    if thoughts.enabled is False:
        both = both.model_copy(update={"budget": thoughts.budget})
    return chat_format(chat.tokenizer, chat.where, chat.variables, both)


def _switch(chat: RenderedFormat) -> str:
    """The variable of a template that turns thoughts on or off. UserError where it has none."""
    asked = [ChatTurn("user", "u")]
    for name in SWITCHES:
        on, off = (replace(chat, variables={**chat.variables, name: value}) for value in (True, False))
        if on.follow(asked, 0, str) != off.follow(asked, 0, str):
            return name
    raise UserError(
        f"thoughts.enabled: the chat template of {chat.where} has no variable that turns thoughts on or off "
        f"({', '.join(SWITCHES)}); leave it out, or set the template's own in models.*.template"
    )


THOUGHTS = (
    "<think>\n{}\n</think>\n\n",
    "[THINK]{}[/THINK]",
    "<|START_THINKING|>{}<|END_THINKING|>",
    "<|channel>thought\n{}<channel|>",
    "<|channel|>analysis<|message|>{}<|end|>",
)
"""How models write a thought before an answer."""


def keeps_thoughts(tokenizer: Any, where: str) -> bool:
    """Whether the template shows a past reply as it was said, thoughts and all."""
    template = str(tokenizer.chat_template)
    for form in THOUGHTS:
        if form.partition("{}")[0].strip() not in template and form.partition("{}")[2].strip() not in template:
            continue
        said = form.format(SENTINEL.format("t")) + SENTINEL.format("a")
        try:
            text = render(tokenizer, [("user", "u"), ("assistant", said), ("user", "v")], True, where)
        except UserError:
            return False
        if said not in text:
            return False
    return True
