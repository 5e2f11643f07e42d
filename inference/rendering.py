"""What a model's chat template writes around messages: without today's date, and in bounded time."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from ratchet.core.errors import UserError, first_line
from ratchet.core.text import short_line

# Some templates print today's date; a fixed one keeps prompts, and so content keys and caches, the same every day.
FIXED_DATE = "26 Jul 2024"
FIXED_CLOCK = "{% macro strftime_now(format) %}" + FIXED_DATE + "{% endmacro %}{{ '' }}"
SENTINEL = "\ue000{}\ue001"
"""Stands for a message while a template is taken apart."""
SECONDS = 10
"""The longest that a template may take. Jinja's sandbox bounds one loop, but not loops within loops."""


@contextmanager
def time_limit(seconds: int, message: str) -> Iterator[None]:
    """Raise UserError in the middle of what takes longer. Only the main thread can be interrupted; others wait."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: object) -> None:
        raise UserError(message)

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def check_template(tokenizer: Any, where: str) -> None:
    """Raises UserError where a tokenizer has no chat template."""
    if not getattr(tokenizer, "chat_template", None):
        raise UserError(
            f"{where} has no chat template, so its turns cannot be formatted; use an instruct model, or add "
            "chat_template.jinja to its folder"
        )


def render(tokenizer: Any, messages: list[tuple[str, str]], generation: bool = False, where: str = "the model") -> str:
    """The template's own text for (role, content) messages."""
    return render_messages(tokenizer, [{"role": role, "content": text} for role, text in messages], generation, where)


def render_messages(
    tokenizer: Any,
    messages: Sequence[Mapping[str, Any]],
    generation: bool = False,
    where: str = "the model",
    tools: Sequence[Mapping[str, Any]] = (),
    variables: Mapping[str, Any] | None = None,
) -> str:
    """The template's own text for messages as transformers has them, and the tools that they may call.

    `variables`: of the template, such as enable_thinking.
    """
    try:
        template = tokenizer.get_chat_template(tools=list(tools) or None)
        with time_limit(
            SECONDS, f"{where}: its chat template took longer than {SECONDS} s; use another, or shorten its loops"
        ):
            text = tokenizer.apply_chat_template(
                messages,
                tools=list(tools) or None,
                chat_template=FIXED_CLOCK + template if "strftime_now" in template else template,
                tokenize=False,
                add_generation_prompt=generation,
                **{"date_string": FIXED_DATE, **(variables or {})},
            )
    except UserError:
        raise
    except Exception as error:  # a template may divide by zero, index what is not there or call itself for ever
        roles = short_line(", ".join(str(message["role"]) for message in messages))
        raise UserError(f"{where}: its chat template refuses a dialogue of {roles}: {first_line(error)}") from error
    return str(text)
