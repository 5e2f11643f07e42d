"""Golden transcripts: what a model says in its turn, and what a system makes of it. One file a system.

`transcripts/X.yaml` has transcripts, each with a title and perhaps cases, which add to it or replace parts of it. Its
parts, of which the file itself may have the usual ones:

- `system`, `settings`, and `config`: other keys of the system
- `task`: question, claim, or one of its own: {text, labels, form}
- `finds`: by query, the documents that are found. TASK in a query is the task's text; c1 is a document "fact 1", unless
  `documents` has its title and text. `k`: how many are asked for
- `down`: sources that give no answer; `fails`: queries to which the others give none
- `says`: the model's replies in order: texts; objects, which are JSON; or [text, probability] pieces, an empty text
  being the end of the turn. A name of `words` stands for one reply, or for several
- `status` (finished), `answer`, and, where they are given, `explanation`, `stopped`, `candidates`, `passages`, `notes`,
  `searches` (the queries), `offsets`, `states` (of searches and calls), `conversations` (their roles) and `turns`
  ([round, speaker, query, passages, verdict])
- `malformed`: the numbers of the calls that are; none by default
- `told`, `untold`: by call, what is and what is not in its last message. `prompts`: the snapshot that has all of them
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from ratchet.core.records import Label, Note, Passage, Question
from ratchet.inference.scripted import ScriptedReply
from ratchet.questions.labels import FEVER, TRUE_FALSE
from ratchet.retrieval.retriever import SourceError
from ratchet.sampling.play import EverySource, resources_over
from tests.helpers.playing import (
    CLAIM,
    QUESTION,
    DownSource,
    Shelf,
    act,
    alike,
    apart,
    engine,
    passage,
    play,
    query,
    review,
    say,
)
from tests.helpers.snapshots import check_snapshot

FOLDER = Path(__file__).parent / "transcripts"
EXPECTED = ("explanation", "stopped", "candidates")
LABELS = {label.name: label for label in (*FEVER, *TRUE_FALSE)}


class Failing(Shelf):
    """A remote index that gives no answer to some queries."""

    def __init__(self, ranked: dict[str, list[Passage]], queries: list[str]) -> None:
        super().__init__(ranked)
        self.queries = queries

    def search(self, query: str, k: int, offset: int = 0) -> list[Passage]:
        if query in self.queries:
            raise SourceError(f"no search server answers {query!r}")
        return super().search(query, k, offset)


def transcripts() -> Iterator[Any]:
    for path in sorted(FOLDER.glob("*.yaml")):
        file = yaml.safe_load(path.read_text())
        for transcript in file.pop("transcripts"):
            for number, case in enumerate(transcript.pop("cases", [{}])):
                yield pytest.param({**file, **transcript, **case}, id=f"{path.stem}: {transcript['title']} {number}")


def task_of(given: str | dict[str, Any]) -> Question:
    if isinstance(given, str):
        return {"question": QUESTION, "claim": CLAIM}[given]
    labels = tuple(LABELS.get(name, Label(name=name, meaning=f"choice {name}")) for name in given["labels"])
    return CLAIM.model_copy(update={**given, "labels": labels, "label": labels[0].name})


def document_of(name: str | list[str], documents: dict[str, list[str]]) -> Passage:
    number, title, text = name if isinstance(name, list) else (name, *documents.get(name, ["", ""]))
    return passage(int(number.removeprefix("c")), text, title)


def in_words(**said: Any) -> str:
    """An object as JSON; the first field of an agent of mRAG may be the name of a helper."""
    if "act" in said:
        return act(said.pop("act"), **said)
    if "query" in said:
        return query(said["query"])
    return review(said.pop("review"), **said) if "review" in said else say(**said)


def replies(says: list[Any], words: dict[str, Any]) -> Iterator[str | ScriptedReply]:
    for said in says:
        if isinstance(said, str) and said in words:
            meant = words[said]
            yield from replies(meant if isinstance(meant, list) else [meant], {})
        elif isinstance(said, list):
            end = said[-1][1] if not said[-1][0] else 1.0
            yield ScriptedReply(*((text, share) for text, share in said if text), end=end)
        else:
            yield said if isinstance(said, str) else in_words(**said)


@pytest.mark.slow
@pytest.mark.parametrize("case", list(transcripts()))
async def test_what_a_system_makes_of_its_models_replies(case: dict[str, Any]) -> None:
    task, documents = task_of(case["task"]), case.get("documents", {})
    found = {
        words.replace("TASK", task.text): [document_of(name, documents) for name in names]
        for words, names in case.get("finds", {}).items()
    }
    said, shelf = list(replies(case["says"], case.get("words", {}))), Shelf(found)
    agent = engine(said)
    if "fails" in case:
        shelf = Failing(found, [words.replace("TASK", task.text) for words in case["fails"]])
    config = {"name": case["system"], "settings": case.get("settings", {}), **case.get("config", {})}
    with resources_over(shelf, alike) as resources:
        sources = EverySource(shelf)
        sources.update({name: DownSource(name) for name in case.get("down", [])})
        resources = replace(resources, sources=sources, embed=apart)
        done = await play(config, agent, shelf, question=task, resources=resources)
    assert (done.status, done.answer) == (case.get("status", "finished"), case.get("answer", "")), done.error
    assert bool(done.error) == (done.status != "finished") and len(agent.calls) == len(said)
    assert [n for n, call in enumerate(done.model_calls) if call.parse == "malformed"] == case.get("malformed", [])
    assert {name: getattr(done, name) for name in EXPECTED if name in case} == {
        name: case[name] for name in EXPECTED if name in case
    }
    got = {
        "passages": [one.id for one in done.passages],
        "states": [call.state for call in done.tool_calls],
        "conversations": [one.role for one in done.conversations],
        "notes": [event.text for event in done.events if isinstance(event, Note)],
        "searches": [search.query.replace(task.text, "TASK") for search in done.searches],
        "turns": [
            [one.round, one.speaker, one.query.replace(task.text, "TASK"), [*one.passages], one.verdict]
            for one in done.turns
        ],
    }
    assert {name: value for name, value in got.items() if name in case} == {n: case[n] for n in got if n in case}
    offsets = case.get("offsets", [0] * len(shelf.asked))
    assert [(k, offset) for _, k, offset in shelf.asked] == [(case["k"], offset) for offset in offsets]
    for key in ("told", "untold"):
        for number, texts in case.get(key, {}).items():
            message = agent.calls[number].messages[-1]["content"]
            assert [text for text in texts if (text in message) != (key == "told")] == []
    if "prompts" in case:
        check_snapshot(case["prompts"], agent)
