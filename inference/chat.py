"""Chat formats as token ids: wrappers derived from a model's own chat template, untrusted text that cannot forge them.

Templates render text; we need ids, and need to know who wrote each. So the template is rendered once around
sentinels, the text between them becomes the wrappers, and `check` asserts that joining wrappers and clean text
gives the ids of the rendered template. What users, documents and models write is encoded with control tokens
split into ordinary ones: `<|im_start|>` in a passage is seven harmless tokens, never a turn.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ratchet.errors import UserError

SENTINEL = "\ue000{}\ue001"
# Some templates print today's date; a fixed one keeps prompts, and so content keys and caches, the same every day.
FIXED_DATE = "26 Jul 2024"


@dataclass(frozen=True)
class ChatFormat:
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
    control_ids: frozenset[int]
    control_pattern: re.Pattern[str]

    @classmethod
    def from_tokenizer(cls, tokenizer: Any, where: str = "the model") -> ChatFormat:
        if not getattr(tokenizer, "chat_template", None):
            raise UserError(
                f"{where} has no chat template, so its turns cannot be formatted; use an instruct model, or add "
                "chat_template.jinja to its folder"
            )
        system, user, assistant, again = (SENTINEL.format(name) for name in ("s", "u", "a", "v"))

        def cut(messages: list[tuple[str, str]], *marks: str) -> list[str]:
            text = render(tokenizer, messages)
            pieces = []
            for mark in marks:
                before, found, text = text.partition(mark)
                if not found:
                    raise UserError(
                        f"{where}: its chat template does not show the {messages[-1][0]} message as it is, so its "
                        "turns cannot be told apart; templates that rewrite messages are not supported"
                    )
                pieces.append(before)
            return [*pieces, text]

        before_system, system_to_user, _ = cut([("system", system), ("user", user)], system, user)
        dialogue = [("user", user), ("assistant", assistant), ("user", again)]
        before_user, user_to_assistant, after_assistant, _ = cut(dialogue, user, assistant, again)

        def ids(text: str) -> tuple[int, ...]:
            return tuple(tokenizer.encode(text, add_special_tokens=False))

        after_ids = ids(after_assistant)
        added = {token_id: str(token) for token_id, token in tokenizer.added_tokens_decoder.items()}
        end = next((i for i, token in enumerate(after_ids) if token in added), None)
        if end != 0:
            raise UserError(f"{where}: its chat template does not end an assistant turn with a control token")
        # The generation prompt (what precedes a sampled turn) must be what the template shows in past turns too.
        prompt_text = render(tokenizer, [("user", user)], generation=True).partition(user)[2]
        if prompt_text != user_to_assistant:
            raise UserError(
                f"{where}: its generation prompt {prompt_text!r} differs from how past assistant turns begin "
                f"({user_to_assistant!r}), so a growing dialogue would change its own past"
            )
        special = set(tokenizer.all_special_ids) | set(added)
        names = sorted({tokenizer.convert_ids_to_tokens(i) for i in special}, key=len, reverse=True)
        chat = cls(
            tokenizer=tokenizer,
            before_system=ids(before_system),
            system_to_user=ids(system_to_user),
            before_user=ids(before_user),
            user_to_assistant=ids(user_to_assistant),
            end_of_turn=after_ids[0],
            assistant_to_user=after_ids[1:],
            control_ids=frozenset(special),
            control_pattern=re.compile("|".join(re.escape(name) for name in names if len(name) > 1) or r"(?!)"),
        )
        chat.check(where)
        return chat

    def encode(self, text: str) -> tuple[int, ...]:
        """Ids of untrusted text: no control token is among them, whatever the text says."""
        if not self.control_pattern.search(text):
            return tuple(self.tokenizer.encode(text, add_special_tokens=False))
        found = self.tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)
        if self.control_ids.isdisjoint(found):
            return tuple(found)
        # Added tokens that are not marked special are not split by the tokenizer: cut inside each by hand.
        pieces: list[int] = []
        at = 0
        for match in self.control_pattern.finditer(text):
            middle = (match.start() + match.end()) // 2
            pieces += self.tokenizer.encode(text[at:middle], add_special_tokens=False, split_special_tokens=True)
            at = middle
        pieces += self.tokenizer.encode(text[at:], add_special_tokens=False, split_special_tokens=True)
        if not self.control_ids.isdisjoint(pieces):
            raise UserError("a text could not be encoded without control tokens; this tokenizer is not supported")
        return tuple(pieces)

    def decode(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=False))

    def check(self, where: str) -> None:
        """Assert that joined wrappers and text equal the template's own ids on clean text."""
        system, turns = "Answer in one word.", ["Where is Oslo?", "Norway.", "And Lima?", "Peru.", "Thanks!"]
        for with_system in (True, False):
            messages = [("system", system)] if with_system else []
            messages += [("user" if i % 2 == 0 else "assistant", text) for i, text in enumerate(turns)]
            ours = (
                [*self.before_system, *self.encode(system), *self.system_to_user]
                if with_system
                else [*self.before_user]
            )
            for i, text in enumerate(turns):
                ours += self.encode(text)
                ours += self.user_to_assistant if i % 2 == 0 else (self.end_of_turn, *self.assistant_to_user)
            rendered = render(self.tokenizer, messages, generation=True)
            theirs = self.tokenizer.encode(rendered, add_special_tokens=False)
            if ours != theirs:
                raise UserError(f"{where}: the chat template could not be taken apart token for token: {rendered!r}")


def render(tokenizer: Any, messages: list[tuple[str, str]], generation: bool = False) -> str:
    """The template's own text for (role, content) messages."""
    return str(
        tokenizer.apply_chat_template(
            [{"role": role, "content": content} for role, content in messages],
            tokenize=False,
            add_generation_prompt=generation,
            date_string=FIXED_DATE,
        )
    )


def load_tokenizer(path: str, revision: str | None = None) -> Any:
    """The tokenizer of a local folder or hub name; never runs code that comes with a model."""
    from transformers import AutoTokenizer

    looks_local = path.startswith((".", "/", "~")) or path.count("/") != 1 or Path(path).parent.is_dir()
    if looks_local and not Path(path).is_dir():
        raise UserError(f"{path}: no such model folder; for the demo's model run `make model`")
    try:
        return AutoTokenizer.from_pretrained(path, revision=revision)
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot load its tokenizer: {str(error).splitlines()[0]}") from error
