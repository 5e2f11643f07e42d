"""What the page asks of the index: a page of the list, one trajectory's place, and counts."""

from __future__ import annotations

import re
import sqlite3
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

MAX_WORDS = 8
"""Words of a search that count."""
ORDERS = {
    "first": "t.id",
    "newest": "t.id desc",
    "best": "t.reward desc nulls last, t.id",
    "worst": "t.reward asc nulls last, t.id",
    "question": "t.question, t.sample, t.id",
}
COLUMNS = (
    "t.id, t.key, t.store, t.question, q.text, q.kind, t.sample, t.status, t.reward, t.kept, t.answer, t.calls, "
    "t.new_tokens, t.malformed, t.seconds"
)


class Filters(BaseModel):
    """What the list shows; an empty field does not filter."""

    model_config = ConfigDict(extra="forbid")

    store: str = ""
    status: Literal["", "finished", "unparsed", "out_of_budget", "failed"] = ""
    kept: Literal["", "yes", "no"] = ""
    kind: str = ""
    role: str = ""
    text: str = Field("", max_length=500)
    """Words that all begin a word of the answer, the question or what was said on the way."""
    min: float | None = None
    """Of the reward, which is compared as it is shown, with two digits."""
    max: float | None = None
    order: Literal["first", "newest", "best", "worst", "question"] = "first"
    offset: int = Field(0, ge=0, le=10_000_000)
    limit: int = Field(50, ge=1, le=200)


def find(database: sqlite3.Connection, filters: Filters) -> dict[str, Any]:
    """{total, rows} of a page of the list."""
    where, values = _conditions(filters)
    joined = (
        "trajectory t left join store s on s.name = t.store "
        "left join question q on q.split = s.split and q.id = t.question"
    )
    tables = joined if "q." in where else "trajectory t"
    [total] = database.execute(f"select count(*) from {tables} {where}", values).fetchone()
    # Only what is shown is sorted as a whole row.
    chosen = f"select t.id from {tables} {where} order by {ORDERS[filters.order]} limit ? offset ?"
    page = database.execute(
        f"select {COLUMNS} from {joined} where t.id in ({chosen}) order by {ORDERS[filters.order]}",
        (*values, filters.limit, filters.offset),
    )
    names = [column[0] for column in page.description]
    return {"total": total, "rows": [dict(zip(names, row, strict=True)) for row in page]}


def _conditions(filters: Filters) -> tuple[str, list[Any]]:
    parts: list[tuple[str, tuple[Any, ...]]] = [("t.planned", ())]
    for column, value in (("t.store", filters.store), ("t.status", filters.status), ("q.kind", filters.kind)):
        if value:
            parts.append((f"{column} = ?", (value,)))
    if filters.kept:
        parts.append(("t.kept = ?", (filters.kept == "yes",)))
    if filters.role:
        parts.append(("instr(t.roles, ?)", (f"\n{filters.role}\n",)))
    if filters.min is not None:
        parts.append(("round(t.reward, 2) >= ?", (filters.min,)))
    if filters.max is not None:
        parts.append(("round(t.reward, 2) <= ?", (filters.max,)))
    for word in re.findall(r"[^\W_]+", filters.text)[:MAX_WORDS]:
        said = "t.id in (select rowid from words where words match ?)"
        parts.append((f"({said} or q.text like ?)", (f'"{word}"*', f"%{word}%")))
    return "where " + " and ".join(text for text, _ in parts), [v for _, values in parts for v in values]


def place_of(database: sqlite3.Connection, key: str) -> dict[str, Any] | None:
    """Where a trajectory's line lies, and of which store; None where the index does not hold it."""
    found = database.execute(
        "select key, store, path, start, length, kept from trajectory where key = ? order by planned desc limit 1",
        (key,),
    ).fetchone()
    return dict(zip(("key", "store", "path", "start", "length", "kept"), found, strict=True)) if found else None


def siblings_of(database: sqlite3.Connection, store: str, question: str) -> list[dict[str, Any]]:
    """The trajectories of one question in a store."""
    found = database.execute(
        "select key, sample, status, reward, kept from trajectory where store = ? and question = ? and planned "
        "order by sample, id limit 200",
        (store, question),
    )
    return [dict(zip(("key", "sample", "status", "reward", "kept"), row, strict=True)) for row in found]


def counts(database: sqlite3.Connection) -> dict[str, Any]:
    """By store how its trajectories ended and their rewards so far; and what the filters offer."""
    stores: dict[str, dict[str, Any]] = {
        name: {"name": name, "title": title, "planned": planned, "done": 0, "endings": {}, "rewarded": 0,
               "reward": None, "kept": 0, "selected": bool(selection)}
        for name, title, planned, selection in database.execute(
            "select name, title, planned, selection from store order by rowid"
        )
    }  # fmt: skip
    sums: dict[str, float] = {}
    for name, status, number, rewarded, total, kept in database.execute(
        "select store, status, count(*), count(reward), total(reward), sum(kept) from trajectory where planned "
        "group by store, status"
    ):
        one = stores[name]
        one["done"] += number
        one["endings"][status] = number
        one["rewarded"] += rewarded
        one["kept"] += kept
        sums[name] = sums.get(name, 0.0) + total
    for name, one in stores.items():
        one["reward"] = sums[name] / one["rewarded"] if one["rewarded"] else None
    return {
        "stores": list(stores.values()),
        "kinds": [
            kind for (kind,) in database.execute("select distinct kind from question where kind <> '' order by 1")
        ],
        "roles": [role for (role,) in database.execute("select name from role order by 1")],
        "damaged": [
            {"path": path, "line": line, "problem": problem}
            for path, line, problem in database.execute("select path, line, problem from damaged limit 20")
        ],
    }


def token_totals(database: sqlite3.Connection) -> tuple[int, int, int, int]:
    """(trajectories, prompt tokens, those of them from a cache, new tokens) of all stores."""
    found = database.execute(
        "select count(*), total(prompt_tokens), total(cached_tokens), total(new_tokens) from trajectory"
    ).fetchone()
    return int(found[0]), int(found[1]), int(found[2]), int(found[3])
