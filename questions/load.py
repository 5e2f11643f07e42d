"""The questions of a split: read from a file or the hub, checked, chosen, and their digest.

A file is JSONL, JSON, CSV, TSV or Parquet; each of the text formats may be compressed (.gz). A row comes with its place
("nq.jsonl:7", "dev.json: row 3"), which every error about it names.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import logging
import random
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import PydanticSerializationError

from ratchet.core.config import SplitConfig
from ratchet.core.errors import RowErrors, UserError, raise_error
from ratchet.core.file_kinds import decode_text, parquet_rows
from ratchet.core.files import open_regular, read_jsonl
from ratchet.core.http.environment import hub_reason, leave_unreachable_hub
from ratchet.core.records import Question, questions_digest
from ratchet.core.runfolder import file_digest
from ratchet.core.words import fold_text, split_words
from ratchet.questions.benchmark import Benchmark, HubDataset, PlacedRow, load_benchmark
from ratchet.questions.formats import (
    ALIASES,
    BY_NAME,
    DATAMORGANA,
    NO_ANSWER,
    NO_SEPARATOR,
    RATCHET,
    Cell,
    Format,
    Row,
    field_name,
    separate,
)
from ratchet.retrieval.names import by_shared_names

logger = logging.getLogger(__name__)

ANSWERS = {"answer", "answers", "golden_answers", "reference", "reference_answer", "label", "nuggets"}
"""Fields that say what is right."""
SEPARATOR = re.compile(r"sep=([,;\t])")
MAX_SHOWN_FIELDS = 20
"""Fields of a row that an error names."""
csv.field_size_limit(2**31 - 1)
"""Holds for the process. A cell may be a whole document, which the module's default of 131,072 characters refuses."""


@dataclass(frozen=True)
class LoadedSplit:
    """The questions of a split, and where they are from."""

    questions: list[Question]
    """In file order."""
    source: str
    """The file, or 'hub:' and the data set."""
    file_digest: str | None
    """sha256 of the file; None for a data set of the hub."""
    benchmark: str = ""
    split: str = ""
    places: Mapping[str, str] = field(default_factory=dict)
    """Where each question stands, by its id: the file and line."""

    @cached_property
    def digest(self) -> str:
        """The digest of the chosen questions, with all that belongs to them, in their order."""
        return questions_digest(self.questions)

    def facts(self) -> dict[str, Any]:
        return {
            **({"benchmark": self.benchmark, "split": self.split} if self.benchmark else {}),
            "source": self.source,
            "file": self.file_digest,
            "count": len(self.questions),
            "digest": self.digest,
        }


def load_questions(split: SplitConfig, seed: int = 0) -> list[Question]:
    """The questions of a split, in file order. Errors name the file and the line."""
    return load_split(split, seed).questions


def load_split(split: SplitConfig, seed: int = 0) -> LoadedSplit:
    """The questions of a split and where they are from. Raises UserError."""
    bad = RowErrors()
    if not split.benchmark:
        path, format = Path(split.path), BY_NAME[split.format]
        names: set[str] = set()

        def read_row(place: str, row: Row) -> Row:
            names.update(map(field_name, row))
            try:
                row = row if format is DATAMORGANA else separate(row, split.separator)
            except ValueError as error:
                raise UserError(f"{place}: {error}") from error
            return _fields(place, row, format)

        read, places = _validate(read_rows(path, bad.add), read_row, bad)
        if (empty := names & ANSWERS) and not any(map(is_answered, read)):
            raise UserError(f"{path}: {' and '.join(sorted(empty))}: every question {NO_ANSWER}")
        return LoadedSplit(_select_rows(read, split, seed, str(path)), str(path), file_digest(path), places=places)
    benchmark = load_benchmark(split.benchmark)
    name = benchmark.split(split)
    if split.on_hub:
        data_set = benchmark.hub_set(split)
        read, places = _read(benchmark, name, _hub_rows(data_set, name), None, bad)
        source = ":".join(part for part in ("hub", data_set.path, data_set.config, data_set.splits[name]) if part)
        return LoadedSplit(_select_rows(read, split, seed, data_set.path), source, None, benchmark.name, name, places)
    path = find_file(benchmark, split)
    read, places = _read(benchmark, name, read_rows(path, bad.add), path.parent, bad)
    selected = _select_rows(read, split, seed, str(path))
    return LoadedSplit(selected, str(path), file_digest(path), benchmark.name, name, places)


