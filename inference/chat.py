"""Chat formats as token ids: wrappers derived from a model's own chat template, untrusted text that cannot forge them.

Templates render text; we need ids, and need to know who wrote each. So the template is rendered once around
sentinels, the text between them becomes the wrappers, and `check` asserts that joining wrappers and clean text
gives the ids of the rendered template. What users, documents and models write is encoded with control tokens
split into ordinary ones: `<|im_start|>` in a passage is seven harmless tokens, never a turn.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from jinja2 import TemplateError

from ratchet.errors import UserError, first_line
from ratchet.text import whole_text

SENTINEL = "\ue000{}\ue001"
# Some templates print today's date; a fixed one keeps prompts, and so content keys and caches, the same every day.
FIXED_DATE = "26 Jul 2024"
FIXED_CLOCK = "{% macro strftime_now(format) %}" + FIXED_DATE + "{% endmacro %}{{ '' }}"

logger = logging.getLogger(__name__)


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
    system_tail: str
    user_tail: str
    """Ordinary text that the template puts right behind a message (Falcon 3: a line break). It is encoded together
    with the message, as in the template's own text, where '?' and the line break may be one token."""
    control_ids: frozenset[int]
    turn_ids: frozenset[int]
    """The control tokens that this template marks turns with."""
    control_pattern: re.Pattern[str]

    @classmethod
    def from_tokenizer(cls, tokenizer: Any, where: str = "the model") -> ChatFormat:
        if not getattr(tokenizer, "chat_template", None):
            raise UserError(
                f"{where} has no chat template, so its turns cannot be formatted; use an instruct model, or add "
                "chat_template.jinja to its folder"
            )
        system, user, assistant, again = (SENTINEL.format(name) for name in ("s", "u", "a", "v"))
        names = _control_names(tokenizer)
        pattern = re.compile("|".join(map(re.escape, sorted(names.values(), key=len, reverse=True))) or r"(?!)")

        def cut(messages: list[tuple[str, str]], generation: bool = False) -> list[str]:
            """The template's own text before, between and after the messages."""
            text = render(tokenizer, messages, generation, where)
            pieces = []
            for role, mark in messages:
                before, found, text = text.partition(mark)
                if not found:
                    raise UserError(
                        f"{where}: its chat template does not show the {role} message as it is, so its turns cannot "
                        "be told apart; templates that rewrite messages are not supported"
                    )
                pieces.append(before)
            return [*pieces, text]

        def tail(wrapper: str) -> tuple[str, str]:
            """(ordinary text, what follows from the first control token on)."""
            control = pattern.search(wrapper)
            if control is None:
                # The names of the roles are ordinary text: nothing keeps a passage from imitating them.
                logger.warning("%s: no control token is in %r, so a document could imitate a turn", where, wrapper)
                return "", wrapper
            return wrapper[: control.start()], wrapper[control.start() :]

        def ids(text: str) -> tuple[int, ...]:
            return tuple(tokenizer.encode(text, add_special_tokens=False))

        before_system, after_system, _ = cut([("system", system), ("user", user)])
        dialogue = [("user", user), ("assistant", assistant), ("user", again)]
        before_user, after_user, after_assistant, _ = cut(dialogue)
        after_ids = ids(after_assistant)
        if not after_ids or after_ids[0] not in names:
            raise UserError(f"{where}: its chat template does not end an assistant turn with a control token")
        # The generation prompt (what precedes a sampled turn) must be what the template shows in past turns too.
        _, prompt_text = cut([("user", user)], generation=True)
        if prompt_text != after_user:
            raise UserError(
                f"{where}: its generation prompt {prompt_text!r} differs from how past assistant turns begin "
                f"({after_user!r}), so a growing dialogue would change its own past"
            )
        system_tail, system_to_user = tail(after_system)
        user_tail, user_to_assistant = tail(after_user)
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

    def encode(self, text: str) -> tuple[int, ...]:
        """Ids of untrusted text: no control token is among them, whatever the text says.

        Half surrogate pairs, which JSON can hold and UTF-8 cannot, become question marks.
        """
        text = whole_text(text)
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

    def disarm(self, text: str) -> str:
        """`text` with a zero-width space in every control token, for servers that encode it themselves."""
        while self.control_pattern.search(text):
            text = self.control_pattern.sub(lambda match: match[0][0] + "\u200b" + match[0][1:], text)
        return text

    def decode(self, ids: Sequence[int]) -> str:
        # Clean-up would drop blanks before punctuation: the text must be what the ids say.
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))

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
        """Assert that joined wrappers and text equal the template's own ids on clean text."""
        system, turns = "Answer in one word.", ["Where is Oslo?", "Norway.", '{"a": [1, 2]}', "Peru", "1 more"]
        for with_system in (True, False):
            messages = [("system", system)] if with_system else []
            messages += [("user" if i % 2 == 0 else "assistant", text) for i, text in enumerate(turns)]
            ours = (
                [*self.before_system, *self.encode(system + self.system_tail), *self.system_to_user]
                if with_system
                else [*self.before_user]
            )
            for i, text in enumerate(turns):
                if i % 2 == 0:
                    ours += (*self.encode(text + self.user_tail), *self.user_to_assistant)
                else:
                    ours += (*self.encode(text), self.end_of_turn, *self.assistant_to_user)
            rendered = render(self.tokenizer, messages, True, where)
            theirs = self.tokenizer.encode(rendered, add_special_tokens=False)
            if ours != theirs:
                raise UserError(f"{where}: the chat template could not be taken apart token for token: {rendered!r}")


