"""Chat formats of models whose tokenizer is known, and which of them a model has.

Templates render text; we need ids, and need to know who wrote each. Messages are rendered as sentinels, so that nothing
in them can steer the template, and encoded with control tokens split, so that they cannot forge a turn: `<|im_start|>`
in a passage is seven harmless tokens. Where the template is a chain of fixed wrappers around messages, as most are, it
is taken apart once (`WrapperFormat`). Templates of thinking models drop the thoughts of past turns, and begin a reply
in another way than past ones; these write every prompt from all messages (`RenderedFormat`). Where it begins with the
row so far, the row goes on, and what was sampled stays as it was sampled; else a new row begins, in which what was said
before is context. The second would do for all templates, but a reply that begins or ends with blanks would begin a new
row where the template trims it (Llama 3.2), and a turn would take more than twice as long.
"""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, ClassVar

from ratchet.core.config import ModelConfig, ThoughtsConfig
from ratchet.core.errors import UserError
from ratchet.core.records import Author, content_key
from ratchet.inference.chat import ChatFormat
from ratchet.inference.completion import AUTHORS, ChatTurn, Part
from ratchet.inference.thoughts import CLOSING, OPENING, Thinking
from ratchet.inference.token_format import (
    JOIN,
    Piece,
    TokenFormat,
    control_names,
    control_pattern,
    encode_pieces,
    format_turns,
    harmless,
    template_ids,
    template_message,
    with_description,
)
from ratchet.inference.tokenizer import SENTINEL, check_template, load_tokenizer, render, render_messages

MARK = re.compile(re.escape(SENTINEL).replace(r"\{\}", r"([a-z]\d+)"))
THOUGHT_KEYS = ("reasoning_content", "reasoning", "thinking")
"""Templates' names of an assistant's thought."""


