"""Names and texts of configs, data and models in Markdown; `ratchet.core.escape` has the other languages."""

from __future__ import annotations

import re
from pathlib import Path

from jinja2 import Environment, StrictUndefined, Template

from ratchet.core.escape import python_string, yaml_value
from ratchet.core.text import plain_line

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
