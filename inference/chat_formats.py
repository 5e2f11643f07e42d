"""Which chat format a model has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inference.rendered import RenderedFormat
from inference.rendering import SENTINEL, check_template, render
from inference.tokenizer import load_tokenizer
from inference.wrappers import WrapperFormat
from ratchet.config import ModelConfig
from ratchet.errors import UserError


def open_chat_format(model: ModelConfig) -> WrapperFormat | RenderedFormat:
    """The format of a config's open model. UserError where its tokenizer or template cannot be used."""
    return chat_format(load_tokenizer(model.path, model.revision), model.path, model.template)


def chat_format(
    tokenizer: Any, where: str = "the model", variables: Mapping[str, Any] | None = None
) -> WrapperFormat | RenderedFormat:
    """Wrappers where the template is exactly these, else every prompt rendered by the template. UserError for a
    template that cannot be used.

    `variables`: of the template, such as enable_thinking.
    """
    check_template(tokenizer, where)
    if not variables and keeps_thoughts(tokenizer, where):
        try:
            return WrapperFormat.from_tokenizer(tokenizer, where)
        except UserError:
            pass  # what is wrong is told by the format that takes any template
    return RenderedFormat.from_tokenizer(tokenizer, where, variables)


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
