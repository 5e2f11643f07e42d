"""Merging and eviction: a function of the set of records, against a slow one that is written as it is said."""

from collections import defaultdict
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratchet.core.records import content_key
from ratchet.retrieval.memory import EvidenceRecord, Pieces
from tests.helpers.remembering import passage

RECORDS = st.lists(
    st.builds(
        EvidenceRecord,
        scope=st.sampled_from(["train", "test"]),
        entities=st.lists(st.sampled_from(["ada", "velm", "harbour"]), min_size=1, unique=True).map(tuple),
        passage=st.sampled_from([passage(text) for text in "abcdef"]),
        text=st.sampled_from(["one claim", "other claim"]),
        question_id=st.sampled_from(["q1", "q2", "q3"]),
        time=st.integers(0, 6).map(float),
        place=st.integers(0, 2),
        writer=st.sampled_from(["w1", "w2"]),
    ),
    max_size=25,
)
View = dict[tuple[str, str], list[tuple[str, list[EvidenceRecord]]]]


def view(pieces: Pieces) -> View:
    """What anybody could see: by scope and entity, the pieces in order and who left them."""
    found = {
        (scope, entity): [
            (piece.key, [record.model_copy(update={"entities": ()}) for record in piece.records()])
            for piece in pieces.under(scope, entity)
        ]
        for scope in pieces.scopes
        for entity in pieces.entities(scope)
    }
    return {where: group for where, group in found.items() if group}


def folded(records: Sequence[EvidenceRecord], per_entity: int) -> Pieces:
    pieces = Pieces(per_entity)
    pieces.add(records)
    return pieces


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(RECORDS, st.randoms(use_true_random=False), st.integers(1, 4), st.integers(0, 25))
def test_neither_order_nor_repetition_nor_the_steps_of_reading_matter(
    records: list[EvidenceRecord], random: object, per_entity: int, step: int
) -> None:
    expected = view(folded(records, per_entity))
    again = [*records, *records[: step // 2]]
    random.shuffle(again)  # type: ignore[attr-defined]
    stepwise = folded(again[:step], per_entity)
    view(stepwise)
    stepwise.add(again[step:])
    assert view(stepwise) == expected


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(RECORDS, st.integers(1, 4))
def test_the_newest_of_each_entity(records: list[EvidenceRecord], per_entity: int) -> None:
    newest: dict[tuple[str, str, str], tuple[float, int, str]] = {}
    for record in records:
        for entity in record.entities:
            where, key = (record.scope, entity, record.passage.text), content_key(record.passage.text)
            newest[where] = max(newest.get(where, (-1.0, 0, "")), (record.time, -record.place, key))
    groups: dict[tuple[str, str], list[tuple[float, int, str]]] = defaultdict(list)
    for (scope, entity, _), order in newest.items():
        groups[scope, entity].append(order)
    expected = {where: [key for _, _, key in sorted(group)[::-1][:per_entity]] for where, group in groups.items()}
    found = view(folded(records, per_entity))
    assert {where: [key for key, _ in group] for where, group in found.items()} == expected


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(RECORDS, st.integers(1, 4))
def test_a_question_sees_what_there_is_without_its_own_records(records: list[EvidenceRecord], per_entity: int) -> None:
    pieces = folded(records, per_entity)
    for question in ("q1", "q2", "q9"):
        others = folded([record for record in records if record.question_id != question], per_entity)
        for scope in pieces.scopes:
            for entity in pieces.entities(scope):
                assert pieces.as_seen_by(question, scope, entity) == others.as_seen_by(question, scope, entity)