def load_queries(path: Path) -> list[Question]:
    """The queries of a file: questions in our own format, BEIR's `queries.jsonl`, or a TSV without a header whose
    columns are id and text, as MS MARCO's. Raises UserError."""
    if path.name.endswith((".tsv", ".tsv.gz")):
        lines = _read_text(path).split("\n")
        names = map(field_name, lines[0].split("\t"))
        if "text" not in (ALIASES.get(name, name) for name in names):
            rows = ((f"{path}:{number}", {"line": line}) for number, line in enumerate(lines, 1) if line.strip())
            if not (queries := _validate(rows, _query, RowErrors("queries"))[0]):
                raise UserError(f"{path}: no queries")
            return queries
    return load_questions(SplitConfig(path=str(path), separator=NO_SEPARATOR))


def _query(place: str, row: Row) -> Row:
    id, tab, text = row["line"].rstrip("\r").partition("\t")
    if not tab:
        raise UserError(f"{place}: no tab between the id and the text of a query")
    return {"id": id, "text": text}


def is_there(split: SplitConfig) -> bool:
    """Tell whether the file of a split is there; a data set of the hub counts as there."""
    if not split.benchmark:
        return Path(split.path).exists()
    return split.on_hub or load_benchmark(split.benchmark).find(split) is not None


def is_answered(question: Question) -> bool:
    """Tell whether the question has anything that says which answer is right."""
    return any((question.answers, question.reference, question.label, question.nuggets))


def find_file(benchmark: Benchmark, split: SplitConfig) -> Path:
    """The split's file. Raises UserError with the names that were looked for, and where to get it."""
    path = benchmark.find(split)
    if path is not None:
        return path
    name = benchmark.split(split)
    hub = " Or have it fetched: path: hub." if any(name in data_set.splits for data_set in benchmark.hub) else ""
    raise UserError(
        f"{benchmark.folder(split)}: the {name!r} of {benchmark.title} is not here. Looked for "
        f"{', '.join(benchmark.file_names(name))} (each also as .gz) in it. Get it from {benchmark.source}, and put it "
        f"there, or point `path` at the file or its folder.{hub}"
    )


def _read(
    benchmark: Benchmark, split: str, placed: Iterable[PlacedRow], folder: Path | None, bad: RowErrors
) -> tuple[list[Question], dict[str, str]]:
    with benchmark.plugin.errors("beside failed"):
        complete = benchmark.beside(folder) if benchmark.beside and folder else None

    def read(place: str, row: Row) -> Row:
        format = next((known for known in benchmark.formats if all(key in row for key in known.keys)), None)
        if format is None:
            shown = ", ".join(map(str, list(row)[:MAX_SHOWN_FIELDS])) or "(none)"
            # What a plug-in calls the place of its row may name nothing that a user knows.
            outside = f"{benchmark.plugin.name}: " if benchmark.plugin.is_outside else ""
            raise UserError(
                f"{outside}{place}: has the fields {shown}; the formats of {benchmark.title} are "
                + "; ".join(map(str, benchmark.formats))
            )
        fields = _fields(place, row, format)
        if complete is not None:
            with benchmark.plugin.errors(f"beside failed at {place}"):
                fields = complete(row, fields)
        if "answers" in fields and not fields["answers"] and not fields.get("reference"):
            raise UserError(f"{place}: {NO_ANSWER}")
        return fields

    return _validate(benchmark.split_rows(placed, split, folder), read, bad)


def _fields(place: str, row: Row, format: Format) -> Row:
    try:
        return format.read(row)
    except KeyError as error:
        raise UserError(
            f"{place}: no field {error} (format {format.name!r}); is this the right file and format?"
        ) from error
    except (TypeError, ValueError, AttributeError) as error:
        message = str(error) if format is RATCHET else f"not as the format {format.name!r} has it ({error})"
        raise UserError(f"{place}: {message}") from error