def _control_names(tokenizer: Any) -> dict[int, str]:
    """Control tokens by id: special and added ones. Single letters and blanks, which some vocabularies add, are not."""
    known = set(tokenizer.all_special_ids) | set(tokenizer.added_tokens_decoder)
    names = {i: str(tokenizer.convert_ids_to_tokens(i)) for i in known}
    return {i: name for i, name in names.items() if len(name.strip()) > 1}


def render(tokenizer: Any, messages: list[tuple[str, str]], generation: bool = False, where: str = "the model") -> str:
    """The template's own text for (role, content) messages."""
    try:
        template = tokenizer.get_chat_template()
        text = tokenizer.apply_chat_template(
            [{"role": role, "content": content} for role, content in messages],
            chat_template=FIXED_CLOCK + template if "strftime_now" in template else template,
            tokenize=False,
            add_generation_prompt=generation,
            date_string=FIXED_DATE,
        )
    except (TemplateError, TypeError, ValueError) as error:
        roles = ", ".join(role for role, _ in messages)
        raise UserError(f"{where}: its chat template refuses a dialogue of {roles}: {error}") from error
    return str(text)


def load_tokenizer(path: str, revision: str | None = None) -> Any:
    """The tokenizer of a local folder or hub name; never runs code that comes with a model."""
    looks_local = path.startswith((".", "/", "~")) or path.count("/") != 1 or Path(path).parent.is_dir()
    if looks_local and not Path(path).is_dir():
        raise UserError(f"{path}: no such model folder; for the demo's model run `make model`")
    try:
        if _is_plain(Path(path)):
            from transformers import PreTrainedTokenizerFast

            return PreTrainedTokenizerFast.from_pretrained(path, trust_remote_code=False)
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(path, revision=revision, trust_remote_code=False)
    except Exception as error:  # the readers of damaged files raise anything, bare Exception included
        raise UserError(f"{path}: cannot load its tokenizer: {first_line(error)}") from error


def _is_plain(folder: Path) -> bool:
    """Whether AutoTokenizer would take the general class, as it does for the folders that we make.

    To take it at once saves every command some three seconds: AutoTokenizer imports torch to find it.
    """
    model = folder / "config.json"
    try:
        kind = json.loads(model.read_bytes())["model_type"] if model.exists() else "llama"
        tokenizer = json.loads((folder / "tokenizer_config.json").read_bytes())
        return (kind, tokenizer["tokenizer_class"]) == ("llama", "TokenizersBackend") and "auto_map" not in tokenizer
    except (OSError, ValueError, KeyError, TypeError):
        return False
