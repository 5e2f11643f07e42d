"""Names and texts of configs, data and models in other languages, Markdown among them: one function for each language.

HTML needs none: Jinja's autoescape writes the pages (`report/page.py`).
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from ratchet.core.text import plain_line

if TYPE_CHECKING:
    from jinja2 import Template

MAX_FILE_NAME = 200
"""Bytes of a file's name, which may have 255: suffixes follow."""


def python_string(text: str) -> str:
    """Write a string of Python in one line."""
    return json.dumps(text, ensure_ascii=False) if text.isprintable() else repr(text)


class _OneLine(yaml.SafeDumper):
    """Writes texts with line breaks in quotation marks, and so in one line."""

    def text(self, text: str) -> yaml.ScalarNode:
        return self.represent_scalar("tag:yaml.org,2002:str", text, None if text.isprintable() else '"')


_OneLine.add_representer(str, _OneLine.text)


def yaml_value(value: Any) -> str:
    """Write a value of YAML in one line."""
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


LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": "$<$", ">": "$>$"}
"""Characters that LaTeX writes by a command; others of its own get a backslash."""


def latex_text(text: str) -> str:
    """Text of LaTeX in one line, with a minus sign before numbers."""
    escaped = re.sub(r"[\\~^<>&%$#_{}]", lambda found: LATEX.get(found[0], f"\\{found[0]}"), plain_line(text))
    return re.sub(r"(?<!\S)(\[?)-(?=\d)", r"\1$-$", escaped)


MEANT = re.compile(
    r"[\\`*\[<|&#~$]|(?<![^\W_])_|_(?![^\W_])"  # anywhere; an underscore inside a word means nothing
    r"|^>|^[-+=](?=[-+=\s]|$)|(?<=^\d)[.)](?=\s|$)"  # at the start: a quotation, a list, a rule, a heading
)
"""Characters that Markdown gives a meaning."""


class Markdown(str):
    """Text that is Markdown already, which a template writes as it is."""


def markdown_text(text: str) -> Markdown:
    """Markdown that shows the text as it is, in one line: in a sentence, a heading or a cell of a table."""
    return Markdown(MEANT.sub(r"\\\g<0>", plain_line(text)))


def markdown_code(text: str) -> Markdown:
    """The same as code, where the text has no character that code may not hold everywhere."""
    line = plain_line(text)
    return markdown_text(line) if not line or set(line) & set("`|<") else Markdown(f"`{line}`")


def markdown_template(file: Path) -> Template:
    """A template of Markdown, whose values are written by `markdown_text` unless a filter says otherwise."""
    from jinja2 import Environment, StrictUndefined  # late: most that escape a text write no template

    environment = Environment(
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        finalize=lambda value: value if isinstance(value, Markdown | int | float) else markdown_text(str(value)),
    )
    environment.filters |= {
        "code": markdown_code,
        "python": lambda text: Markdown(python_string(text)),
        "yaml": lambda value: Markdown(yaml_value(value)),
    }
    return environment.from_string(file.read_text(encoding="utf-8"))
