"""The chat format of a model whose template is a chain of fixed wrappers around messages, as most templates are.

Templates render text; we need ids, and need to know who wrote each. So the template is rendered once around
sentinels, the text between them becomes the wrappers, and `check` asserts that joining wrappers and clean text
gives the ids of the rendered template. What users, documents and models write is encoded with control tokens
split into ordinary ones: `<|im_start|>` in a passage is seven harmless tokens, never a turn.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ratchet.core.errors import UserError
from ratchet.inference.messages import format_turns
from ratchet.inference.rendering import SENTINEL, check_template, render
from ratchet.inference.token_format import TokenFormat, control_names, control_pattern
from ratchet.inference.turns import AUTHORS, ChatTurn, Part

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, eq=False)
class WrapperFormat(TokenFormat):
    """Wrappers of one chat template. The `*_ids` are template text with control tokens parsed."""

    before_system: tuple[int, ...]
    system_to_user: tuple[int, ...]
    before_user: tuple[int, ...]
    """Opens a dialogue without a system message (may hold the template's default one)."""
    user_to_assistant: tuple[int, ...]
    assistant_to_user: tuple[int, ...]
    """What follows end_of_turn up to the next user message."""
    system_tail: str
    user_tail: str
    """Ordinary text that the template puts right behind a message (Falcon 3: a line break). It is encoded together
    with the message, as in the template's own text, where '?' and the line break may be one token."""
    reply_opening: ClassVar[str] = ""
    thinking: ClassVar[None] = None

    @classmethod
    def from_tokenizer(cls, tokenizer: Any, where: str = "the model") -> WrapperFormat:
        """Derive the wrappers from a tokenizer's chat template. UserError for a template that is not supported."""
        check_template(tokenizer, where)
        system, user, assistant, again = (SENTINEL.format(name) for name in ("s", "u", "a", "v"))
        names = control_names(tokenizer)
        pattern = control_pattern(names)

        def template_parts(messages: list[tuple[str, str]], generation: bool = False) -> list[str]:
            """The template's own text before, between and after the messages, len(messages) + 1 pieces."""
            text = render(tokenizer, messages, generation, where)
            pieces = []
            for role, sentinel in messages:
                before, found, text = text.partition(sentinel)
                if not found:
                    raise UserError(
                        f"{where}: its chat template does not show the {role} message as it is, so its turns cannot "
                        "be told apart; templates that rewrite messages are not supported"
                    )
                pieces.append(before)
            return [*pieces, text]

        def split_tail(wrapper: str) -> tuple[str, str]:
            """Split a wrapper into (ordinary text, the rest from the first control token on)."""
            control = pattern.search(wrapper)
            if control is None:
                # The names of the roles are ordinary text: nothing keeps a passage from imitating them.
                logger.warning("%s: no control token is in %r, so a document could imitate a turn", where, wrapper)
                return "", wrapper
            return wrapper[: control.start()], wrapper[control.start() :]

        def ids(text: str) -> tuple[int, ...]:
            return tuple(tokenizer.encode(text, add_special_tokens=False))

        before_system, after_system, _ = template_parts([("system", system), ("user", user)])
        dialogue = [("user", user), ("assistant", assistant), ("user", again)]
        before_user, after_user, after_assistant, _ = template_parts(dialogue)
        after_ids = ids(after_assistant)
        if not after_ids or after_ids[0] not in names:
            raise UserError(f"{where}: its chat template does not end an assistant turn with a control token")
        # The generation prompt (what precedes a sampled turn) must be what the template shows in past turns too.
        _, prompt_text = template_parts([("user", user)], generation=True)
        if prompt_text != after_user:
            raise UserError(
                f"{where}: its generation prompt {prompt_text!r} differs from how past assistant turns begin "
                f"({after_user!r}), so a growing dialogue would change its own past"
            )
        system_tail, system_to_user = split_tail(after_system)
        user_tail, user_to_assistant = split_tail(after_user)
        wrappers = [ids(text) for text in (before_system, system_to_user, before_user, user_to_assistant)]
        chat = cls(
            tokenizer=tokenizer,
            before_system=wrappers[0],
            system_to_user=wrappers[1],
            before_user=wrappers[2],
            user_to_assistant=wrappers[3],
            end_of_turn=after_ids[0],
            assistant_to_user=after_ids[1:],
            system_tail=system_tail,
            user_tail=user_tail,
            control_ids=frozenset(names),
            turn_ids=frozenset(names).intersection(after_ids + sum(wrappers, ())),
            control_pattern=pattern,
        )
        chat.check(where)
        return chat

    def follow(
        self,
        turns: Sequence[ChatTurn],
        shown: int,
        text: Callable[[], str],
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> tuple[bool, list[Part]]:
        """See `inference.chat.ChatFormat`. A dialogue always goes on: no template of this kind rewrites a past turn."""
        if tools is not None:
            return True, format_turns(self, turns[shown:], () if shown else tools, continues=shown > 0)
        parts: list[Part] = []
        for number in range(shown, len(turns)):
            turn, after = turns[number], turns[number - 1].role if number else None
            if turn.role == "system":
                parts += [("template", self.before_system), ("system", self.encode(turn.text + self.system_tail))]
            elif turn.role == "assistant":
                parts.append(("assistant", (*self.encode(turn.text), self.end_of_turn)))
            else:
                between = self.before_user if after is None else self.assistant_to_user
                between = self.system_to_user if after == "system" else between
                message = self.encode(turn.text + self.user_tail)
                parts += [("template", between), ("user", message), ("template", self.user_to_assistant)]
        return True, parts

    def check(self, where: str) -> None:
        """Check that joined wrappers and text equal the template's own ids on clean text; UserError if they differ."""
        system, turns = "Answer in one word.", ["Where is Oslo?", "Norway.", '{"a": [1, 2]}', "Peru", "1 more"]
        for with_system in (True, False):
            messages = [("system", system)] if with_system else []
            messages += [("user" if i % 2 == 0 else "assistant", text) for i, text in enumerate(turns)]
            joined = self.follow([ChatTurn(AUTHORS[role], text) for role, text in messages], 0, str)[1]
            rendered = render(self.tokenizer, messages, True, where)
            expected = self.tokenizer.encode(rendered, add_special_tokens=False)
            if [i for _, ids in joined for i in ids] != expected:
                raise UserError(
                    f"{where}: the chat template could not be split into wrappers token for token: {rendered!r}"
                )