@dataclass(frozen=True, kw_only=True, eq=False)
class RenderedFormat(TokenFormat):
    """See `inference.chat.ChatFormat`."""

    where: str
    """The model, for errors."""
    joins_heading: bool = False
    """True if ordinary text right before a message is encoded together with it, as text behind it is."""
    reply_opening: str = ""
    thinking: Thinking | None = None
    kept: bool | None = None
    """True if later turns are shown the thoughts of earlier ones; None: as the template does."""

    @classmethod
    def from_tokenizer(
        cls, tokenizer: Any, where: str = "the model", variables: Mapping[str, Any] | None = None
    ) -> RenderedFormat:
        """The format of a tokenizer's template, checked. UserError for a template that cannot be used."""
        names = control_names(tokenizer)
        plain = cls(
            tokenizer=tokenizer,
            end_of_turn=-1,
            control_ids=frozenset(names),
            turn_ids=frozenset(),
            control_pattern=control_pattern(names),
            where=where,
            variables=variables or {},
        )
        chat = plain._probe_messages()
        chat = replace(chat, **chat._probe_turns())
        try:
            chat.check()
        except UserError:
            chat = replace(chat, joins_heading=True)
            chat.check()
        return chat

    @cached_property
    def digest(self) -> str:
        budget = self.thinking.budget if self.thinking else None
        own = [] if budget is None and self.kept is None else [budget, self.kept]
        plain = super().digest
        return content_key(plain, dict(self.variables), *own)[:16] if self.variables or own else plain

    def follow(
        self,
        turns: Sequence[ChatTurn],
        shown: int,
        text: Callable[[], str],
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> tuple[bool, list[Part]]:
        if turns[-1].role == "assistant" or [turn.role for turn in turns] == ["system"]:  # asked where the model is
            return True, []
        pieces = self._pieces(turns, tools or ())
        before = text()
        if not "".join(piece.text for piece in pieces).startswith(before):
            if self.kept and shown:
                # Where the template ends a turn by beginning the next, what follows may not tell where that was.
                with suppress(UserError):
                    return True, format_turns(self, turns[shown:], continues=True)
            return False, self._encode_pieces(pieces)
        return True, self._encode_pieces(_behind(pieces, len(before)))

    def _pieces(
        self, turns: Sequence[ChatTurn], tools: Sequence[Mapping[str, Any]], generation: bool = True
    ) -> list[Piece]:
        texts: dict[str, tuple[Author, str]] = {}
        numbers = itertools.count()

        def mark(author: Author, text: str) -> str:
            """Stands for a text; blanks around it are left to the template, which may strip them."""
            inner = text.strip()
            if not inner:
                return text
            name = f"m{next(numbers)}"
            texts[name] = (author, inner)
            return text.replace(inner, SENTINEL.format(name), 1)

        messages: list[dict[str, Any]] = []
        for turn in self.joined(turns):
            content = JOIN.join(mark(AUTHORS[one.role], one.text) for one in turn)
            message = template_message(self, turn[-1], content)
            if turn[-1].role == "assistant" and turn[-1].thought and self.kept is not False:
                message |= dict.fromkeys(THOUGHT_KEYS, mark("assistant", turn[-1].thought))
            if self.lists_content:
                message["content"] = [{"type": "text", "text": content}]
            messages.append(message)
        rendered = render_messages(
            self.tokenizer,
            messages,
            generation,
            self.where,
            harmless(self, [with_description(tool) for tool in tools]),
            self.variables,
        )
        pieces, at = [], 0
        for found in MARK.finditer(rendered):
            pieces += [Piece("template", rendered[at : found.start()]), Piece(*texts.pop(found[1], ("template", "")))]
            at = found.end()
        if lost := next((author for author, _ in texts.values() if author != "assistant"), None):
            raise UserError(f"{self.where}: its chat template does not show the {lost} message as it is")
        return [piece for piece in (*pieces, Piece("template", rendered[at:])) if piece.text]

    def _encode_pieces(self, pieces: Sequence[Piece]) -> list[Part]:
        return encode_pieces(self, pieces, self.joins_heading)

    def _probe_messages(self) -> RenderedFormat:
        """Find the settings under which the template shows a system message and several turns of both."""
        system, user, assistant = ChatTurn("system", "s"), ChatTurn("user", "u"), ChatTurn("assistant", "a")
        problem: UserError | None = None
        for lists, folds in itertools.product((False, True), (False, True)):
            chat = replace(self, lists_content=lists, folds_system=folds)
            try:
                chat._pieces([system, user, assistant, user], ())
            except UserError as error:
                problem = problem or error
                continue
            return chat
        assert problem is not None
        raise problem

    def _probe_turns(self) -> dict[str, Any]:
        user, assistant = ChatTurn("user", "u"), ChatTurn("assistant", "a", "t")
        ended = self._after_reply([user, assistant], False)
        if ended is None:
            ended = self._after_reply([user, assistant, user], True)
        if ended is None:
            raise UserError(f"{self.where}: its chat template does not end an assistant's turn with a control token")
        prompt = self._pieces([user], ())
        opening = prompt[-1].text
        before = "".join(piece.text for piece in prompt if piece.author == "template")
        thought = OPENING.search(opening)
        starts = thought is not None and not CLOSING.search(opening, thought.end())
        # The marks of a thought, and what stands between a thought and the answer, are the model's own.
        before = CLOSING.sub("", OPENING.sub("", before))
        behind = self._behind_thought()
        turn_ids = {*template_ids(self, before)} - {*behind}
        return {
            "end_of_turn": ended,
            "turn_ids": self.control_ids & (turn_ids | {ended}),
            "reply_opening": opening[thought.start() :] if thought and starts else "",
            "thinking": self._thinking(starts, opening, behind),
        }

    def _after_reply(self, turns: Sequence[ChatTurn], generation: bool) -> int | None:
        pieces = self._pieces(turns, (), generation)
        at = max((n for n, piece in enumerate(pieces) if (piece.author, piece.text) == ("assistant", "a")), default=-1)
        if at < 0 or at + 1 == len(pieces):
            return None
        found = self.control_pattern.search(pieces[at + 1].text)
        return template_ids(self, found[0])[0] if found else None

    def _thinking(self, starts: bool, prompt: str, behind: tuple[int, ...]) -> Thinking | None:
        """Return the marks of thoughts, where the template names one control token that opens them and one that closes
        them. `starts`: the prompt, which ends so, begins a thought. `behind`: `_behind_thought`."""
        template = str(self.tokenizer.chat_template)
        ends, opens = self._control_tokens(CLOSING, template), self._control_tokens(OPENING, template)
        if len(ends) != 1 or (not starts and (len(opens) != 1 or CLOSING.search(prompt))):
            return None
        return Thinking(None if starts else opens.pop(), end := ends.pop(), behind if end in behind else (end,))

    def _control_tokens(self, pattern: re.Pattern[str], template: str) -> set[int]:
        names = {found[0] for found in pattern.finditer(template) if self.control_pattern.fullmatch(found[0])}
        return {template_ids(self, name)[0] for name in names}

    def _behind_thought(self) -> tuple[int, ...]:
        """Return the ids of what the template writes between the thought of the last reply and its answer; none where
        it shows no thoughts."""
        pieces = self._pieces([ChatTurn("user", "u"), ChatTurn("assistant", "a", "t")], (), generation=False)
        texts = [piece.text for piece in pieces]
        if not {"t", "a"} <= set(texts):
            return ()
        return template_ids(self, "".join(texts[texts.index("t") + 1 : texts.index("a")]))

    def check(self) -> None:
        """Raise UserError where the encoded pieces differ from the template's own ids on clean text."""
        words = ("Answer in one word.", "Where is Oslo?", "Norway.", "It is far.", '{"a": [1, 2]}', "Peru", "1 more")
        turns = [
            ChatTurn("system", words[0]),
            ChatTurn("user", words[1]),
            ChatTurn("assistant", words[2], words[3]),
            ChatTurn("user", words[4]),
            ChatTurn("assistant", words[5]),
            ChatTurn("user", words[6]),
        ]
        for dialogue in (turns, turns[1:], turns[:2]):
            pieces = self._pieces(dialogue, ())
            text = "".join(piece.text for piece in pieces)
            if [i for _, ids in self._encode_pieces(pieces) for i in ids] != list(template_ids(self, text)):
                raise UserError(f"{self.where}: its chat template cannot be encoded message by message: {text!r}")


def _behind(pieces: Sequence[Piece], characters: int) -> list[Piece]:
    kept: list[Piece] = []
    for piece in pieces:
        if characters < len(piece.text):
            kept.append(Piece(piece.author, piece.text[characters:]))
        characters = max(0, characters - len(piece.text))
    return kept


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
    """The ids behind end_of_turn, up to the next user message."""
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
        """A dialogue always goes on: no template of this kind rewrites a past turn."""
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
        """Raise UserError where joined wrappers and text differ from the template's own ids on clean text."""
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


AS_THE_TEMPLATE = ThoughtsConfig()
SWITCHES = ("enable_thinking", "thinking")
"""Templates' names of the variable that turns thoughts on or off."""


def open_chat_format(model: ModelConfig) -> WrapperFormat | RenderedFormat:
    """Open the format of a config's open model. Raises UserError where its tokenizer or template cannot be used."""
    return chat_format(load_tokenizer(model.path, model.revision), model.path, model.template, model.thoughts)


def chat_format(
    tokenizer: Any,
    where: str = "the model",
    variables: Mapping[str, Any] | None = None,
    thoughts: ThoughtsConfig = AS_THE_TEMPLATE,
) -> WrapperFormat | RenderedFormat:
    """Return wrappers where the template is exactly these, else the format that renders every prompt by the template.

    `variables`: of the template, such as enable_thinking. Raises UserError for a template that cannot be used, or knows
    no such settings.
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
    """Return the format of a role that thinks in another way than its model does elsewhere. Raises UserError."""
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
"""Forms of a thought before an answer."""


def keeps_thoughts(tokenizer: Any, where: str) -> bool:
    """Return whether the template shows a past reply as it was said, thoughts and all."""
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
