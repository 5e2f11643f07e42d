"""Questions about lakes, which we wrote ourselves."""

from ratchet.questions.benchmark import Benchmark
from ratchet.questions.formats import Format, Row


def read_row(row: Row) -> Row:
    return {"text": row["Q"], "answers": [row["A"]], "gold_ids": [row["Page"]]}


BENCHMARK = Benchmark(
    title="Lakes",
    about="questions about lakes, with the page that answers each",
    licence="ours",
    source="ourselves",
    gold="document ids",
    splits={"test": ("lakes.csv",)},
    default_split="test",
    formats=(Format("table", ("Q", "A", "Page"), read_row),),
)
