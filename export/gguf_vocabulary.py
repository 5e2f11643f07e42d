"""A tokenizer as GGUF has it: byte-level BPE with its split of texts, or the vocabulary of SentencePiece.

llama.cpp knows the splits of byte-level tokenizers by name. A name is written only where the tokenizer's own split is
the one that llama.cpp has under it. Of a SentencePiece vocabulary (Gemma's), which transformers holds as merges,
llama.cpp wants a score of each token, and joins the neighbours whose token has the highest. Any other tokenizer is
refused, since a wrong split gives other ids without an error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ratchet.core.errors import UserError
from ratchet.inference.chat_formats import chat_format
from ratchet.inference.tokenizer import load_tokenizer

_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*"
_WORDS += r"|\s*[\r\n]+|\s+(?!\S)|\s+"
SPLITS: dict[tuple[Any, ...], str] = {
    (("ByteLevel", True),): "gpt-2",
    (("Digits", True), ("ByteLevel", True)): "smollm",
    (("Split", _WORDS.format(digits=r"\p{N}")), ("ByteLevel", False)): "qwen2",
    (("Split", _WORDS.format(digits=r"\p{N}{1,3}")), ("ByteLevel", False)): "llama-bpe",
}
"""By the steps of a tokenizer's split, llama.cpp's name of it."""


SPACE = "\u2581"
"""What SentencePiece writes for a space."""
_SPACES = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
CONVERTER = "export it with --merged, and convert the folder with llama.cpp's convert_hf_to_gguf.py"


@dataclass(frozen=True)
class Vocabulary:
    """What a GGUF file says of a tokenizer."""

    tokens: list[str]
    types: list[int]
    """By token, a gguf.TokenType."""
    merges: list[str]
    """Of byte-level BPE."""
    scores: list[float]
    """By token, of a SentencePiece vocabulary."""
    split: str
    """llama.cpp's name of the split."""
    special: dict[str, int | None]
    """Token ids by what they are for: bos, eos, pad, eot (end of turn)."""
    adds_bos: bool
    """Whether the tokenizer puts the bos token before a text."""
    chat_template: str

    def write(self, writer: Any) -> None:
        """Add it to a gguf.GGUFWriter."""
        writer.add_tokenizer_model("llama" if self.scores else "gpt2")
        writer.add_tokenizer_pre(self.split)
        writer.add_token_list(self.tokens)
        writer.add_token_types(self.types)
        if self.scores:
            writer.add_token_scores(self.scores)
            writer.add_add_space_prefix(False)
        else:
            writer.add_token_merges(self.merges)
        for name, number in self.special.items():
            if number is not None:
                getattr(writer, f"add_{name}_token_id")(number)
        writer.add_add_bos_token(self.adds_bos)
        writer.add_chat_template(self.chat_template)


