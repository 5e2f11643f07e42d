"""The questions of a split: read from a file or the hub, checked, chosen, and their digest."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import PydanticSerializationError

from questions.benchmark import Benchmark, HubSet, load_benchmark
from questions.files import Row, read_rows
from questions.formats import BY_NAME, Format
from ratchet.config import SplitConfig
from ratchet.errors import UserError
from ratchet.records import Question, questions_digest
from ratchet.runfolder import file_digest

SHOWN = 20
"""Fields of a row that an error names at most."""


@dataclass(frozen=True)
class LoadedSplit:
    questions: list[Question]
    """In file order."""
    source: str
    """The file, or 'hub:' and the data set."""
    file_digest: str | None
    """sha256 of the file; None for a data set of the hub."""
    benchmark: str = ""
    split: str = ""

    @cached_property
    def digest(self) -> str:
        """Of the questions that were chosen, with all that belongs to them, in their order."""
        return questions_digest(self.questions)

    def facts(self) -> dict[str, Any]:
        """What a manifest keeps."""
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
    if not split.benchmark:
        path = Path(split.path)
        one = BY_NAME[split.format]
        rows = ((place, _fields(place, row, one)) for place, row in read_rows(path))
        return LoadedSplit(_choose(_checked(rows), split, seed, str(path)), str(path), file_digest(path))
    benchmark = load_benchmark(split.benchmark)
    name = benchmark.split(split)
    if split.on_hub:
        found = benchmark.hub_set(split)
        chosen = _choose(_checked(_read(benchmark, name, _hub_rows(found, name), None)), split, seed, found.path)
        source = ":".join(part for part in ("hub", found.path, found.config, found.splits[name]) if part)
        return LoadedSplit(chosen, source, None, benchmark.name, name)
    path = find_file(benchmark, split)
    chosen = _choose(_checked(_read(benchmark, name, read_rows(path), path.parent)), split, seed, str(path))
    return LoadedSplit(chosen, str(path), file_digest(path), benchmark.name, name)


def find_file(benchmark: Benchmark, split: SplitConfig) -> Path:
    """The split's file. Raises UserError with the names that were looked for, and where to get it."""
    found = benchmark.find(split)
    if found is not None:
        return found
    name = benchmark.split(split)
    hub = " Or have it fetched: path: hub." if any(name in one.splits for one in benchmark.hub) else ""
    raise UserError(
        f"{benchmark.folder(split)}: the {name!r} of {benchmark.title} is not here. Looked for "
        f"{', '.join(benchmark.names(name))} (each also as .gz) in it. Get it from {benchmark.source}, and put it "
        f"there, or point `path` at the file or its folder.{hub}"
    )


def _read(
    benchmark: Benchmark, split: str, found: Iterable[tuple[str, Row]], folder: Path | None
) -> Iterator[tuple[str, Row]]:
    """(place, fields) of every row, each in the first format of the benchmark whose fields it has."""
    complete = benchmark.beside(folder) if benchmark.beside and folder else None
    for place, row in benchmark.of_split(found, split, folder):
        one = next((one for one in benchmark.formats if all(key in row for key in one.keys)), None)
        if one is None:
            shown = ", ".join(map(str, list(row)[:SHOWN])) or "(none)"
            raise UserError(
                f"{place}: has the fields {shown}; the formats of {benchmark.title} are "
                + "; ".join(map(str, benchmark.formats))
            )
        fields = _fields(place, row, one)
        if complete is not None:
            fields = complete(row, fields)
        if "answers" in fields and not fields["answers"] and not fields.get("reference"):
            raise UserError(f"{place}: has no answer; is this the file of a test whose answers are kept secret?")
        yield place, fields


def _fields(place: str, row: Row, one: Format) -> Row:
    try:
        return one.read(row)
    except KeyError as error:
        raise UserError(
            f"{place}: no field {error} (format {one.name!r}); is this the right file and format?"
        ) from error
    except (TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{place}: not as the format {one.name!r} has it ({error})") from error


def _checked(rows: Iterable[tuple[str, Row]]) -> Iterator[Question]:
    seen: dict[str, str] = {}
    for number, (place, fields) in enumerate(rows):
        try:
            question = Question.model_validate({"id": f"row-{number}", **fields})
            question.model_dump_json()  # refuses what no file can hold
        except PydanticSerializationError as error:
            raise UserError(f"{place}: holds half of a surrogate pair, which is no text ({error})") from error
        except ValidationError as error:
            problem = error.errors()[0]
            key = ".".join(str(part) for part in problem["loc"])
            raise UserError(f"{place}: {key}: {problem['msg']}") from error
        if not question.text.strip():
            raise UserError(f"{place}: the question is blank; mend or remove it")
        if question.id in seen:
            raise UserError(f"{place}: id {question.id!r} is already used at {seen[question.id]}; ids must differ")
        seen[question.id] = place
        yield question


def _choose(found: Iterable[Question], split: SplitConfig, seed: int, source: str) -> list[Question]:
    first, last = split.rows or (0, None)
    questions = list(found)[first:last]
    if not questions:
        raise UserError(f"{source}: no questions" + (f" in rows {split.rows}" if split.rows else ""))
    if split.sample is not None and split.sample < len(questions):
        questions = sampled(questions, split.sample, seed)
    if split.order == "shuffled":
        random.Random(f"order {seed}").shuffle(questions)
    return questions


def sampled(questions: Sequence[Question], size: int, seed: int) -> list[Question]:
    """A sample that hangs on the seed and on what the questions say, not on their order in the file or their ids.

    A larger sample holds every smaller one; so does one of a file to which questions were added, but for those.
    """
    drawn = sorted(range(len(questions)), key=lambda i: (_lot(seed, questions[i].text), i))[:size]
    return [questions[i] for i in sorted(drawn)]


def _lot(seed: int, text: str) -> bytes:
    return hashlib.sha256(f"{seed}\0{text}".encode()).digest()


def _hub_rows(found: HubSet, split: str) -> Iterator[tuple[str, Row]]:
    from datasets import load_dataset

    place = f"hub:{found.path}"
    try:
        rows = load_dataset(found.path, found.config, split=found.splits[split])
    except Exception as error:  # the network, the hub, its cache: whatever it is, the way out is the same
        reason = str(error).strip().splitlines()[:1]
        raise UserError(
            f"{place}: cannot be fetched ({type(error).__name__}: {''.join(reason)}). Is there a network? Else bring "
            "the file and point `path` at it"
        ) from error
    yield from ((f"{place}: row {number}", dict(row)) for number, row in enumerate(rows, 1))
