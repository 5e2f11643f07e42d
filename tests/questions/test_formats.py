"""Every format of every benchmark, from small files as their releases have them."""

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ratchet.core.config import SplitConfig
from ratchet.core.errors import UserError
from ratchet.core.plugins import known_plugins
from ratchet.core.records import Document
from ratchet.questions.benchmark import load_benchmark
from ratchet.questions.evidence import EvidenceSource, evidence
from ratchet.questions.load import load_questions

FACTS = [["Velmora", 0], ["Haverdunk", 2], ["Velmora", 1]]
HOTPOT = {"question": "Who rules?", "answer": "Ada", "type": "bridge", "supporting_facts": FACTS, "context": []}
HUB_FACTS = {"title": ["Velmora", "Haverdunk"], "sent_id": [0, 2]}
PAGES = ("Velmora", "Haverdunk")
MUSIQUE = {
    "id": "3hop1__12_34_56",
    "question": "Who rules?",
    "answer": "Ada",
    "answer_aliases": ["Ada Pell", "Ada"],
    "answerable": True,
    "paragraphs": [
        {"idx": 0, "title": "Elsewhere", "paragraph_text": "x", "is_supporting": False},
        {"idx": 1, "title": "Velmora", "paragraph_text": "x", "is_supporting": True},
    ],
}
TRIVIA = {
    "Question": "Who rules?",
    "QuestionId": "tc_1",
    "Answer": {"Value": "Ada", "Aliases": ["Ada", "Ada-Pell"], "NormalizedAliases": ["ada", "ada pell"]},
    "EntityPages": [{"Title": "Not gold"}],
}
LIVERAG = {
    "Index": 3,
    "Question": "Who rules?",
    "Answer": "Ada does.",
    "Supporting_Documents": [{"content": "x", "doc_id": "<urn:uuid:1>"}, {"content": "y", "doc_id": "<urn:uuid:2>"}],
    "Answer_Claims": {"direct": ["Ada rules."], "useful": ["She is old."], "useless": []},
}


def flashrag(**metadata: Any) -> dict[str, Any]:
    return {"id": "dev_0", "question": "Who rules?", "golden_answers": ["Ada", " ", "Ada Pell"], "metadata": metadata}