def read_vocabulary(model: str, size: int, revision: str | None = None) -> Vocabulary:
    """The tokenizer of a model's folder or hub name, filled up with unused tokens to `size`, the rows of the embedding.

    UserError for a tokenizer that llama.cpp would not imitate.
    """
    from gguf import TokenType

    tokenizer = load_tokenizer(model, revision)
    described = json.loads(tokenizer.backend_tokenizer.to_str())
    bpe, normaliser, before = described["model"], described["normalizer"], described["pre_tokenizer"]
    if bpe["type"] != "BPE":
        raise UserError(f"{model}: its tokenizer is no BPE, the only kind that is written as GGUF; {CONVERTER}")
    is_sentencepiece = bool(bpe.get("byte_fallback"))
    if normaliser and normaliser != _SPACES if is_sentencepiece else (normaliser or {"type": "NFC"})["type"] != "NFC":
        raise UserError(f"{model}: its tokenizer rewrites text first, which GGUF has not: {normaliser}; {CONVERTER}")
    names = {number: token for token, number in bpe["vocab"].items()}
    added = {token["id"]: token for token in described["added_tokens"]}
    names |= {number: token["content"] for number, token in added.items()}
    if max(names) >= size:
        raise UserError(f"{model}: its tokenizer has the token {max(names)}, and the model only {size} embeddings")
    types = [TokenType.NORMAL if number in names else TokenType.UNUSED for number in range(size)]
    merges = [merge.split(" ", 1) if isinstance(merge, str) else merge for merge in bpe["merges"]]
    scores: list[float] = []
    if is_sentencepiece:
        _check_sentencepiece(before, model)
        for number, name in names.items():
            if re.fullmatch("<0x[0-9A-F]{2}>", name):
                types[number] = TokenType.BYTE
        scores = _scores(names, merges, {token["content"] for token in added.values()}, model, size)
    for number, token in added.items():
        types[number] = TokenType.CONTROL if token["special"] else TokenType.USER_DEFINED
        if is_sentencepiece and not token["special"]:
            names[number] = names[number].replace(SPACE, " ")  # these are found in the text as it is
    bos = tokenizer.bos_token_id
    special = {"bos": bos, "eos": tokenizer.eos_token_id, "pad": tokenizer.pad_token_id}
    if is_sentencepiece:
        special["unk"] = tokenizer.unk_token_id
    return Vocabulary(
        tokens=[names.get(number, f"[PAD{number}]") for number in range(size)],
        types=[int(kind) for kind in types],
        merges=[" ".join(merge) for merge in merges],
        scores=scores,
        split="default" if is_sentencepiece else split_name(before or {}, model),
        special={**special, "eot": chat_format(tokenizer, model).end_of_turn},
        adds_bos=bos is not None and tokenizer("a").input_ids[:1] == [bos],
        chat_template=str(tokenizer.get_chat_template()),
    )


def _check_sentencepiece(before: dict[str, Any] | None, where: str) -> None:
    """UserError where a text is split in another way than at spaces, which are part of tokens."""
    plain = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
    if before and before != plain:
        raise UserError(f"{where}: its tokenizer splits text in a way that llama.cpp does not ({before}); {CONVERTER}")


def _scores(
    names: dict[int, str], merges: Sequence[Sequence[str]], added: set[str], where: str, size: int
) -> list[float]:
    """By token, a score that is the higher the earlier it is made by a merge. UserError for merges that are not those
    of a SentencePiece vocabulary, where a token is made of any two that it can be cut into."""
    rank: dict[str, int] = {}
    last = ""
    for left, right in merges:
        token = left + right
        if token != last and token in rank:
            raise UserError(
                f"{where}: its merges are no SentencePiece vocabulary's: {token!r} comes twice; {CONVERTER}"
            )
        rank.setdefault(token, len(rank))
        last = token
    known, pairs = set(names.values()) - added, {tuple(pair) for pair in merges}
    for token in known:
        cuts = {(token[:at], token[at:]) for at in range(1, len(token))}
        if any(left in known and right in known and (left, right) not in pairs for left, right in cuts):
            raise UserError(f"{where}: its merges are no SentencePiece vocabulary's: of {token!r}; {CONVERTER}")
    return [-float(rank.get(names.get(number, ""), len(rank))) for number in range(size)]


def split_name(described: dict[str, Any], where: str) -> str:
    """llama.cpp's name of a tokenizer's split. UserError where it is none that we know. `described`: `pre_tokenizer` of
    tokenizer.json."""
    steps = tuple(_step(step) for step in described.get("pretokenizers", [described]))
    if steps not in SPLITS:
        raise UserError(
            f"{where}: its tokenizer splits text in a way that is not known to be one of llama.cpp's ({described}); "
            f"known are {', '.join(SPLITS.values())}; {CONVERTER}"
        )
    return SPLITS[steps]


def _step(step: dict[str, Any]) -> tuple[Any, ...]:
    """(type, what matters of its settings); settings that no known split has are left in, so that it is refused."""
    match step:
        case {"type": "ByteLevel", "add_prefix_space": False}:
            return "ByteLevel", step.get("use_regex", True)
        case {"type": "Digits"}:
            return "Digits", step["individual_digits"]
        case {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}:
            return "Split", pattern
    return (str(step),)
