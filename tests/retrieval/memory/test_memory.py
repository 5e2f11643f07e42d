"""The evidence memory as systems use it: what is given to whom, in which order, and what is kept."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ratchet.retrieval.names import entity_key
from tests.helpers.remembering import leave, opened, passage, recalled


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Apple Inc.", "apple  inc"),
        ("The Beatles", "Beatles"),
        ("U.S.", "US"),
        ("COVID-19", "covid 19"),
        ("Ｖｅｌｍ", "velm"),
        ("O’Neill", "O'Neill"),
        ("STRASSE", "straße"),
        ("“Velm”\n", "Velm"),
        ("Velm\x00\u202e", "Velm"),
        ("The WHO", "W.H.O."),
        ("1,000", "1000"),
        ("Istan\u00adbul", "Istanbul"),
        ("-1,234,567.5", "\u22121234567.5"),
        ("50 %", "50%"),
        ("J. K. Orsk", "J.K. Orsk"),
        ("U. S.", "US"),
        ("Dr. Orsk", "Dr Orsk"),
    ],
)
def test_writings_of_one_name(one: str, other: str) -> None:
    assert entity_key(one) == entity_key(other) != ""


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("C", "C++"),
        ("C", "C#"),
        ("3.5", "35"),
        ("3.5", "3-5"),
        (".5", "5"),
        ("Vitamin A", "Vitamin"),
        ("the", "a"),
        ("año", "ano"),
        ("The Who", "WHO"),
        ("Aids", "AIDS"),
        ("50%", "50"),
        ("-5", "5"),
        ("\u22125", "5"),
        ("\u20135", "5"),
        ("from -5 to 5", "from 5 to 5"),
        ("1,000", "1,00"),
    ],
)
def test_other_names(one: str, other: str) -> None:
    assert entity_key(one) != entity_key(other)


@pytest.mark.parametrize("nothing", ["", " ", "...", "\ud800", "—"])
def test_what_is_no_entity_is_no_key(nothing: str, tmp_path: Path) -> None:
    memory = opened(tmp_path)
    assert entity_key(nothing) == ""
    assert leave(memory, nothing, "a fact") == 0
    assert recalled(memory, nothing) == []
    assert not memory.files.segments()


def test_evidence_comes_back_with_where_it_came_from(tmp_path: Path) -> None:
    assert leave(opened(tmp_path), "Ada Torrin", "She built a harbour.", claim="Ada Torrin built Velm.") == 1
    [evidence] = opened(tmp_path).recall(["ada torrin"], "Ada Torrin was an engineer.", "train", "q2")
    assert evidence.passage == passage("She built a harbour.")
    assert (evidence.entities, evidence.text, evidence.question_id) == (("ada torrin",), "Ada Torrin built Velm.", "q1")
    assert evidence.scope == "train" and evidence.time > 1.7e9 and evidence.writer


def test_scopes_never_leak(tmp_path: Path) -> None:
    memory = opened(tmp_path)
    leave(memory, "Velm", "of training", scope="train")
    leave(memory, "Velm", "of a test", scope="test/base/base")
    assert recalled(memory, "Velm", scope="train") == ["of training"]
    assert recalled(memory, "Velm", scope="test/base/base") == ["of a test"]
    assert recalled(memory, "Velm", scope="test") == recalled(memory, "Velm", scope="test/base/p1") == []


@pytest.mark.parametrize("limits", [{}, {"recalled": 2}, {"kept": 2}])
def test_what_a_question_left_itself_does_not_change_what_it_is_given(tmp_path: Path, limits: dict[str, int]) -> None:
    def given(folder: Path, own: bool) -> list[str]:
        memory = opened(folder, **limits)

        def leave_own() -> None:
            if own:
                memory.remember(["Velm", "Ada"], [passage("old"), passage("mine")], "x", "train", "q1")

        leave_own()  # an earlier sample of the question
        leave(memory, "Velm", "old", question="q2")
        leave(memory, "Ada", "of Ada", question="q2")
        leave(memory, "Velm", "new", "new, but second", question="q3")
        leave(memory, "Velm", "old", question="q4")
        leave_own()
        leave(memory, "Ada", "of Ada, later", question="q5")
        leave_own()
        return recalled(memory, "Velm", "Ada", question="q1")

    assert given(tmp_path / "own", own=True) == given(tmp_path / "without", own=False) != []


def test_doing_a_job_twice_is_harmless(tmp_path: Path) -> None:
    def job() -> int:
        memory = opened(tmp_path)
        new = sum(leave(memory, "Velm", "a fact", "another", question=q) for q in ("q1", "q2", "q3"))
        memory.close()
        return new

    assert job() == 2
    files = {path: path.read_bytes() for path in tmp_path.glob("*.jsonl")}
    found = recalled(opened(tmp_path), "Velm")
    assert job() == 0
    assert {path: path.read_bytes() for path in tmp_path.glob("*.jsonl")} == files
    assert recalled(opened(tmp_path), "Velm") == found == ["a fact", "another"]


def test_what_is_under_more_of_the_entities_comes_first_then_what_is_newer(tmp_path: Path) -> None:
    memory = opened(tmp_path, recalled=3)
    memory.remember(["Velm", "Ada"], [passage("of both")], "x", "train", "q1")
    leave(memory, "Velm", "older", question="q2")
    leave(memory, "Ada", "newer", "newer, but second", question="q3")
    assert recalled(memory, "Velm", "Ada", "Ada", "Nobody") == ["of both", "newer", "newer, but second"]
    assert recalled(memory, "Velm") == ["older", "of both"]


def test_long_texts_are_kept_whole_and_cut_in_recall_where_their_id_says_so(tmp_path: Path) -> None:
    memory, long = opened(tmp_path, characters=10), passage("x" * 50)
    memory.remember(["Velm"], [long, passage("short")], "c" * 50, "train", "q1")
    cut, short = memory.recall(["Velm"], "x", "train", "q2")
    assert (cut.passage, len(cut.text)) == (long.with_text("x" * 10), 10)
    assert cut.passage.id != long.id and cut.passage.document_id == long.document_id
    assert short.passage == passage("short")
    assert opened(tmp_path).recall(["Velm"], "x", "train", "q2")[0].passage == long, "which the limit leaves whole"


@pytest.mark.slow
def test_threads_may_call_at_once(tmp_path: Path) -> None:
    memory = opened(tmp_path, recalled=1000, kept=1000)

    def work(number: int) -> int:
        recalled(memory, "Velm")
        return leave(memory, "Velm", f"fact {number % 40}", question=f"q{number}")

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(work, range(120))) == 40
    assert len(recalled(memory, "Velm")) == len(recalled(opened(tmp_path, recalled=1000), "Velm")) == 40
