"""A token row for the eye: who wrote what, and which tokens are learnt."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import groupby

import pyarrow as pa

from ratchet.core.records import Conversation
from ratchet.core.text import plain_text
from ratchet.training.lessons import TokenRow
from ratchet.training.rows import has_lessons, loss_tokens, row_lengths

AUTHOR = {"template": "\x1b[2m", "system": "\x1b[36m", "user": "\x1b[34m", "assistant": "\x1b[31m"}
LEARNT = "\x1b[1;30;42m"
RESET = "\x1b[0m"


def render_row(row: TokenRow, conversation: Conversation, decode: Callable[[Sequence[int]], str], colour: bool) -> str:
    """The row's text, span by span. Learnt tokens are green; without colour they stand between >>> and <<<.

    Each span is opened by its author. What an assistant wrote and is not learnt (malformed, or not sampled) shows as
    such. The mask is the row's own, not recomputed: this is what training sees.
    """
    parts = [f"row {row.trajectory} conversation {row.conversation}, role {row.role}: {len(row.ids)} tokens, "
             f"{sum(row.loss_mask)} learnt{_lesson(row)}"]  # fmt: skip
    for span in conversation.spans:
        if span.start >= len(row.ids):  # a row of a single action ends with it
            break
        name = span.author + ("" if span.parsed else ", malformed")
        text = ""
        for learnt, places in groupby(range(span.start, span.end), lambda at: bool(row.loss_mask[at])):
            piece = plain_text(decode([row.ids[at] for at in places]))
            if colour:
                style = LEARNT if learnt else AUTHOR[span.author]
                text += style + piece.replace("\n", f"\n{style}") + RESET
            else:
                text += f">>>{piece}<<<" if learnt else piece
        parts.append(f"[{name}] {text}")
    return "\n".join(parts)


def _lesson(row: TokenRow) -> str:
    """What an objective other than sft learns from the row."""
    if row.reward is None:
        return ""
    side = "more likely" if row.chosen else "less likely"
    return f"; made {side}, reward {row.reward:.3f}, weight {row.weight:.3f}" + (
        f", example {row.example}" if row.example else ""
    )


def summary(table: pa.Table, skipped: dict[str, int]) -> str:
    """Rows, tokens and learnt tokens by role, the lengths, and what was skipped."""
    lengths = row_lengths(table)
    rows, tokens, learnt = Counter[str](), Counter[str](), Counter[str]()
    for role in sorted(set(table["role"].to_pylist())):
        part = table.filter(pa.compute.equal(table["role"], role))
        rows[role], tokens[role], learnt[role] = len(part), sum(row_lengths(part)), loss_tokens(part)
    width = max(len(role) for role in [*rows, "role", "all"])
    lines = [f"{'role':<{width}}  {'rows':>7}  {'tokens':>10}  {'learnt':>9}"]
    lines += [f"{role:<{width}}  {rows[role]:>7}  {tokens[role]:>10}  {learnt[role]:>9}" for role in rows]
    lines.append(f"{'all':<{width}}  {len(table):>7}  {sum(lengths):>10}  {learnt.total():>9}")
    lengths.sort()
    lines.append(f"tokens a row: {lengths[0]} to {lengths[-1]}, median {lengths[len(lengths) // 2]}")
    if has_lessons(table):
        better = table["chosen"].to_pylist().count(True)
        lines.append(f"rows made more likely: {better}, less likely: {len(table) - better}")
        if examples := set(table["example"].to_pylist()) - {""}:
            lines.append(f"examples: {len(examples)}")
    lines += [f"skipped, {reason}: {count}" for reason, count in sorted(skipped.items())]
    return "\n".join(lines)
