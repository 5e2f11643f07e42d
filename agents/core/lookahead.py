"""Parts of what a model said: a look-ahead, of which a system keeps as much as it wants, stops, and sentences."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from ratchet.core.errors import UserError
from ratchet.inference.chat import Dialogue
from ratchet.inference.completion import Completion
from ratchet.inference.thoughts import count_ids


@dataclass(frozen=True)
class Draft:
    """A model's words in a look-ahead, and the part of them that is used."""

    ids: tuple[int, ...]
    """As sampled, the end-of-turn token included where the model ended its turn."""
    text: str
    """Without the end-of-turn token."""
    logprobs: tuple[float, ...]
    """Log-probability of each id, under the unmodified model; empty where none were asked for."""
    ended: bool
    """The model ended its turn: the last id is the end-of-turn token."""
    decode: Callable[[Sequence[int]], str]
    kept: int = 0
    """The number of ids that are used."""

    @property
    def used(self) -> tuple[int, ...]:
        """The ids that are used, without the end-of-turn token: the next answer starts with them."""
        return self.ids[: self.kept - 1] if self.finished else self.ids[: self.kept]

    @property
    def finished(self) -> bool:
        """All of it is used, and the model ended its turn with it."""
        return self.ended and self.kept == len(self.ids)

    def tokens(self, characters: int) -> int:
        """Count the ids of the first so many characters of `text`; all of them, the end-of-turn token included, where
        nothing but blanks follows."""
        if not self.text[characters:].strip():
            return len(self.ids)
        return count_ids(self.ids, self.text[:characters], self.decode)


def cut_at_stop(completion: Completion, stop: Sequence[str], decode: Callable[[Sequence[int]], str]) -> Completion:
    """The completion as if it had been stopped at the first of these texts: its text ends before that, and its ids with
    the token that completes it. The rest was never read by anybody, so it is left out of the record."""
    stops = [(at, text) for text in stop if text and (at := completion.text.find(text)) >= 0]
    if not stops:
        return completion
    at, text = min(stops)
    ids = completion.ids[: count_ids(completion.ids, completion.text[: at + len(text)], decode)]
    return replace(completion, ids=ids, text=completion.text[:at], finish_reason="stop", logprobs=None)


def check_continues(dialogue: Dialogue, where: str) -> None:
    """Raises UserError where a begun answer cannot be continued token by token. `where`: who would do it."""
    if dialogue.chat.is_text:
        raise UserError(
            f"{where} continues an answer that has started, token by token, and models.{dialogue.model} is reached as "
            "text (engine: chat-api); play this role with an open model"
        )
    if dialogue.chat.reply_opening:
        raise UserError(
            f"{where} continues an answer token by token, and the prompts of models.{dialogue.model} begin a thought; "
            "set its template: {enable_thinking: false}, where it knows that"
        )


ENDING = re.compile(r"(?<![.!?…])[.!?…]+[\"'”’)\]]*(?=\s|$)|[。！？]+[」』”’）]*|\n")
SHORT = {"mr", "mrs", "ms", "dr", "prof", "st", "mt", "gen", "col", "lt", "sgt", "capt", "rev", "hon", "jr", "sr"}
SHORT |= {"vs", "ca", "approx", "inc", "ltd", "corp", "e.g", "i.e"}
"""Abbreviations whose full stop ends no sentence."""
BEFORE_NUMBERS = {"no", "nos", "vol", "pp", "jan", "feb", "mar", "apr", "jun", "jul", "aug", "sep", "sept", "oct"}
BEFORE_NUMBERS |= {"nov", "dec"}
"""Those that are abbreviations where a number follows."""
INITIAL = re.compile(r"(\w\.)*[^\W\d]")


def first_sentence(text: str) -> int:
    """The length of the first sentence, blanks before it included; that of the text where no sentence ends.

    A line break ends a sentence. A full stop does not where it belongs to an abbreviation, an initial or the number of
    a list's item, nor where the text goes on with a small letter.
    """
    start = len(text) - len(text.lstrip())
    for ending in ENDING.finditer(text, start):
        after = re.compile(r"\S").search(text, ending.end())
        if not ending[0].startswith(".") or after is None:
            return ending.end()
        word = text[max(start, ending.start() - 20) : ending.start()].split()[-1:]
        last = word[0].lstrip("\"'“‘([").lower() if word else ""
        item = text[start : ending.start()].isdigit()
        short = last in SHORT or (last in BEFORE_NUMBERS and after[0].isdigit())
        if not (item or short or INITIAL.fullmatch(last) or after[0].islower()):
            return ending.end()
    return len(text)


def sentences(text: str) -> Iterator[str]:
    """The sentences of a text, without the blanks around them."""
    while text.strip():
        end = first_sentence(text)
        yield text[:end].strip()
        text = text[end:]
