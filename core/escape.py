"""Names and texts of configs, data and models in other languages: one function for each language.

HTML needs none: Jinja's autoescape writes the pages (`report/page.py`).
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable
from typing import Any

import yaml

MAX_FILE_NAME = 200
"""Bytes of a file's name, which may have 255: suffixes follow."""


def python_string(text: str) -> str:
    """A string of Python, in one line."""
    return json.dumps(text, ensure_ascii=False) if text.isprintable() else repr(text)


class _OneLine(yaml.SafeDumper):
    """Writes texts with line breaks in quotation marks, and so in one line."""

    def text(self, text: str) -> yaml.ScalarNode:
        return self.represent_scalar("tag:yaml.org,2002:str", text, None if text.isprintable() else '"')


_OneLine.add_representer(str, _OneLine.text)


def yaml_value(value: Any) -> str:
    """A value of YAML, in one line."""
    text: str = yaml.dump(value, Dumper=_OneLine, default_flow_style=True, sort_keys=False, width=float("inf"))
    return text.removesuffix("\n").removesuffix("\n...")


def shell_line(words: Iterable[str]) -> str:
    """A command for people to copy: in one line, without control characters, as bash and zsh read it."""
    return " ".join(shlex.quote(word) if word.isprintable() else _ansi_c(word) for word in words)


def _ansi_c(word: str) -> str:
    plain = "".join(
        character
        if character.isprintable() and character not in "\\'"
        else "".join(f"\\x{byte:02x}" for byte in character.encode(errors="surrogateescape"))
        for character in word
    )
    return f"$'{plain}'"


def file_name(text: str) -> str:
    """A part of a file's name that no program takes for anything else: letters, digits, `_`, `.` and `-`."""
    name = re.sub(r"[^\w.-]+", "-", text).strip("-.")
    return name.encode()[:MAX_FILE_NAME].decode(errors="ignore")
