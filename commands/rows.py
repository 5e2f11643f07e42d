"""`ratchet show`: look at what a round trains on."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

import pyarrow as pa

from ratchet.commands.recording import outdated_inputs
from ratchet.core.config import Config
from ratchet.core.errors import UserError
from ratchet.core.records import Conversation, Trajectory
from ratchet.core.runfolder import RunFolder
from ratchet.core.text import plain_text
from ratchet.inference.tokenizer import load_tokenizer
from ratchet.training.labels import labels_of
from ratchet.training.rows import (
    Rows,
    TokenRow,
    check_rows,
    has_lessons,
    loss_tokens,
    prepare_rows,
    row_lengths,
    table_rows,
)

AUTHOR = {"template": "\x1b[2m", "system": "\x1b[36m", "user": "\x1b[34m", "assistant": "\x1b[31m"}
LEARNT = "\x1b[1;30;42m"
RESET = "\x1b[0m"


def show(config: Config, options: argparse.Namespace) -> None:
    """Print one token row, or build the rows, check them and print the totals."""
    outdated_inputs(config, "train", number=options.round, anyway=options.anyway)
    if options.row is None:
        print_summary(config, options.round)
    else:
        show_row(config, options.round, options.row)


def show_row(config: Config, number: int, row: int) -> None:
    """Print row number `row`."""
    rows = prepare_rows(config, RunFolder(config.folder).round(number))
    if not 0 <= row < len(rows.table):
        raise UserError(f"--row {row}: the rows are numbered 0 to {len(rows.table) - 1}")
    shown = next(table_rows(rows.table.slice(row, 1)))
    [trajectory] = _read(rows, [shown.trajectory])
    model = config.models[config.training.model]
    tokenizer = load_tokenizer(model.path, model.revision)
    decode = lambda ids: str(tokenizer.decode(list(ids), skip_special_tokens=False))  # noqa: E731
    print(render_row(shown, trajectory.conversations[shown.conversation], decode, colour=sys.stdout.isatty()))


def print_summary(config: Config, number: int) -> None:
    """Build the rows, check them against the trajectories, and print the totals."""
    rows = prepare_rows(config, RunFolder(config.folder).round(number))
    print(summary(rows.table, rows.skipped))
    trained = rows.table["trajectory"].unique().to_pylist()
    stored = {trajectory.key: trajectory for trajectory in _read(rows, trained)}
    actions = check_rows(table_rows(rows.table), stored, labels_of(config))
    print(f"checked: the labels of {actions} actions equal the sampled ids, id for id")


def _read(rows: Rows, keys: Sequence[str]) -> Iterator[Trajectory]:
    return (trajectory for part in rows.kept for trajectory in part.store.read(keys))


def render_row(row: TokenRow, conversation: Conversation, decode: Callable[[Sequence[int]], str], colour: bool) -> str:
    """Render the row's text, span by span. Learnt tokens are green; without colour they stand between >>> and <<<.

    The mask is the row's own, not recomputed: this is what training sees.
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
