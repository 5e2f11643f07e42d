"""The tokenizer of a model folder as GGUF has it: byte-level BPE, and how llama.cpp splits a text before it.

llama.cpp knows the splits of tokenizers by name. A name is written only where the tokenizer's own split is the one that
llama.cpp has under it; any other tokenizer is refused, since a wrong split gives other ids without an error.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inference.chat_formats import chat_format
from inference.tokenizer import load_tokenizer
from ratchet.errors import UserError

_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*"
_WORDS += r"|\s*[\r\n]+|\s+(?!\S)|\s+"
SPLITS: dict[tuple[Any, ...], str] = {
    (("ByteLevel", True),): "gpt-2",
    (("Digits", True), ("ByteLevel", True)): "smollm",
    (("Split", _WORDS.format(digits=r"\p{N}")), ("ByteLevel", False)): "qwen2",
    (("Split", _WORDS.format(digits=r"\p{N}{1,3}")), ("ByteLevel", False)): "llama-bpe",
}
"""By the steps of a tokenizer's split, llama.cpp's name of it."""


@dataclass(frozen=True)
class Vocabulary:
    """What a GGUF file says of a tokenizer."""

    tokens: list[str]
    types: list[int]
    """By token, a gguf.TokenType."""
    merges: list[str]
    split: str
    """llama.cpp's name of the split."""
    special: dict[str, int | None]
    """Token ids by what they are for: bos, eos, pad, eot (end of turn)."""
    adds_bos: bool
    """Whether the tokenizer puts the bos token before a text."""
    chat_template: str

    def write(self, writer: Any) -> None:
        """Add it to a gguf.GGUFWriter."""
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(self.split)
        writer.add_token_list(self.tokens)
        writer.add_token_types(self.types)
        writer.add_token_merges(self.merges)
        for name, number in self.special.items():
            if number is not None:
                getattr(writer, f"add_{name}_token_id")(number)
        writer.add_add_bos_token(self.adds_bos)
        writer.add_chat_template(self.chat_template)


def read_vocabulary(model: Path, size: int) -> Vocabulary:
    """The tokenizer of a model folder, filled up with unused tokens to `size`, the rows of the embedding.

    UserError for a tokenizer that llama.cpp would not imitate.
    """
    from gguf import TokenType

    tokenizer = load_tokenizer(str(model))
    described = json.loads(tokenizer.backend_tokenizer.to_str())
    bpe = described["model"]
    if bpe["type"] != "BPE" or bpe.get("byte_fallback"):
        raise UserError(f"{model}: its tokenizer is no byte-level BPE, the only kind that is written as GGUF")
    if (described["normalizer"] or {"type": "NFC"})["type"] != "NFC":
        raise UserError(
            f"{model}: its tokenizer rewrites text first ({described['normalizer']['type']}), which GGUF has not"
        )
    names = {number: token for token, number in bpe["vocab"].items()}
    added = {token["id"]: token for token in described["added_tokens"]}
    names |= {number: token["content"] for number, token in added.items()}
    if max(names) >= size:
        raise UserError(f"{model}: its tokenizer has the token {max(names)}, and the model only {size} embeddings")
    types = [TokenType.NORMAL if number in names else TokenType.UNUSED for number in range(size)]
    for number, token in added.items():
        types[number] = TokenType.CONTROL if token["special"] else TokenType.USER_DEFINED
    merges = (merge if isinstance(merge, str) else " ".join(merge) for merge in bpe["merges"])
    bos = tokenizer.bos_token_id
    special = {"bos": bos, "eos": tokenizer.eos_token_id, "pad": tokenizer.pad_token_id}
    return Vocabulary(
        tokens=[names.get(number, f"[PAD{number}]") for number in range(size)],
        types=[int(kind) for kind in types],
        merges=list(merges),
        split=split_name(described["pre_tokenizer"] or {}, str(model)),
        special={**special, "eot": chat_format(tokenizer, str(model)).end_of_turn},
        adds_bos=bos is not None and tokenizer("a").input_ids[:1] == [bos],
        chat_template=str(tokenizer.get_chat_template()),
    )


def split_name(described: dict[str, Any], where: str) -> str:
    """llama.cpp's name of a tokenizer's split. UserError where it is none that we know. `described`: `pre_tokenizer` of
    tokenizer.json."""
    steps = tuple(_step(step) for step in described.get("pretokenizers", [described]))
    if steps not in SPLITS:
        raise UserError(
            f"{where}: its tokenizer splits text in a way that is not known to be one of llama.cpp's ({described}); "
            f"known are {', '.join(SPLITS.values())}. Export it with --merged, and convert the folder with llama.cpp"
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
