"""Which questions make up a split, where they are looked for, and what is kept of it; a benchmark of one's own."""

import csv
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ratchet.questions.benchmarks
from ratchet.core.config import QuestionsConfig, SplitConfig, parse
from ratchet.core.errors import UserError
from ratchet.core.plugins import known_plugins
from ratchet.core.records import Question
from ratchet.core.runfolder import file_digest
from ratchet.questions.benchmark import load_benchmark
from ratchet.questions.load import load_queries, load_questions, load_split, sample_questions


def written(folder: Path, *rows: object, name: str = "q.jsonl") -> str:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_files_without_a_benchmark(tmp_path: Path) -> None:
    path = written(tmp_path, {"id": "a", "question": "Who?", "golden_answers": ["X", "Y"], "metadata": {}})
    assert load_questions(SplitConfig(path=path, format="flashrag"))[0].answers == ("X", "Y")
    path = written(tmp_path, {"id": "a", "question": "Who?", "answer": "It is X.", "document_ids": ["d"], "x": 1})
    question = load_questions(SplitConfig(path=path, format="datamorgana"))[0]
    assert (question.reference, question.gold_ids, question.answers) == ("It is X.", ("d",), ())


def test_queries_come_as_beir_and_ms_marco_have_them(tmp_path: Path) -> None:
    wanted = [("1", 'who "built it'), ("2", "where")]
    (tmp_path / "queries.dev.tsv").write_text('1\twho "built it\r\n2\twhere\n')
    (tmp_path / "named.tsv").write_text('query_id\tquery\tanswer\n1\t"who ""built it"\tA; B\n2\twhere\tC\n')
    written(tmp_path, *({"_id": name, "text": text, "metadata": {}} for name, text in wanted), name="queries.jsonl")
    for name in ("queries.dev.tsv", "named.tsv", "queries.jsonl"):
        assert [(one.id, one.text) for one in load_queries(tmp_path / name)] == wanted
    (tmp_path / "queries.dev.tsv").write_text("1\twho\n2 where\n")
    with pytest.raises(UserError, match=r"queries\.dev\.tsv:2: no tab"):
        load_queries(tmp_path / "queries.dev.tsv")


def test_a_split_of_beir_has_the_queries_that_its_judgements_name(tmp_path: Path) -> None:
    written(tmp_path, *({"_id": name, "text": f"Query {name}?"} for name in "abc"), name="queries.jsonl")
    split = SplitConfig(benchmark="beir", path=str(tmp_path))
    with pytest.raises(UserError, match=r"no qrels/test\.tsv beside the queries"):
        load_questions(split)
    (tmp_path / "qrels").mkdir()
    path = tmp_path / "qrels" / "test.tsv"
    path.write_text("query-id\tcorpus-id\tscore\nc\td1\t2\nc\td2\t0\nc\td 3\t1\na\td1\t0\n")
    assert [(one.id, one.gold_ids) for one in load_questions(split)] == [("a", ()), ("c", ("d1", "d 3"))]
    path.write_text("z 0 d 1\n")
    with pytest.raises(UserError, match=r"judges the query z, which .* does not have"):
        load_questions(split)


