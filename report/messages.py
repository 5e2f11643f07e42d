"""The full text of conversations, decoded from the token ids that the model saw and emitted, or as recorded."""

from __future__ import annotations

from collections.abc import Mapping

from ratchet.core.config import ModelConfig
from ratchet.core.errors import UserError
from ratchet.core.records import Conversation
from ratchet.inference.chat import ChatFormat
from ratchet.inference.chat_formats import open_chat_format

SpanTexts = tuple[tuple[str, ...], ...]
"""For each span the pieces of its text: ordinary text and control tokens in turn, ordinary text first."""


class MessageDecoder:
    """Decodes conversations with the tokenizers of the config's models. Each is loaded when it is first needed."""

    def __init__(self, models: Mapping[str, ModelConfig]) -> None:
        self.models = models
        self._formats: dict[str, ChatFormat | None] = {}
        self._repeats: dict[tuple[str, tuple[int, ...], bool], tuple[str, ...]] = {}
        self.problems: list[str] = []
        """Why the messages of a model cannot be shown, one sentence for each model."""

    def decode(self, conversation: Conversation) -> SpanTexts:
        """The texts of a conversation's spans; empty where the model's tokenizer is not available."""
        if conversation.text:
            pieces = [conversation.text[span.start : span.end] for span in conversation.spans]
            named = zip(conversation.spans, pieces, strict=True)
            return tuple(("", piece) if span.author == "template" else (piece,) for span, piece in named)
        if conversation.model not in self._formats:
            self._formats[conversation.model] = self._load(conversation.model)
        chat = self._formats[conversation.model]
        if chat is None:
            return ()
        texts = []
        for span in conversation.spans:
            ids = conversation.ids[span.start : span.end]
            if span.author in ("template", "system"):  # the same in many conversations
                texts.append(self._repeated(conversation.model, chat, ids, span.author == "template"))
            else:
                texts.append(_pieces(chat, ids))
        return tuple(texts)

    def _repeated(self, model: str, chat: ChatFormat, ids: tuple[int, ...], template: bool) -> tuple[str, ...]:
        key = (model, ids, template)
        if key not in self._repeats:
            self._repeats[key] = ("", chat.decode(ids)) if template else _pieces(chat, ids)
        return self._repeats[key]

    def _load(self, name: str) -> ChatFormat | None:
        try:
            if name not in self.models:
                raise UserError(f"the config has no model {name!r}")
            model = self.models[name]
            return open_chat_format(model)
        except UserError as error:
            self.problems.append(f"The messages of model {name} cannot be shown: {error}")
            return None


def _pieces(chat: ChatFormat, ids: tuple[int, ...]) -> tuple[str, ...]:
    runs: list[list[int]] = [[]]
    for i in ids:
        if (i in chat.control_ids) != (len(runs) % 2 == 0):
            runs.append([])
        runs[-1].append(i)
    return tuple(chat.decode(run) if run else "" for run in runs)


class TextTable:
    """Texts of several trajectories, each stored once and named by its position."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {}

    def place(self, text: str) -> int:
        """The position of a text, which is added if it is new."""
        return self._places.setdefault(text, len(self._places))

    @property
    def texts(self) -> list[str]:
        """All texts by position."""
        return list(self._places)
