"""The chat templates of today's models, from the package trl, on the tiny tokenizer."""

import copy
import re
from functools import cache
from pathlib import Path
from typing import Any

import trl

from ratchet.inference.chat_formats import RenderedFormat, WrapperFormat, chat_format
from tests.helpers.tiny import tiny_tokenizer

FOLDER = Path(trl.__file__).parent / "chat_templates"
NAMES = sorted(path.stem for path in FOLDER.glob("*.jinja") if not path.stem.endswith("_training"))
TOKENS = re.compile(r"<\|[a-zA-Z_]+\|>|<[a-z_]+>|</[a-z_]+>|\[/?[A-Z_]+\]|<｜[^｜]*｜>|<\|[a-z_]+>|<[a-z_]+\|>")
"""What looks like a control token in a template."""


@cache
def templated_tokenizer(name: str) -> Any:
    """The tiny tokenizer with a template and the control tokens that it writes."""
    tokenizer = copy.deepcopy(tiny_tokenizer("chatml"))
    template = (FOLDER / f"{name}.jinja").read_text()
    tokenizer.add_special_tokens({"additional_special_tokens": sorted(set(TOKENS.findall(template)))})
    tokenizer.chat_template = template
    return tokenizer


@cache
def templated_format(name: str) -> WrapperFormat | RenderedFormat:
    return chat_format(templated_tokenizer(name), name)