def test_question_files_come_as_people_have_them(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [
        {"question": "When?", "answer": 1969, "note": "ignored"},
        {"id": 7, "query": "Who?", "answers": ["Ada", "Ada", 3]},
        {"question_id": "c", "claim": "It rained.", "label": "TRUE"},
        {"id": "d", "text": "Which?", "labels": ["red", "blue"], "label": "blue", "gold_id": 12},
    ]
    found = load_questions(SplitConfig(path=written(tmp_path, *rows)))
    assert [q.id for q in found] == ["row-0", "7", "c", "d"]
    assert [q.answers for q in found] == [("1969",), ("Ada", "3"), (), ()]
    assert (found[2].form, found[2].label, [label.stance for label in found[2].labels]) == (
        "claim",
        "true",
        ["true", "false"],
    )
    assert (found[3].gold_ids, [label.meaning for label in found[3].labels]) == (("12",), ["red", "blue"])
    (tmp_path / "q.csv").write_text(
        'question,answer,gold_ids\n"Who, then?","[""Ada"", ""Ada T.""]",\nWhere?,Oarabel,isles\n'
    )
    found = load_questions(SplitConfig(path=str(tmp_path / "q.csv")))
    assert [(q.text, q.answers, q.gold_ids) for q in found] == [
        ("Who, then?", ("Ada", "Ada T."), ()),
        ("Where?", ("Oarabel",), ("isles",)),
    ]


def test_all_bad_rows_are_named_at_once(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [
        {"id": 1, "question": "Who?", "answer": "Ada"},
        {"id": 1, "question": "Who else?", "answer": "Bo"},
        {"question": " ", "answer": "Bo"},
        {"question": "What?", "answr": "x"},
        {"question": "What?", "text": "What?"},
        {"question": "Which?", "labels": ["red"], "label": "red"},
        {"claim": "It rained.", "label": "perhaps"},
        {"question": "Where?", "answer": {"text": "x"}},
    ]
    with pytest.raises(UserError) as error:
        load_questions(SplitConfig(path=written(tmp_path, *rows)))
    lines = str(error.value).splitlines()
    assert lines[0] == "7 of the first 8 rows cannot be used:"
    for line, number, words in zip(
        lines[1:],
        range(2, 9),
        [
            "id '1'",
            "blank",
            "did you mean 'answer'",
            "same field",
            "'red' alone",
            "'perhaps'",
            "answers: expected text",
        ],
        strict=True,
    ):
        assert f"q.jsonl:{number}: " in line and words in line


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("q.jsonl", '{"question": "Who?"}\n{nope\n[1]\n{"question": " "}\n'),
        ("q.csv", "question,answer\nWho?,Ada\nWhere?\nWhen?,1,2\n ,x\n"),
    ],
)
def test_lines_that_hold_no_row_are_named_with_the_bad_rows(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match="3 of the first 4 rows cannot be used") as error:
        load_questions(SplitConfig(path=str(tmp_path / name)))
    first = 2 if name == "q.jsonl" else 3
    assert all(f"{name}:{line}: " in str(error.value) for line in range(first, first + 3))
    (tmp_path / name).write_text(text.splitlines()[0] + "\n" + "{x\n" * 30)
    if name == "q.jsonl":
        with pytest.raises(UserError, match=r"30 of the first 31 rows(.|\n)*and 10 more$"):
            load_questions(SplitConfig(path=str(tmp_path / name)))


@pytest.mark.parametrize(
    ("cell", "answers"),
    [
        ("Paris", ("Paris",)),
        ('["Paris", "Lut\\u00e8ce"]', ("Paris", "Lutèce")),
        ("['Paris', \"L'Île\"]", ("Paris", "L'Île")),
        ("('Paris', 'Lutetia')", ("Paris", "Lutetia")),
        ("{'Paris', 'Lutetia'}", ("Paris", "Lutetia")),
        ("['Paris' 'Lutetia'\n 'Panam']", ("Paris", "Lutetia", "Panam")),
        ("array(['Paris', 'Lutetia'], dtype=object)", ("Paris", "Lutetia")),
        ("[0, 1]", ("0", "1")),
        ("(0, 1)", ("(0, 1)",)),  # an interval
        ('("Heroes")', ('("Heroes")',)),
        ("x" * 200_000, ("x" * 200_000,)),
        ("['Paris', 'Lut", None),
        ("['Paris' ... 'Panam']", None),
        ("[Paris, Lutetia]", None),
        ("[__import__('os')]", None),
        ("[" * 90_000 + "]" * 90_000, None),
        ("['" + "\\'" * 90_000 + "]", None),
    ],
)
def test_a_list_in_a_cell_is_read_or_refused(tmp_path: Path, cell: str, answers: tuple[str, ...] | None) -> None:
    for name, column, format in (("q.csv", "answers", "ratchet"), ("f.csv", "golden_answers", "flashrag")):
        with (tmp_path / name).open("w", newline="") as file:
            csv.writer(file).writerows([["id", "question", column], ["a", "Where?", cell]])
        config = SplitConfig.model_validate({"path": str(tmp_path / name), "format": format})
        if answers is None:
            with pytest.raises(UserError, match=rf"{name}:2: .*cannot be read as a list; write it as JSON"):
                load_questions(config)
        else:
            assert load_questions(config)[0].answers == answers


