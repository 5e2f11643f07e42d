"""docs/reference/families.md, as `ratchet models check` finds it: for each chat template that the package trl
ships, and for each family of models.

`python -m tests.helpers.model_table` writes it.
"""

from __future__ import annotations

import argparse

import torch
from transformers import AutoModelForCausalLM

from ratchet.inference.model_check import check_chat, weights_findings
from tests.helpers.families import FAMILIES, family_config
from tests.helpers.pages import ROOT
from tests.helpers.templates import NAMES, templated_tokenizer

PAGE = ROOT / "docs/reference/families.md"
HEAD = """\
# Chat templates and families of models

<!-- Written by `python -m tests.helpers.model_table`. Do not edit. -->

These tables have what `ratchet models check` finds for the chat templates of the package `trl`, named as its files are,
and for the families of models. [Models and their chat templates](../guides/models.md) explains the terms.
"""


def template_rows() -> list[str]:
    """A line for each template."""
    lines = ["| template | chat format | system messages | thinking | tools |", "|---|---|---|---|---|"]
    for name in NAMES:
        found = {one.part: one for one in check_chat(templated_tokenizer(name), name)}
        form = found["chat format"].text.partition(":")[0].partition(",")[0]
        cells = [form, *(found[part].text.partition(";")[0] for part in ("system messages", "thinking", "tools"))]
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    return lines


def family_rows() -> list[str]:
    """A line for each family."""
    lines = [
        "| family | `all-linear` means | layers in the adapter's file | `engine: local` |",
        "|---|---|---|---|",
    ]
    for name in FAMILIES:
        whole = family_config(name)
        text = whole.get_text_config()
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(text)
        engine, training, adapter = weights_findings(model, text is not whole)
        targets = training.text.removeprefix("all-linear means ")
        layers = adapter.text.removeprefix("its layers are named ").partition(",")[0]
        lines.append(f"| {name} | {targets} | `{layers}` | {engine.text.partition(';')[0]} |")
    return lines


def page() -> str:
    """The page's text."""
    return "\n".join([HEAD, "## Chat templates\n", *template_rows(), "\n## Families\n", *family_rows(), ""])


if __name__ == "__main__":
    argparse.ArgumentParser(prog="python -m tests.helpers.model_table", description=__doc__).parse_args()
    PAGE.write_text(page())