def _validate(
    rows: Iterable[PlacedRow], read: Callable[[str, Row], Row], bad: RowErrors
) -> tuple[list[Question], dict[str, str]]:
    """The questions of all rows, and by id the place of each. The error names every bad row, the reader's too."""
    places: dict[str, str] = {}
    questions: list[Question] = []
    number = 0
    try:
        for number, (place, row) in enumerate(rows, 1):
            try:
                question = _question(place, {"id": f"row-{number - 1}", **read(place, row)})
                if question.id in places:
                    raise UserError(
                        f"{place}: id {question.id!r} is already used at {places[question.id]}; ids must differ"
                    )
            except UserError as error:
                bad.add(error)
                continue
            places[question.id] = place
            questions.append(question)
    except UserError as error:  # the file itself cannot be read on from here
        bad.add(error)
    bad.check(len(questions))
    return questions, places


def _question(place: str, fields: Row) -> Question:
    try:
        question = Question.model_validate(fields)
        question.model_dump_json()  # refuses what no file can hold
    except PydanticSerializationError as error:
        raise UserError(f"{place}: holds half of a surrogate pair, which is no text ({error})") from error
    except ValidationError as error:
        problem = error.errors()[0]
        key = ".".join(str(part) for part in problem["loc"])
        raise UserError(f"{place}: {key}: {problem['msg']}".replace(": : ", ": ")) from error
    if not question.text.strip():
        raise UserError(f"{place}: the question is blank; fix or remove it")
    if question.answers and all(answer.strip() == "<unk>" for answer in question.answers):  # TriviaQA's test
        raise UserError(f"{place}: {NO_ANSWER}")
    if len(question.labels) == 1:
        raise UserError(f"{place}: labels holds {question.labels[0].name!r} alone; a choice needs two labels or more")
    return question


def _select_rows(questions: list[Question], split: SplitConfig, seed: int, source: str) -> list[Question]:
    first, last = split.rows or (0, None)
    questions = questions[first:last]
    if split.share is not None:
        questions = share_of_questions(questions, split.share, seed)
    if not questions:
        part = f" in rows {split.rows}" if split.rows else ""
        raise UserError(f"{source}: no questions{part}" + (f" in the share {split.share}" if split.share else ""))
    if split.sample is not None and split.sample < len(questions):
        questions = sample_questions(questions, split.sample, seed)
    if split.order == "shuffled":
        random.Random(f"order {seed}").shuffle(questions)
    elif split.order == "clustered":
        questions = [questions[place] for place in by_shared_names([question.text for question in questions])]
    return questions


def sample_questions(questions: Sequence[Question], size: int, seed: int) -> list[Question]:
    """Draw a sample that depends on the seed and on the questions' texts, not on their order in the file or their ids.

    A larger sample holds every smaller one; so does one of a file to which questions were added, but for those.
    """
    drawn = sorted(range(len(questions)), key=lambda i: (_sample_order(seed, questions[i].text), i))[:size]
    return [questions[i] for i in sorted(drawn)]


def share_of_questions(questions: Sequence[Question], share: tuple[float, float], seed: int) -> list[Question]:
    """The questions between two shares (0 to 1) of a random order, which depends on the seed and the questions' texts.

    Shares that do not overlap have no question in common: those that are the same (`same_question_key`) are neighbours
    in the order, and a bound between them moves in front of the first one.
    """
    order = [_sample_order(seed, same_question_key(question.text)) for question in questions]
    drawn = sorted(range(len(questions)), key=lambda i: (order[i], i))

    def place(bound: float) -> int:
        at = round(bound * len(drawn))
        while 0 < at < len(drawn) and order[drawn[at - 1]] == order[drawn[at]]:
            at -= 1
        return at

    first, last = map(place, share)
    return [questions[i] for i in sorted(drawn[first:last])]


def same_question_key(text: str) -> str:
    """Equal for texts of the same question: its words in lower case (core/words.py), or all of a text without words."""
    return " ".join(split_words(text)) or fold_text(text).strip()


def _sample_order(seed: int, text: str) -> bytes:
    return hashlib.sha256(f"{seed}\0{text}".encode()).digest()


def _hub_rows(data_set: HubDataset, split: str) -> Iterator[PlacedRow]:
    from datasets import load_dataset

    place = f"hub:{data_set.path}"
    leave_unreachable_hub(data_set.path)
    try:
        rows = load_dataset(data_set.path, data_set.config, split=data_set.splits[split])
    except Exception as error:  # the network, the hub, its cache: whatever it is, the fix is the same
        raise UserError(
            f"{place}: cannot be fetched ({type(error).__name__}: {hub_reason(error, data_set.path)}). Is there a "
            "network? Else bring the file and point `path` at it"
        ) from error
    yield from ((f"{place}: row {number}", dict(row)) for number, row in enumerate(rows, 1))