@pytest.mark.parametrize("name", ["q.parquet", "q.jsonl"])
def test_numbers_are_written_in_digits_and_nan_is_no_value(tmp_path: Path, name: str) -> None:
    nan = float("nan")
    rows: list[dict[str, object]] = [
        {"id": 1.0, "question": "a", "answers": 1912.0, "nuggets": [1e22, nan, None]},
        {"id": nan, "question": "b", "answers": nan, "nuggets": [0.5, 1e-7]},
    ]
    if name == "q.parquet":
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / name)
    else:
        written(tmp_path, *rows, name=name)
    first, second = load_questions(SplitConfig(path=str(tmp_path / name)))
    assert (first.id, first.answers, first.nuggets) == ("1", ("1912",), ("10000000000000000000000",))
    assert (second.id, second.answers, second.nuggets) == ("row-1", (), ("0.5", "0.0000001"))
    path = written(tmp_path, {"id": 2.0, "question": "c", "golden_answers": [2, 3.0, nan, "x"]})
    [question] = load_questions(SplitConfig(path=path, format="flashrag"))
    assert (question.id, question.answers) == ("2", ("2", "3", "x"))


def test_rows_are_counted_from_0_and_leave_the_rest_out(tmp_path: Path) -> None:
    path = written(tmp_path, *({"id": str(i), "text": f"{i}?"} for i in range(20)))
    assert [q.id for q in load_questions(SplitConfig(path=path, rows=(5, 15)))] == [str(i) for i in range(5, 15)]
    inside = {q.id for q in load_questions(SplitConfig(path=path, rows=(5, 15), sample=4))}
    assert len(inside) == 4 and inside < {str(i) for i in range(5, 15)}
    with pytest.raises(UserError, match=r"no questions in rows \(20, 30\)"):
        load_questions(SplitConfig(path=path, rows=(20, 30)))


def test_one_file_is_divided_into_three_splits(tmp_path: Path) -> None:
    path = written(tmp_path, *({"id": str(i), "text": f"What is {i}?"} for i in range(10)))
    config = QuestionsConfig.model_validate({"path": path, "split": [0.7, 0.1, 0.2]})
    splits = [load_questions(split, seed=1) for split in (config.train, config.dev, config.test)]
    assert [len(split) for split in splits] == [7, 1, 2]
    assert sorted(q.id for split in splits for q in split) == [str(i) for i in range(10)]
    assert splits[0] == sorted(splits[0], key=lambda q: int(q.id)), "in file order"
    again = [load_questions(split, seed=2) for split in (config.train, config.dev, config.test)]
    assert again != splits
    with pytest.raises(UserError, match=r"no questions in the share \(0.7, 0.71\)"):
        load_questions(SplitConfig(path=path, share=(0.7, 0.71)))


