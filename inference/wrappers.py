"""The chat format of a model whose template is a chain of fixed wrappers around messages, as most templates are.

Templates render text; we need ids, and need to know who wrote each. So the template is rendered once around
sentinels, the text between them becomes the wrappers, and `check` asserts that joining wrappers and clean text
gives the ids of the rendered template. What users, documents and models write is encoded with control tokens
split into ordinary ones: `<|im_start|>` in a passage is seven harmless tokens, never a turn.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from inference.chat import Part
from inference.rendering import SENTINEL, render
from ratchet.errors import UserError
from ratchet.records import Author
from ratchet.text import replace_surrogates

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class WrapperFormat:
    """Wrappers of one chat template. The `*_ids` are template text with control tokens parsed."""

    tokenizer: Any
    before_system: tuple[int, ...]
    system_to_user: tuple[int, ...]
    before_user: tuple[int, ...]
    """Opens a dialogue without a system message (may hold the template's default one)."""
    user_to_assistant: tuple[int, ...]
    end_of_turn: int
    """The token with which the model ends its turn."""
    assistant_to_user: tuple[int, ...]
    """What follows end_of_turn up to the next user message."""
    system_tail: str
    user_tail: str
    """Ordinary text that the template puts right behind a message (Falcon 3: a line break). It is encoded together
    with the message, as in the template's own text, where '?' and the line break may be one token."""
    control_ids: frozenset[int]
    turn_ids: frozenset[int]
    """The control tokens that this template marks turns with."""
    control_pattern: re.Pattern[str]
    is_text: ClassVar[bool] = False

    @classmethod
    def from_tokenizer(cls, tokenizer: Any, where: str = "the model") -> WrapperFormat:
        """Derive the wrappers from a tokenizer's chat template. UserError for a template that is not supported."""
        if not getattr(tokenizer, "chat_template", None):
            raise UserError(
                f"{where} has no chat template, so its turns cannot be formatted; use an instruct model, or add "
                "chat_template.jinja to its folder"
            )
        system, user, assistant, again = (SENTINEL.format(name) for name in ("s", "u", "a", "v"))
        names = _control_names(tokenizer)
        pattern = re.compile("|".join(map(re.escape, sorted(names.values(), key=len, reverse=True))) or r"(?!)")

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

    def system(self, text: str) -> list[Part]:
        """The beginning of a dialogue with a system message."""
        return [("template", self.before_system), ("system", self.encode(text + self.system_tail))]

    def user(self, text: str, after: Author | None) -> list[Part]:
        """A user message and the opening of the assistant's turn."""
        between = {None: self.before_user, "system": self.system_to_user, "assistant": self.assistant_to_user}[after]
        message = self.encode(text + self.user_tail)
        return [("template", between), ("user", message), ("template", self.user_to_assistant)]

    def encode(self, text: str) -> tuple[int, ...]:
        """Ids of untrusted text: no control token is among them, whatever the text says.

        Lone surrogates, which JSON can hold and UTF-8 cannot, become question marks.
        """
        text = replace_surrogates(text)
        found = self._encode(text, split=False)
        if self.control_ids.isdisjoint(found):
            return tuple(found)
        found = self._encode(text)
        if self.control_ids.isdisjoint(found):
            return tuple(found)
        # Added tokens that are not marked special are not split by the tokenizer: cut each behind its first letter.
        found, at = [], 0
        while match := self.control_pattern.search(text, at):
            found += self._encode(text[at : match.start() + 1])
            at = match.start() + 1
        found += self._encode(text[at:])
        if not self.control_ids.isdisjoint(found):
            # Letters that the tokenizer first rewrites into those of a control token (a full-width <, say).
            found = [i for letter in text for i in self._encode(letter)]
        return tuple(i for i in found if i not in self.control_ids)

    def _encode(self, text: str, split: bool = True) -> list[int]:
        ids = self.tokenizer.encode(text, add_special_tokens=False, split_special_tokens=split, verbose=False)
        return list(ids)

    def escape_control_tokens(self, text: str) -> str:
        """`text` with a zero-width space in every control token, for servers that encode it themselves."""
        while self.control_pattern.search(text):
            text = self.control_pattern.sub(lambda match: match[0][0] + "\u200b" + match[0][1:], text)
        return text

    def count(self, ids: Sequence[int]) -> int:
        """How many of the context's tokens a dialogue of these ids takes."""
        return len(ids)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids, control tokens included."""
        # Not transformers' own: it may drop blanks before punctuation, and looks at every id in Python first, which
        # takes longer than all the rest.
        return str(self.tokenizer.backend_tokenizer.decode(list(ids), skip_special_tokens=False))

    @cached_property
    def vocabulary(self) -> int:
        """One more than the largest token id."""
        return max(self.tokenizer.get_vocab().values()) + 1

    @property
    def digest(self) -> str:
        """16 hexadecimal digits of the tokenizer and its template: equal ids for equal texts, equal digest."""
        template = str(self.tokenizer.chat_template)
        return hashlib.sha256((self.tokenizer.backend_tokenizer.to_str() + template).encode()).hexdigest()[:16]

    def check(self, where: str) -> None:
        """Check that joined wrappers and text equal the template's own ids on clean text; UserError if they differ."""
        system, turns = "Answer in one word.", ["Where is Oslo?", "Norway.", '{"a": [1, 2]}', "Peru", "1 more"]
        for with_system in (True, False):
            messages = [("system", system)] if with_system else []
            messages += [("user" if i % 2 == 0 else "assistant", text) for i, text in enumerate(turns)]
            joined = [*self.system(system)] if with_system else []
            for i, text in enumerate(turns):
                if i % 2 == 0:
                    after: Author | None = "assistant" if i else "system" if with_system else None
                    joined += self.user(text, after)
                else:
                    joined.append(("assistant", (*self.encode(text), self.end_of_turn)))
            rendered = render(self.tokenizer, messages, True, where)
            expected = self.tokenizer.encode(rendered, add_special_tokens=False)
            if [i for _, ids in joined for i in ids] != expected:
                raise UserError(
                    f"{where}: the chat template could not be split into wrappers token for token: {rendered!r}"
                )


def _control_names(tokenizer: Any) -> dict[int, str]:
    """Control tokens by id: special and added ones. Single letters and blanks, which some vocabularies add, are not."""
    known = set(tokenizer.all_special_ids) | set(tokenizer.added_tokens_decoder)
    names = {i: str(tokenizer.convert_ids_to_tokens(i)) for i in known}
    return {i: name for i, name in names.items() if len(name.strip()) > 1}