STRATEGY = {
    "qid": "s1",
    "term": "Ada Pell",
    "question": "Who rules?",
    "answer": False,
    "facts": ["Ada Pell ruled Velm."],
    "evidence": [
        [[["Ada Pell-2", "Velm (town)-1"]], [["Ada Pell-3", "Semi-final-1"], "no_evidence"], ["operation"]],
        [[["Another page-1"]], ["operation"], []],
    ],
}


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    """The rows as the file's name says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".json":
        path.write_text(json.dumps({"Data": rows} if "Question" in rows[0] else rows, indent=1))
    elif path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix in (".csv", ".tsv"):
        with path.open("w", newline="", encoding="utf-8-sig") as file:
            writer = csv.DictWriter(file, rows[0], delimiter="\t" if path.suffix == ".tsv" else ",")
            writer.writeheader()
            writer.writerows(rows)
    else:
        lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
        path.write_bytes(gzip.compress(lines) if path.suffix == ".gz" else lines)
    return path


OPEN = {"question": "Who rules?", "answer": ["Ada"]}
BOTH = {"answers": ("Ada", "Ada Pell")}
TRIVIA_HUB = {"question": "Who rules?", "question_id": "tc_1", "answer": {"value": "Ada", "aliases": ["Ada Pell"]}}
POP = {"id": 7, "prop": "ruler", "question": "Who rules?", "possible_answers": '["Ada", "A. \\"P.\\" Pell"]'}
COMPARED = flashrag(type="comparison", supporting_facts=HUB_FACTS)
MORGANA = {"id": "d", "question": "Who rules?", "answer": "Ada.", "document_ids": ["<urn:u1>"], "documents": "two-doc"}
MORGANA_TWO = {"question": "Who rules?", "answer": "Ada.", "document_ids": ["u1", "u2"], "question_categories": []}
LIVERAG_FIELDS = {"id": "3", "reference": "Ada does.", "nuggets": ("Ada rules.",), "kind": "multi-doc"}
STRATEGY_FIELDS = {"id": "s1", "answers": ("no",), "gold_titles": ("Ada Pell", "Velm (town)", "Semi-final")}
MUSIQUE_FIELDS = {"kind": "3hop1", "answers": ("Ada", "Ada Pell"), "gold_titles": ("Velmora",)}


@pytest.mark.parametrize(
    ("split", "name", "row", "expected"),
    [
        ("nq/test", "nq/test.jsonl", flashrag(), {"id": "dev_0", **BOTH}),
        ("nq/test", "nq_test.jsonl", flashrag(), {"id": "dev_0"}),
        ("nq/test", "NQ-open.dev.jsonl", OPEN, {"id": "row-0"}),
        ("nq/train", "NQ-open.train.jsonl.gz", OPEN, {"answers": ("Ada",)}),
        ("nq/dev", "dev.jsonl", {"id": "a", "text": "Who rules?", "answers": ["Ada"]}, {"id": "a"}),
        ("triviaqa/test", "triviaqa-unfiltered/unfiltered-web-dev.json", TRIVIA, {"id": "tc_1", "gold_titles": ()}),
        ("triviaqa/test", "unfiltered-web-dev.json", TRIVIA, {"answers": ("Ada", "Ada-Pell", "ada", "ada pell")}),
        ("triviaqa/test", "test.parquet", TRIVIA_HUB, {"id": "tc_1", **BOTH}),
        ("popqa/test", "test.jsonl", flashrag(prop="ruler", s_wiki_title="No"), {"kind": "ruler", "gold_titles": ()}),
        ("popqa/test", "popQA.tsv", POP, {"id": "7", "kind": "ruler", "answers": ("Ada", 'A. "P." Pell')}),
        ("twowiki/dev", "2wikimultihopqa/dev.jsonl", COMPARED, {"kind": "comparison", "gold_titles": PAGES}),
        ("twowiki/dev", "dev.json", {"_id": "w1", **HOTPOT}, {"id": "w1", "kind": "bridge", "gold_titles": PAGES}),
        ("strategyqa/train", "strategyqa_train.json", STRATEGY, STRATEGY_FIELDS),
        ("strategyqa/dev", "data/strategyqa/dev.json", {**STRATEGY, "answer": True}, {"answers": ("yes",)}),
        ("strategyqa/train", "strategyqa/train.jsonl", flashrag() | {"golden_answers": [True]}, {"answers": ("yes",)}),
        ("hotpotqa/dev", "dev.jsonl", COMPARED, {"gold_titles": PAGES}),
        ("hotpotqa/dev", "hotpot_dev_fullwiki_v1.json", {"_id": "h1", **HOTPOT}, {"id": "h1", "answers": ("Ada",)}),
        ("hotpotqa/train", "hotpot_train_v1.1.json", {"id": "h1", **HOTPOT}, {"gold_titles": PAGES, "kind": "bridge"}),
        ("musique/dev", "musique_ans_v1.0_dev.jsonl", MUSIQUE, MUSIQUE_FIELDS),
        ("musique/dev", "musique/dev.jsonl", flashrag(), {"gold_titles": ()}),
        (
            "bamboogle/test",
            "bamboogle.csv",
            {"Question": "Who rules?", "Answer": "Ada, Pell"},
            {"answers": ("Ada, Pell",)},
        ),
        (
            "datamorgana/train",
            "train.jsonl",
            MORGANA,
            {"reference": "Ada.", "gold_ids": ("urn:u1",), "kind": "two-doc"},
        ),
        ("datamorgana/dev", "dev.jsonl", MORGANA_TWO, {"id": "row-0", "gold_ids": ("u1", "u2"), "kind": "multi-doc"}),
        ("datamorgana/test", "LiveRAG_banchmark_20250910.parquet", LIVERAG, LIVERAG_FIELDS),
    ],
)
def test_a_benchmark_is_read_in_the_formats_that_people_have(
    tmp_path: Path, split: str, name: str, row: dict[str, Any], expected: dict[str, Any]
) -> None:
    write(tmp_path / name, [row])
    benchmark, _, split = split.partition("/")
    [question] = load_questions(SplitConfig(benchmark=benchmark, split=split, path=str(tmp_path)))
    assert question.text == "Who rules?"
    assert {key: getattr(question, key) for key in expected} == expected


def test_every_benchmark_says_what_it_is() -> None:
    known = known_plugins("benchmarks")
    assert {"nq", "triviaqa", "popqa", "twowiki", "hotpotqa", "musique", "bamboogle", "datamorgana"} < set(known)
    for one in map(load_benchmark, known):
        assert one.title and one.about and one.licence and one.source and one.gold
        assert one.default_split in one.splits and one.formats[-1].name == "ratchet"
        assert {split for found in one.hub for split in found.splits} <= set(one.splits)


def test_the_hub_is_asked_for_the_best_data_set_that_has_the_split_or_for_the_one_that_is_named() -> None:
    nq, named = load_benchmark("nq"), "google-research-datasets/nq_open"
    for split, path, found in (("dev", "hub", "RUC-NLPIR/FlashRAG_datasets"), ("test", f"hub:{named}", named)):
        assert nq.hub_set(SplitConfig(benchmark="nq", split=split, path=path)).path == found


CONTEXT = [["Velmora", ["Velm rules.", " Ada rules Velm."]], ["Elsewhere", ["x"]]]
HUB_CONTEXT = {"title": [title for title, _ in CONTEXT], "sentences": [sentences for _, sentences in CONTEXT]}


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("hotpotqa", HOTPOT | {"id": "h1", "context": CONTEXT}),
        ("hotpotqa", HOTPOT | {"id": "h1", "context": HUB_CONTEXT, "supporting_facts": HUB_FACTS}),
        ("twowiki", HOTPOT | {"_id": "w1", "context": json.dumps(CONTEXT)}),
        ("twowiki", flashrag(supporting_facts=HUB_FACTS, context={"title": ["Velmora"], "content": [CONTEXT[0][1]]})),
    ],
)
def test_rows_with_paragraphs_make_a_corpus_whose_documents_the_questions_name(
    tmp_path: Path, name: str, row: dict[str, Any]
) -> None:
    path = write(tmp_path / "dev.jsonl", [row])
    [question] = load_questions(SplitConfig(benchmark=name, path=str(path)))
    assert question.gold_ids == (f"{name}:Velmora", f"{name}:Haverdunk") and question.gold_titles == PAGES
    found = list(evidence(EvidenceSource.parse(f"{name}/dev:{path}")))
    assert found[0] == Document(f"{name}:Velmora", "Velm rules. Ada rules Velm.", "Velmora")


def test_musique_names_its_paragraphs_by_their_content(tmp_path: Path) -> None:
    first: Any = MUSIQUE["paragraphs"]
    twice = MUSIQUE | {"paragraphs": [*first, {"title": "Velmora", "paragraph_text": "y"}]}
    path = write(tmp_path / "dev.jsonl", [twice])
    [question] = load_questions(SplitConfig(benchmark="musique", path=str(path)))
    found = list(evidence(EvidenceSource.parse(f"musique/dev:{path}")))
    assert [one.title for one in found if one.id in question.gold_ids] == ["Velmora"]
    assert len({one.id for one in found}) == 3


def test_2wikis_aliases_count_where_their_file_lies_beside(tmp_path: Path) -> None:
    path = write(tmp_path / "dev.json", [{"_id": "w1", "answer_id": "Q5", **HOTPOT}, {"_id": "w2", **HOTPOT}])
    write(tmp_path / "id_aliases.jsonl", [{"Q_id": "Q5", "aliases": ["Ada the Old"], "demonyms": []}])
    (tmp_path / "id_aliases.jsonl").rename(tmp_path / "id_aliases.json")  # JSON lines, whatever it is called
    first, second = load_questions(SplitConfig(benchmark="twowiki", path=str(path)))
    assert first.answers == ("Ada", "Ada the Old") and second.answers == ("Ada",)
    (tmp_path / "id_aliases.json").write_text('{"id": "Q5"}')
    with pytest.raises(UserError, match=r"id_aliases\.json.*no Q_id"):
        load_questions(SplitConfig(benchmark="twowiki", path=str(path)))


@pytest.mark.parametrize(
    ("benchmark", "name", "row", "message"),
    [
        ("nq", "test.jsonl", {"q": "?", "a": "x"}, r"test\.jsonl:1: has the fields q, a; the formats of NQ are"),
        ("strategyqa", "dev.json", {**STRATEGY, "answer": "perhaps"}, r"answer: expected true or false, got 'perhaps'"),
        ("nq", "test.jsonl", {"question": "Who?", "answer": []}, r":1: has no answer; is this"),
        ("nq", "test.jsonl", {"question": " ", "answer": ["x"]}, r":1: the question is blank"),
        ("nq", "test.jsonl", {"question": "Who?", "answer": [{"x": 1}]}, r":1: not as the format 'official' has it"),
        ("hotpotqa", "dev.json", {**HOTPOT}, r"dev\.json: row 1: no field 'id'"),
        ("musique", "dev.jsonl", {**MUSIQUE, "answerable": False}, "take the musique_ans files"),
        ("popqa", "popQA.tsv", {"id": 1, "question": "Who?", "possible_answers": "[Ada"}, r"popQA\.tsv:2: not as"),
    ],
)
def test_a_row_that_does_not_fit_is_named(
    tmp_path: Path, benchmark: str, name: str, row: dict[str, Any], message: str
) -> None:
    split = SplitConfig(benchmark=benchmark, path=str(write(tmp_path / name, [row])))
    with pytest.raises(UserError, match=message):
        load_questions(split)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("q.csv", b"Question,Answer\nWho?\n", r"q\.csv:2: not 2 cells"),
        ("q.csv", b"Question,Answer\nWho?,a,b\n", r"q\.csv:2: not 2 cells"),
        ("q.csv", b'Question,Answer\nWho?,"a\nWhat?,b\n', r"q\.csv:3: not a table \(unexpected end of data\)"),
        ("q.csv", b"Question,Answer,Answer\nWho?,a,b\n", r"q\.csv:1: the header has 'Answer' more than once"),
        ("q.csv", "Question,Answer\nWo ist Öl für Köln?,übrig".encode() + b"\xff\n", "not UTF-8 text .*at byte 45"),
        ("q.csv", "Question,Answer\n".encode("utf-16-le"), "not UTF-8 text .*convert the file to UTF-8"),
        ("q.jsonl", '{"Question": "Who?"}\n'.encode("utf-16"), "not UTF-8 text .*convert the file to UTF-8"),
        ("q.jsonl", '{"Question": "Who?"}\n'.encode("utf-16-le"), "not UTF-8 text .*convert the file to UTF-8"),
        ("q.json", b"[{]", "not valid JSON"),
        ("q.json", b'{"Data": 3}', "expected a list of questions, got int"),
        ("q.json", b"[3]", r"row 1: expected a question"),
        ("q.json", b'{"Question": "Who?", "Answer": "x"}\n{"Question": \n', r"q\.json:2: not valid JSON"),
        ("q.parquet", b"PAR1 no", "cannot read as Parquet"),
        ("q.csv.gz", b"not gzip", "cannot read"),
        ("q.jsonl", b"[1]\n", r"q\.jsonl:1: expected a question"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message):
        load_questions(SplitConfig(benchmark="bamboogle", path=str(tmp_path / name)))


@pytest.mark.parametrize(
    ("name", "table"),
    [
        ("q.csv", "sep=;\r\nQuestion;Answer\r\nWho, then?;Ada\r\n"),
        ("q.csv", "Question,Answer\rWho; then?,Ada\r"),
        ("q.csv", "Question;Answer;;\nWho?;Ada;;\n;;;\n"),
        ("q.tsv", "Question, short\tQuestion\tAnswer\nx\tWho?\tAda\n"),
        ("q.csv", "\nQuestion,Answer\n\nWho?,Ada\n , \n"),
    ],
)
def test_tables_as_spreadsheets_save_them(tmp_path: Path, name: str, table: str) -> None:
    (tmp_path / name).write_bytes(table.encode())
    [question] = load_questions(SplitConfig(path=str(tmp_path / name)))
    assert question.text.startswith("Who") and question.answers == ("Ada",)


def test_all_bad_lines_of_a_table_are_named_at_once(tmp_path: Path) -> None:
    (tmp_path / "q.csv").write_text('Question,Answer\nWho?,"a"b\nWhat?,b\nWhy?,"c"d\nHow?\n,e\n')
    with pytest.raises(UserError, match="4 of the first 5 rows") as caught:
        load_questions(SplitConfig(path=str(tmp_path / "q.csv")))
    assert all(f"q.csv:{line}: " in str(caught.value) for line in (2, 4, 5, 6))
