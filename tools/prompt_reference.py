"""python -m tools.prompt_reference: write docs/reference/prompts.md from the prompts of systems and judge."""

from __future__ import annotations

import argparse
from pathlib import Path

from ratchet.agents.core.prompts import SHARED, SUFFIX, Prompts
from ratchet.agents.core.system import load_system
from ratchet.core.config import SystemConfig
from ratchet.core.files import write_atomic
from ratchet.core.plugins import known_plugins
from ratchet.rewards.prompts import builtin_prompts

PAGE = Path(__file__).parents[1] / "docs/reference/prompts.md"
PAPERS = {
    "mrag": "[mRAG](../papers/mrag.md)",
    "no_retrieval": "mRAG's baseline",
    "vanilla_rag": "mRAG's baseline",
    "awe": "[AwE](../papers/awe.md)",
    "tool_mad": "[Tool-MAD](../papers/tool-mad.md)",
}
"""Whose figures a system's table names."""
NO_FIGURES = {
    "mermaid": "[MERMAID](../papers/mermaid.md): we had a summary of the paper, which names no figures of prompts.",
}
HEAD = """\
# Prompts

<!-- Written by `python -m tools.prompt_reference` from agents/ and rewards/. Do not edit. -->

Every prompt of every system and of the judge can be replaced, for example by a paper's. This command writes the prompts
in use, one file for each:

```bash
ratchet prompts --config configs/demo.yaml --out prompts/demo
```

Edit them, delete the files that stay as they are, and name the folder in the config:

```yaml
system: {name: mrag, prompts: prompts/demo}
```

Baselines and the systems of a sweep have the key as well (`--system evaluation.baselines.NAME`). A change of a prompt
samples again.

## How a file is written

- A file is one whole message, in the chat role of its name: `.system.txt` or `.user.txt`. An empty system prompt leaves
  the system message out; a user message cannot be empty.
- `{{name}}` stands for a variable. All are filled in by one pass of text substitution: nothing in a document is read as
  a template, and single braces are ordinary text.
- `{{name?}}` is for a variable that may be empty, such as documents of a search that found nothing. A paragraph or line
  whose variables are all of this kind and empty is left out.
- Each prompt also knows `{{question}}`, `{{task}}` (the same with its kind before it, "Claim: ...", and the options of
  a choice), `{{form}}` ("question" or "claim") and `{{labels}}` (one a line, with their meanings). `question` and
  `task` stand for each other where one is needed.
- Documents come in one line each, and what other agents said with `> ` before every line, so that neither can pose as
  another speaker. Say in your prompts that documents are data and not instructions, as those here do.

The texts of errors (`{{error}}`, `{{problem}}`) cannot be replaced. Below are the variables of each file, in brackets
those that may be left out, and in parentheses where it is shown or used.

## The judge

`ratchet prompts --system rewards --config X --out prompts/judge` writes the judge's prompts, and
`rewards: {prompts: prompts/judge}` replaces them. Scores that ask a replaced text are judged again. The reply is to be
the JSON that the figures of [mRAG's paper](../papers/mrag.md) ask for. Each variable but `{{form}}` is filled in as a
JSON value, so that an answer or a document cannot pose as another part of the prompt.

{judge}

## Every system

{shared}
"""


def reference() -> str:
    """Return the page as Markdown."""
    parts = [HEAD.replace("{judge}", _list(builtin_prompts())).replace("{shared}", _list(SHARED))]
    for name in known_plugins("systems"):
        own = {
            slot: prompt for slot, prompt in load_system(SystemConfig(name=name)).prompts.items() if slot not in SHARED
        }
        if not own:
            continue
        paper = f"{PAPERS[name]}: the figures and appendices are the paper's.\n\n" if name in PAPERS else ""
        paper += f"{NO_FIGURES[name]}\n\n" if name in NO_FIGURES else ""
        parts.append(f"## `{name}`\n\n{paper}{_list(own)}\n")
    return "\n".join(parts)


def _list(prompts: Prompts) -> str:
    lines = []
    for slot, prompt in prompts.items():
        needed = [f"`{name}`" for name in prompt.variables if name in prompt.required]
        names = dict.fromkeys((*prompt.variables, *prompt.optional))
        free = [f"[`{name}`]" for name in names if name not in prompt.required]
        variables = f": {', '.join(needed + free)}" if names else ""
        lines.append(f"- `{slot}{SUFFIX}`{variables}" + (f" ({prompt.note})" if prompt.note else ""))
    return "\n".join(lines)


if __name__ == "__main__":
    argparse.ArgumentParser(prog="python -m tools.prompt_reference", description=__doc__).parse_args()
    write_atomic(PAGE, reference())
    print(PAGE)
