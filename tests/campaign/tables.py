"""Question files that are tables, CSV or Parquet, with hostile text in cells and names, and columns of odd types."""

import csv
import io
import random
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from ratchet.core.config.questions import SplitConfig
from ratchet.core.file_kinds import decode_text
from ratchet.core.records import Question
from ratchet.core.text import plain_text
from ratchet.questions.load import load_questions
from tests.campaign.trial import Attack, Trial, refusal

PIECES = (
    "\0", "\ud800", "\udfff", "\x1b[2J", "\x9b31m", "\u202e", "\ufeff", "\x85", "\x1c", "\u2028", "\r", "\n", '"', "'",
    ",", ";", "\t", "sep=;", "=1+1", "[", "]", '["a", 1]', "nan", "None", "snow \N{SNOWMAN}", "x" * 400_000,
)  # fmt: skip
COLUMNS: tuple[pa.Array, ...] = (
    pa.array([2**62, 1, None, -(2**62)], pa.timestamp("ns")),
    pa.array([2**62, 1, None, -(2**62)], pa.timestamp("us")),
    pa.array([1, 2, 3, 4], pa.timestamp("us", "No/Where")),
    pa.array([2**30, 1, None, -(2**30)], pa.date32()),
    pa.array([2**62, 1, None, 0], pa.duration("ms")),
    pa.array([b"\xff", b"a", None, b""], pa.binary()),
    pa.array([["a", None], [], None, ["b"]], pa.list_(pa.string())),
    pa.array([{"a": 1}, {}, None, {"a": 2}], pa.struct({"a": pa.int64()})),
    pa.array([[("a", 1)], [], None, [("a", 1), ("a", 2)]], pa.map_(pa.string(), pa.int64())),
    pa.array([1.5, float("nan"), None, float("inf")]),
    pa.array([True, False, None, True]),
    pa.nulls(4),
    pa.array(["a", "b", None, "a"]).dictionary_encode(),
)
NAMED = re.compile(r"odd\.(csv|parquet)(:\d+|: row \d+|: not UTF-8 text)")


@contextmanager
def tables(folder: Path) -> Iterator[Trial]:
    """One to three cells or names of a table are hostile. It is read as it is, or the line or row is named."""

    def trial(dice: random.Random) -> None:
        names = ["id", "question", "answers", "note"]
        rows = [[f"q{n}", f"Who built {n}?", f"Ada {n}", "none"] for n in range(4)]
        for _ in range(dice.randint(1, 3)):
            cells = names if dice.random() < 0.1 else dice.choice(rows)
            at = dice.randrange(4)
            where = dice.randint(0, len(cells[at]))
            cells[at] = cells[at][:where] + dice.choice(PIECES) + cells[at][where:]
        asked = [row[1] for row in rows]
        if dice.random() < 0.5:
            path = folder / "odd.csv"
            table = io.StringIO()
            csv.writer(table).writerows([names, *rows])
            path.write_bytes(table.getvalue().encode("utf-8", "surrogatepass"))
        else:
            path = folder / "odd.parquet"
            columns = [_texts(column) for column in zip(*rows, strict=True)]
            if dice.random() < 0.3:
                columns[dice.choice([0, 2, 3])] = dice.choice(COLUMNS)
            pq.write_table(pa.table(columns, [name.encode(errors="replace").decode() for name in names]), path)
        read: list[Question] = []
        said = plain_text(refusal(lambda: read.extend(load_questions(SplitConfig(path=str(path))))))
        if said:
            assert NAMED.search(said) and len(said) < 20_000, said
        else:
            # The bytes of half a surrogate pair are letters of Windows-1252, which the reader says that it has read.
            encoding = decode_text(path.read_bytes())[1] if path.suffix == ".csv" else "utf-8"
            wanted = [text.encode("utf-8", "surrogatepass").decode(encoding) for text in asked]
            assert [question.text for question in read] == wanted

    yield trial


def _texts(cells: tuple[str, ...]) -> pa.Array:
    """A column that is called text, whatever its bytes are."""
    return pa.array([cell.encode("utf-8", "surrogatepass") for cell in cells], pa.binary()).view(pa.string())


ATTACKS = (Attack("hostile text in tables of questions", tables, 20, 5000),)
