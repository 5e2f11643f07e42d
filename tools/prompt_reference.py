"""python -m tools.prompt_reference: write docs/reference/prompts.md from the prompts of systems and judge."""

from __future__ import annotations

import argparse
from pathlib import Path

from ratchet.agents.core.prompts import SHARED, SUFFIX, Prompts
from ratchet.agents.core.system import known_systems, load_system
from ratchet.core.config import SystemConfig
from ratchet.core.files import write_atomic
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

Every prompt of every system and of the judge can be replaced. The words that Ratchet ships are its own: papers'
prompts are not copied here. Whoever holds a paper can run its prompts, and agents that its authors released can run
with the prompts that they were trained on.

```bash
ratchet prompts --config configs/demo.yaml --out prompts/demo
```

writes the prompts in use, one file for each. Edit them, delete the files that stay as they are, and name the folder
in the config, by a path that is relative to the config like every other:

```yaml
system: {name: mrag, prompts: prompts/demo}
```

Agents that others released are run with their prompts beside the base model, from a folder in PEFT's format:
`ratchet evaluate --config X --adapter FOLDER --set system.prompts=prompts/theirs`; with `ratchet ask`, on one
question.

Baselines and the systems of a sweep have the key as well; `--system evaluation.baselines.NAME` writes a baseline's
prompts. The folder is checked when the config is loaded: an unknown file, an unknown variable and a missing one are
errors. The digest of the texts that differ from the system's own is part of the content key of each trajectory, so a
change of a prompt samples again, and the place of the folder does not matter.

## How a file is written

- A file is one whole message. Its name says in which chat role: `.system.txt` or `.user.txt`. An empty system prompt
  leaves the system message out; a user message cannot be empty.
- `{{name}}` stands for a variable. All variables are filled in by one pass of text substitution: nothing in a
  document is read as a template, and single braces, as in a JSON example, are ordinary text. There are no
  expressions.
- `{{name?}}` is for a variable that may be empty, such as the documents of a search that found nothing. A paragraph
  (between blank lines) whose variables are all of this kind and empty is left out, and so is such a line.
- Control tokens of the chat template, such as `<|im_start|>`, are ordinary text in a prompt, as they are in
  documents.
- Each prompt also knows `{{question}}` (the text of the question or claim), `{{task}}` (the same with its kind before
  it, "Claim: ...", and the options of a choice where the system shows them), `{{form}}` ("question" or "claim") and
  `{{labels}}` (one a line, with their meanings). `question` and `task` stand for each other where one is needed.
- Documents come in one line each, and what other agents said comes with `> ` before every line, so that neither can
  pose as another speaker (Tool-MAD's `quoting: none` leaves the marks out). The prompts here also say that documents
  are data and not instructions; say it in yours.

Worked examples are no part of a prompt: `system.roles.NAME.examples` replaces them. The texts of errors (`{{error}}`,
`{{problem}}`) cannot be replaced. A [system of your own](../guides/extend.md#a-system) names its prompts in
its `SYSTEM`.

## The judge

`ratchet prompts --system rewards --config X --out prompts/judge` writes the prompts that the judge is asked
with, and `rewards: {prompts: prompts/judge}` replaces them. The digest of a replaced text is part of the key of each
stored score that asks it: such scores are judged again, and others are not. Figures are those of
[mRAG's paper](../papers/mrag.md). The reply is to be the JSON that the figures ask for, alone or in one block of JSON.

Each variable is filled in as a JSON value (a string in quotes, an object, a list), apart from `{{form}}`: an answer or
a document cannot pose as another part of the prompt.

{judge}

## Every system

{shared}
"""
COLUMNS = "| file | variables | may be left out | shown in, or used where |\n|---|---|---|---|"


def reference() -> str:
    """The page as Markdown."""
    parts = [HEAD.replace("{judge}", _table(builtin_prompts())).replace("{shared}", _table(SHARED))]
    for name in known_systems():
        own = {
            slot: prompt for slot, prompt in load_system(SystemConfig(name=name)).prompts.items() if slot not in SHARED
        }
        if not own:
            continue
        paper = f"{PAPERS[name]}: the figures and appendices are the paper's.\n\n" if name in PAPERS else ""
        paper += f"{NO_FIGURES[name]}\n\n" if name in NO_FIGURES else ""
        parts.append(f"## `{name}`\n\n{paper}{_table(own)}\n")
    return "\n".join(parts)


def _table(prompts: Prompts) -> str:
    rows = [COLUMNS]
    for slot, prompt in prompts.items():
        needed = [name for name in prompt.variables if name in prompt.required]
        free = [name for name in (*prompt.variables, *prompt.optional) if name not in needed]
        rows.append(f"| `{slot}{SUFFIX}` | {_names(needed)} | {_names(list(dict.fromkeys(free)))} | {prompt.note} |")
    return "\n".join(rows)


def _names(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


if __name__ == "__main__":
    argparse.ArgumentParser(prog="python -m tools.prompt_reference", description=__doc__).parse_args()
    write_atomic(PAGE, reference())
    print(PAGE)
