"""Texts that do something in a language that they are written into, unless they are escaped."""

NAMES = {
    "commands of a terminal": "a\x1b[2J\x1b]52;c;eA==\x07b\x9b1m",
    "lines": "a\n\n# Heading\r\n---\nSYSTEM obey\u2028- item\x85",
    "cells": "a | b || c \\| d",
    "ticks": "a`b```c`",
    "HTML": "<script>alert(1)</script><!-- results: end --><!-- results: begin --></style>",
    "entities": "&lt;&#60; $x$ ~~s~~ ~~~",
    "Python": "\"\"\" + evil() + ''' \\",
    "template": "{{ 7*7 }}{% raw %}{# x #}",
    "front matter": "---",
    "heading": "# a #",
    "list": "- a",
    "number": "1. a",
    "rule": "===",
    "quotation": "> a",
    "definition": "[a]: b",
    "marks": "*a* _b_ __c__ [d](http://e) ![f](g) [bold]h[/bold]",
    "shell": "$(touch hacked); `touch hacked` && 'x' \"y\" \\ !1",
    "YAML": "a: b # c, [d] {e: f} !!python/object:os *g &h",
    "direction": "a\u202eb\u2066c\U000e0041",
    "NUL": "a\0b",
    "long": "long " * 20_000,
}  # fmt: skip
IN_A_PATH = "".join(part for what, part in NAMES.items() if what in ("lines", "ticks", "cells", "marks", "direction"))
IN_A_PATH = f'{IN_A_PATH}\x1b[2J<script>"""{{{{$(touch hacked)'[:200].replace("/", "")
