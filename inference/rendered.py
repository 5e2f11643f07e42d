"""The chat format of a model whose template rewrites the past, or cannot be split into wrappers for another reason.

Templates of thinking models drop the thoughts of past turns, and begin a reply in another way than past ones. So every
prompt is rendered by the template from all messages. Where it begins with the row so far, the row goes on, and what was
sampled stays as it was sampled; where it does not, a new row begins, in which what was said before is context.

Messages are rendered as sentinels, so that nothing in them can steer the template, and encoded with control tokens
split, so that they cannot forge a turn.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from ratchet.core.errors import UserError
from ratchet.core.records import Author, content_key
from ratchet.inference.messages import (
    Piece,
    encode_pieces,
    format_turns,
    harmless,
    template_ids,
    template_message,
    with_description,
)
from ratchet.inference.rendering import SENTINEL, render_messages
from ratchet.inference.thoughts import CLOSING, OPENING, Thinking
from ratchet.inference.token_format import TokenFormat, control_names, control_pattern
from ratchet.inference.turns import AUTHORS, ChatTurn, Part

MARK = re.compile(re.escape(SENTINEL).replace(r"\{\}", r"([a-z]\d+)"))
THOUGHT_KEYS = ("reasoning_content", "reasoning", "thinking")
"""What templates call an assistant's thought."""
JOIN = "\n\n"
"""Between messages that are joined."""


@dataclass(frozen=True, kw_only=True, eq=False)
class RenderedFormat(TokenFormat):
    """See `inference.chat.ChatFormat`."""

    where: str
    """The model, for errors."""
    folds_system: bool = False
    """Whether the system message is put before the first user message, since the template takes none."""
    alternates: bool = False
    """Whether messages of one role in a row are joined, since the template demands that roles alternate."""
    joins_heading: bool = False
    """Whether ordinary text right before a message is encoded together with it, as text behind it is."""
    lists_content: bool = False
    """Whether the template takes a message's content as a list of parts alone."""
    reply_opening: str = ""
    thinking: Thinking | None = None
    kept: bool | None = None
    """Whether later turns are shown the thoughts of earlier ones; None: as the template does."""

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

    @property
    def digest(self) -> str:
        """See `inference.chat.ChatFormat`."""
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
        """See `inference.chat.ChatFormat`."""
        if turns[-1].role in ("system", "assistant"):  # the template is asked where the model is
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
        """The prompt as the template writes it, cut at the messages."""
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
        for turn in self._joined(turns):
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

    def _joined(self, turns: Sequence[ChatTurn]) -> list[list[ChatTurn]]:
        """The turns of each message: one, or several that are joined."""
        groups: list[list[ChatTurn]] = []
        for turn in turns:
            last = groups[-1][-1] if groups else None
            folded = self.folds_system and turn.role == "user" and last is not None and last.role == "system"
            again = self.alternates and turn.role == "user" and last is not None and last.role == "user"
            if folded or again:
                groups[-1].append(turn)
            else:
                groups.append([turn])
        return groups

    def _encode_pieces(self, pieces: Sequence[Piece]) -> list[Part]:
        return encode_pieces(self, pieces, self.joins_heading)

    def _probe_messages(self) -> RenderedFormat:
        """With the settings under which the template shows a system message and several turns of both."""
        system, user, assistant = ChatTurn("system", "s"), ChatTurn("user", "u"), ChatTurn("assistant", "a")
        problem: UserError | None = None
        for lists, folds in itertools.product((False, True), (False, True)):
            chat = replace(self, lists_content=lists, folds_system=folds)
            try:
                chat._pieces([system, user, assistant, user], ())
            except UserError as error:
                problem = problem or error
                continue
            try:
                chat._pieces([user, user], ())
            except UserError:
                chat = replace(chat, alternates=True)
            return chat
        assert problem is not None
        raise problem

    def _probe_turns(self) -> dict[str, Any]:
        """How a turn of the assistant begins and ends."""
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
        """The control token that the template writes first behind the last reply."""
        pieces = self._pieces(turns, (), generation)
        at = max((n for n, piece in enumerate(pieces) if (piece.author, piece.text) == ("assistant", "a")), default=-1)
        if at < 0 or at + 1 == len(pieces):
            return None
        found = self.control_pattern.search(pieces[at + 1].text)
        return template_ids(self, found[0])[0] if found else None

    def _thinking(self, starts: bool, prompt: str, behind: tuple[int, ...]) -> Thinking | None:
        """How the model thinks, where the template names one control token that opens thoughts and one that closes
        them. `starts`: the prompt, which ends so, begins a thought. `behind`: `_behind_thought`."""
        template = str(self.tokenizer.chat_template)
        ends, opens = self._control_tokens(CLOSING, template), self._control_tokens(OPENING, template)
        if len(ends) != 1 or (not starts and (len(opens) != 1 or CLOSING.search(prompt))):
            return None
        return Thinking(None if starts else opens.pop(), end := ends.pop(), behind if end in behind else (end,))

    def _control_tokens(self, pattern: re.Pattern[str], template: str) -> set[int]:
        """The control tokens that marks of a thought are."""
        names = {found[0] for found in pattern.finditer(template) if self.control_pattern.fullmatch(found[0])}
        return {template_ids(self, name)[0] for name in names}

    def _behind_thought(self) -> tuple[int, ...]:
        """The ids of what the template writes between the thought of the last reply and its answer; none where it shows
        no thoughts."""
        pieces = self._pieces([ChatTurn("user", "u"), ChatTurn("assistant", "a", "t")], (), generation=False)
        texts = [piece.text for piece in pieces]
        if not {"t", "a"} <= set(texts):
            return ()
        return template_ids(self, "".join(texts[texts.index("t") + 1 : texts.index("a")]))

    def check(self) -> None:
        """Check that the encoded pieces equal the template's own ids on clean text; UserError if they differ."""
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
    """What stands behind the first characters."""
    kept: list[Piece] = []
    for piece in pieces:
        if characters < len(piece.text):
            kept.append(Piece(piece.author, piece.text[characters:]))
        characters = max(0, characters - len(piece.text))
    return kept
