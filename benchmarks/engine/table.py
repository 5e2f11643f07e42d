"""The benchmark's tables, in Markdown with columns of one width."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

from benchmarks.engine.contenders import CONTENDERS, ENGINE, GENERATE, VLLM, Turn

Best = Mapping[tuple[str, int], Sequence[Turn]]
"""The turns of a contender at a number of requests."""


def better(one: Sequence[Turn], other: Sequence[Turn]) -> list[Turn]:
    """The faster of each turn, with the least CPU time of both."""
    pairs = zip(one, other, strict=True)
    return [min(a, b, key=lambda turn: turn.seconds)._replace(cpu=min(a.cpu, b.cpu)) for a, b in pairs]


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    lines = [header, ["-" * width for width in widths], *rows]
    return "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in lines
    )


def decoding_table(best: Best, tokens: int) -> str:
    """New tokens a second of every contender, in wall time and in CPU time, and the ratios of the engine to others."""
    names = [name for name in CONTENDERS if any(name == measured for measured, _ in best)]
    counts = sorted({requests for _, requests in best})
    references = [name for name in (GENERATE, VLLM) if name in names and ENGINE in names]
    header = ["per second of", "turn", "requests", *names, *(f"{ENGINE} / {name}" for name in references)]
    rows = []
    for clock in ("wall time", "CPU time"):
        for number, requests in product(range(2), counts):
            turns = {name: best[name, requests][number] for name in names}
            seconds = {name: turn.seconds if clock == "wall time" else turn.cpu for name, turn in turns.items()}
            rates = [f"{requests * tokens / seconds[name]:.0f}" for name in names]
            ratios = [f"{seconds[name] / seconds[ENGINE]:.1f}" for name in references]
            rows.append([clock, ("first", "second")[number], str(requests), *rates, *ratios])
    return markdown(header, rows)


def cached_line(best: Best) -> str:
    """The shares of prompt tokens that came out of a prefix cache, at the most requests."""
    most = max(requests for _, requests in best)
    shares = {name: " and ".join(f"{turn.cached:.0%}" for turn in best[name, most]) for name, n in best if n == most}
    said = ", ".join(f"{name} {share}" for name, share in shares.items() if name != GENERATE)
    return f"Prompt tokens from the cache with {most} requests, first and second turn: {said}" if said else ""