def read_rows(path: Path, on_error: Callable[[UserError], None] = raise_error) -> Iterator[PlacedRow]:
    """(place, row) of every row, in file order. The error of a single row goes to `on_error`; where that does not raise
    it, the row is skipped."""
    kind = path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix
    if kind == ".parquet":
        yield from _parquet_rows(path, on_error)
    elif kind in (".csv", ".tsv"):
        yield from _csv_rows(path, on_error)
    elif kind == ".json":
        yield from _json_rows(path, on_error)
    else:
        yield from _jsonl_rows(path, on_error)


def _jsonl_rows(path: Path, on_error: Callable[[UserError], None]) -> Iterator[PlacedRow]:
    return ((f"{path}:{line}", row) for line, row in read_jsonl(path, "question", on_error=on_error))


def _json_rows(path: Path, on_error: Callable[[UserError], None]) -> Iterator[PlacedRow]:
    """A list of objects, or {"Data": [...]} as in TriviaQA. Some releases call JSONL .json; its lines tell."""
    text = _read_text(path)
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        if not text.lstrip().startswith("{"):
            raise UserError(f"{path}: not valid JSON ({error}); get the file again") from error
        yield from _jsonl_rows(path, on_error)
        return
    rows = data.get("Data", [data]) if isinstance(data, dict) else data
    if not isinstance(rows, list):
        raise UserError(f"{path}: expected a list of questions, got {type(rows).__name__}")
    for number, row in enumerate(rows, 1):
        place = f"{path}: row {number}"
        if isinstance(row, dict):
            yield place, row
        else:
            on_error(UserError(f"{place}: expected a question ({{...}}), got {type(row).__name__}"))


def _csv_rows(path: Path, on_error: Callable[[UserError], None]) -> Iterator[PlacedRow]:
    """Cells are separated by what separates most names of the header, commas, semicolons or tabs, or by what a first
    line `sep=;` says, as Excel writes it. Lines whose cells are all blank hold no row.

    Strict: a quotation mark that is never closed, or that text follows, is an error and does not join lines.
    """
    text = _read_text(path)
    lines = text.splitlines()
    told = SEPARATOR.fullmatch(lines[0]) if lines else None
    header_line = lines[1 if told else 0] if len(lines) > bool(told) else ""
    delimiter = told[1] if told else max("\t,;" if ".tsv" in path.suffixes else ",;\t", key=header_line.count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    header: list[str] = []
    while True:
        try:
            cells = next(reader, None)
        except csv.Error as error:
            on_error(UserError(f"{path}:{reader.line_num}: not a table ({error}); fix this line"))
            continue
        if cells is None:
            return
        if not any(cell.strip() for cell in cells) or (told and reader.line_num == 1):
            continue
        place = f"{path}:{reader.line_num}"
        if not header:
            header = cells
            if repeated := [name for name, count in Counter(header).items() if count > 1 and name]:
                raise UserError(
                    f"{place}: the header has {', '.join(map(repr, repeated))} more than once; rename a column"
                )
        elif len(cells) != len(header):
            on_error(UserError(f"{place}: not {len(header)} cells, as the header has; fix this line"))
        else:
            yield place, {name: Cell(cell) for name, cell in zip(header, cells, strict=True)}


def _parquet_rows(path: Path, on_error: Callable[[UserError], None]) -> Iterator[PlacedRow]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with open_regular(path) as file:
            rows = parquet_rows(pq.read_table(file))
    except (OSError, pa.ArrowException) as error:
        raise UserError(f"{path}: cannot read as Parquet ({error}); check the path in the config") from error
    for number, row in enumerate(rows, 1):
        place = f"{path}: row {number}"
        if isinstance(row, str):
            on_error(UserError(f"{place}: {row}"))
        else:
            yield place, row


def _read_text(path: Path) -> str:
    try:
        with open_regular(path) as file:
            data = gzip.decompress(file.read()) if path.suffix == ".gz" else file.read()
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{path}: cannot read ({reason}); check the path in the config") from error
    text, encoding = decode_text(data, path)
    if encoding != "utf-8":
        logger.warning("%s: not UTF-8; read as %s", path, encoding)
    return text