@pytest.mark.parametrize(
    ("questions", "message"),
    [
        ({"path": "q.csv", "split": [0.7, 0.3]}, "expected the shares of train, dev and test"),
        ({"path": "q.csv", "split": [0.7, 0.2, 0.2]}, "expected the shares of train, dev and test"),
        ({"path": "q.csv", "split": "0.7"}, "expected the shares of train, dev and test"),
        ({"path": "q.csv", "split": [0.7, 0.1, 0.2], "test": {"path": "t.csv"}}, "leave out test, or split"),
    ],
)
def test_a_bad_division_is_named(questions: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse(QuestionsConfig, questions, "mine.yaml: questions")


def test_a_shuffled_order_hangs_on_the_seed_and_leaves_nothing_out(tmp_path: Path) -> None:
    path = written(tmp_path, *({"id": str(i), "text": f"{i}?"} for i in range(20)))
    shuffled = SplitConfig(path=path, rows=(0, 10), order="shuffled")
    orders = [[q.id for q in load_questions(shuffled, seed)] for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2] and orders[0] != sorted(orders[0])
    assert {*orders[0]} == {*orders[2]} == {str(i) for i in range(10)}


def test_a_clustered_order_puts_questions_that_share_a_name_together(tmp_path: Path) -> None:
    texts = ("Is Velm old?", "Is Orsk?", "Do Velm and Tarn trade?", "Is Tarn small?")
    path = written(tmp_path, *({"id": str(i), "text": text} for i, text in enumerate(texts)))
    assert [q.id for q in load_questions(SplitConfig(path=path, order="clustered"))] == ["0", "2", "3", "1"]


def test_a_sample_hangs_on_the_seed_and_the_questions_and_not_on_their_order() -> None:
    asked = [Question(id=str(i), text=f"Who is {i}?") for i in range(300)]
    fifty = sample_questions(asked, 50, seed=1)
    assert [q.id for q in fifty[:4]] == ["3", "8", "17", "19"], "the sample of a seed never changes"
    assert fifty == sorted(fifty, key=lambda q: int(q.id)), "in file order"
    shuffled = random.Random(0).sample(asked, len(asked))
    assert set(sample_questions(shuffled, 50, seed=1)) == set(fifty)
    assert set(sample_questions(asked, 100, seed=1)) > set(fifty), "a larger sample holds the smaller one"
    assert set(sample_questions(asked[:200], 50, seed=1)) > {q for q in fifty if int(q.id) < 200}
    assert len(set(sample_questions(asked, 50, seed=2)) & set(fifty)) < 25


def test_the_digest_tells_what_was_chosen(tmp_path: Path) -> None:
    rows = [{"question": f"Who is {i}?", "answer": ["x"]} for i in range(9)]
    path = written(tmp_path, *rows, name="NQ-open.dev.jsonl")
    config = SplitConfig(benchmark="nq", path=str(tmp_path), sample=5)
    facts = load_split(config, 1).facts()
    assert facts == {
        "benchmark": "nq",
        "split": "test",
        "source": path,
        "file": file_digest(Path(path)),
        "count": 5,
        "digest": load_split(config, 1).digest,
    }
    assert load_split(config, 2).digest != facts["digest"] and load_split(config, 2).file_digest == facts["file"]
    everything = SplitConfig(benchmark="nq", path=path)
    before = load_split(everything).digest
    rows[0]["answer"] = ["x", "y"]
    written(tmp_path, *rows, name="NQ-open.dev.jsonl")
    assert load_split(everything).digest != before, "an answer is part of it"


def test_a_file_that_is_not_there_says_what_was_looked_for_and_where_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"data/nq: the 'test' of NQ.*NQ-open\.dev\.jsonl, nq/test\.jsonl.*path: hub"):
        load_questions(SplitConfig(benchmark="nq"))
    with pytest.raises(UserError, match=r"no 'tset' \(did you mean 'test'\?\)"):
        load_questions(SplitConfig(benchmark="nq", split="tset"))
    with pytest.raises(UserError, match=r"no 'hotpot' in questions/benchmarks/ \(did you mean 'hotpotqa'\?\)"):
        load_questions(SplitConfig(benchmark="hotpot"))
    written(tmp_path, {"question": "Who?", "answer": "x"}, name="data/nq/test.jsonl")
    assert [q.answers for q in load_questions(SplitConfig(benchmark="nq"))] == [("x",)]


NEW = """
from dataclasses import replace

from ratchet.questions.benchmark import Benchmark, HubDataset
from ratchet.questions.formats import Format, texts

BENCHMARK = Benchmark(
    title="Harbour questions",
    about="made up",
    licence="none",
    source="nowhere",
    gold="none",
    splits={"dev": ("harbour.csv",), "test": ()},
    default_split="dev",
    formats=(Format("plain", ("q", "a"), lambda row: {"text": row["q"], "answers": texts(row["a"])}),),
    hub=(HubDataset("FOLDER", None, {"test": "train"}),),
)
"""


@pytest.fixture
def harbour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A new benchmark: one file in the benchmarks' folder. Its hub is a folder, which `datasets` reads as one."""
    hub = tmp_path / "hub"
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "harbour.py").write_text(NEW.replace("FOLDER", str(hub)))
    monkeypatch.setattr(
        ratchet.questions.benchmarks, "__path__", [*ratchet.questions.benchmarks.__path__, str(tmp_path / "modules")]
    )
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    yield tmp_path
    sys.modules.pop("ratchet.questions.benchmarks.harbour", None)


def test_a_new_benchmark_is_one_file(harbour: Path) -> None:
    (harbour / "harbour.csv").write_text('q,a\n"Who, then?",Ada\n')
    [question] = load_questions(SplitConfig(benchmark="harbour", path=str(harbour)))
    assert (question.id, question.text, question.answers) == ("row-0", "Who, then?", ("Ada",))
    broken = harbour / "modules" / "harbour.py"
    broken.write_text(broken.read_text().replace("BENCHMARK =", "OTHER ="))
    sys.modules.pop("ratchet.questions.benchmarks.harbour")
    with pytest.raises(UserError, match=r"harbour\.py declares no benchmark"):
        load_benchmark("harbour")


