"""The rows of Parquet files that others wrote."""

from __future__ import annotations

from typing import Any


def parquet_rows(table: Any) -> list[dict[str, Any] | str]:
    """The rows of a table or batch of pyarrow, with the reason in place of each that has no Python values.

    Parquet calls a column text without a look at its bytes, and its dates and time zones need not be Python's.
    """
    try:
        return list(table.to_pylist())
    except Exception:  # of many kinds, UnicodeDecodeError, OverflowError and KeyError among them
        if len(table) > 1:
            return [row for number in range(len(table)) for row in parquet_rows(table.slice(number, 1))]
    for name, column in zip(table.schema.names, table.columns, strict=True):
        try:
            column.to_pylist()
        except UnicodeDecodeError as error:
            return [f"not valid UTF-8 in column {name!r} ({error})"]
        except Exception as error:
            return [f"a value in column {name!r} cannot be read ({type(error).__name__}: {error})"]
    raise AssertionError("every column can be read alone")