def test_a_data_set_of_the_hub(harbour: Path) -> None:
    split = SplitConfig(benchmark="harbour", split="test", path="hub")
    with pytest.raises(UserError, match=r"hub:.*cannot be fetched \(.*Is there a network\? Else bring the file"):
        load_questions(split)
    written(harbour, {"q": "Who?", "a": ["Ada"]}, {"q": "Where?", "a": ["Velm"]}, name="hub/rows.jsonl")
    found = load_split(split)
    assert [q.text for q in found.questions] == ["Who?", "Where?"]
    assert (found.file_digest, found.source) == (None, f"hub:{harbour / 'hub'}:train")
    with pytest.raises(UserError, match="the hub has no 'dev'"):
        load_questions(SplitConfig(benchmark="harbour", path="hub"))
    with pytest.raises(UserError, match="no such data set"):
        load_questions(SplitConfig(benchmark="harbour", split="test", path="hub:other"))


def test_a_benchmark_outside_our_tree_is_named_by_its_path(harbour: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (harbour / "mine").mkdir()
    (harbour / "modules" / "harbour.py").rename(harbour / "mine" / "lighthouse.py")
    (harbour / "harbour.csv").write_text('q,a\n"Who, then?",Ada\n')
    name = str(harbour / "mine" / "lighthouse.py")
    [question] = load_questions(SplitConfig(benchmark=name, path=str(harbour)))
    assert question.answers == ("Ada",)
    assert load_benchmark(name).folder(SplitConfig(benchmark=name)) == Path("data/lighthouse")
    with pytest.raises(UserError, match=r"benchmark: there is no file .*nowhere\.py"):
        load_benchmark("./nowhere.py")


def test_the_page_of_benchmarks_has_every_one_with_its_files() -> None:
    page = (Path(__file__).parents[2] / "docs/reference/benchmarks.md").read_text()
    for name in known_plugins("benchmarks"):
        benchmark = load_benchmark(name)
        [row] = [line for line in page.splitlines() if line.startswith(f"| `{name}`")]
        files = [f"`{name}`" for names in benchmark.splits.values() for name in names]
        hub = [f"`{data_set.path}`" for data_set in benchmark.hub]
        assert all(text in row for text in (benchmark.about, benchmark.licence, *benchmark.splits, *files, *hub)), row


@pytest.mark.parametrize(
    ("part", "code", "message"),
    [
        ("rows", "    return 1 / 0", r"rows failed \(ZeroDivisionError: .*; odd\.py, line \d+\)"),
        ("rows", "    yield 'line 1', 7", r"rows failed \(TypeError: it gave str and int"),
        ("rows", "    yield 'line 1', {}", r"line 1: has the fields \(none\)"),
        ("beside", "    raise SystemExit(0)", r"beside failed \(SystemExit: 0; odd\.py, line \d+\)"),
        ("beside", "    return lambda row, fields: row['x']", r"beside failed at .*odd\.csv:.*\(KeyError: 'x'"),
        ("formats", "7", r"is not a benchmark as .*\(TypeError"),
        ("formats", "('csv',)", r"its formats hold what is not a Format"),
        ("splits", "{}", r"its splits have no list of file names for the default split"),
    ],
)
def test_a_mistake_in_a_benchmark_outside_our_tree_is_one_line_that_names_it(
    harbour: Path, part: str, code: str, message: str
) -> None:
    more = f"def made(*given):\n{code}" if part in ("rows", "beside") else f"made = {code}"
    odd = harbour / "odd.py"
    source = (harbour / "modules" / "harbour.py").read_text()
    odd.write_text(f"{source}\n\n{more}\nBENCHMARK = replace(BENCHMARK, {part}=made)\n")
    (harbour / "odd.csv").write_text('q,a\n"Who, then?",Ada\n')
    with pytest.raises(UserError, match=message) as raised:
        load_questions(SplitConfig(benchmark=str(odd), path=str(harbour / "odd.csv")))
    assert "odd.py" in str(raised.value)


def test_values_of_parquet_that_are_no_text_and_no_date_name_row_and_column(tmp_path: Path) -> None:
    asked = pa.array([b"Who?", b"\xff", b"What?"], pa.binary()).view(pa.string())
    made = pa.array([None, None, 2**62], pa.timestamp("us"))
    pq.write_table(pa.table({"question": asked, "answer": ["a", "b", "c"], "made": made}), tmp_path / "q.parquet")
    words = (
        r"row 2: not valid UTF-8 in column .question.(.|\n)*q\.parquet: row 3: a value in column .made. cannot be read"
    )
    with pytest.raises(UserError, match=words):
        load_questions(SplitConfig(path=str(tmp_path / "q.parquet")))
