"""Rows teach what was sampled, all of it and nothing else."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.core.config import TrainingConfig
from ratchet.core.errors import UserError
from ratchet.core.files import read_segments, write_json, write_jsonl
from ratchet.core.records import Trajectory
from ratchet.training.labels import Labels, value_bytes
from ratchet.training.rows import (
    build_rows,
    check_rows,
    read_rows,
    rows_digest,
    rows_table,
    table_rows,
    write_rows,
)
from tests.helpers.world import dialogue, make_run, prepared_rows, sample_trajectory, trajectory

TURNS = [("first?", "yes", "ok"), ("second?", "{broken", "malformed"), ("third?", "no", "free")]


def test_mask_is_one_exactly_on_parsed_sampled_tokens() -> None:
    conversation, calls = dialogue("planner", TURNS)
    rows, left_out = build_rows(trajectory("t", "q", [(conversation, calls)]), 1000)
    learnt = [at for at, bit in enumerate(rows[0].loss_mask) if bit]
    good = [range(call.start, call.end) for call in calls if call.parse != "malformed"]
    assert learnt == [at for span in good for at in span]
    assert rows[0].ids == conversation.ids and not left_out


def test_the_published_recipe_learns_every_token_of_the_same_rows() -> None:
    talk, broken = dialogue("planner", TURNS), dialogue("searcher", [("find", "{", "malformed")])
    one = trajectory("t", "q", [talk, broken])
    [row], left_out = build_rows(one, 1000, Labels(whole=True))
    assert row.loss_mask == (0, *[1] * (len(talk[0].ids) - 1)) and len(left_out) == 1
    assert check_rows([row], {"t": one}, Labels(whole=True)) == 2
    [actions], _ = build_rows(one, 1000)
    with pytest.raises(ValueError, match="differ from"):
        check_rows([actions], {"t": one}, Labels(whole=True))
    with pytest.raises(ValueError, match="dpo learns from actions"):
        TrainingConfig(loss_on="sequence", objective="dpo")


@pytest.mark.parametrize(
    ("text", "learnt"),
    [
        ('{"answer": "Bram Ostley"}', '            Bram Ostley"}'),
        ('{"is": true, "of": [1, 22], "or": []}', "       true,        1, 22],        ]}"),
    ],
)
def test_of_json_the_values_are_learnt_and_whether_more_is_to_come(text: str, learnt: str) -> None:
    found = value_bytes(text.encode())
    assert found is not None
    assert "".join(c if bit else " " for c, bit in zip(text, found, strict=True)).rstrip() == learnt


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(),
        lambda of: st.lists(of) | st.dictionaries(st.text(), of),
    )
)
def test_every_value_of_json_is_learnt_and_no_name(value: object) -> None:
    for ascii_only in (True, False):
        text = json.dumps({"x": value}, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
        found = value_bytes(text)
        assert found is not None
        names = b"".join(bytes([byte]) for byte, bit in zip(text, found, strict=True) if not bit)
        assert names.startswith(b'{"x": ')


@pytest.mark.parametrize("text", ["", "Search[Tollen]", '"a text"', '{"cut": "o', '{"a": 1} and more', "[1, 2]", "{]"])
def test_other_actions_are_learnt_whole(text: str) -> None:
    assert value_bytes(text.encode()) is None


def test_frozen_and_malformed_conversations_give_no_rows() -> None:
    broken = dialogue("searcher", [("find", "{", "malformed")])
    frozen = dialogue("answerer", [("say", "it", "free")], trainable=False)
    good = dialogue("planner", [("plan", "so", "ok")])
    rows, left_out = build_rows(trajectory("kept", "q", [broken, frozen, good]), 1000)
    assert [(row.trajectory, row.conversation, row.role) for row in rows] == [("kept", 2, "planner")]
    assert left_out == ["no parsed action"]


def test_a_long_row_is_left_out_never_cut() -> None:
    talk = dialogue("planner", TURNS)
    length = len(talk[0].ids)
    one = trajectory("t", "q", [talk])
    assert [len(row.ids) for row in build_rows(one, length)[0]] == [length]
    rows, left_out = build_rows(one, length - 1)
    assert rows == [] and left_out == ["too long"]


def test_equal_rows_stay_in_kept_order_and_a_repeated_record_counts_once(tmp_path) -> None:  # type: ignore[no-untyped-def]
    _, config, folder = make_run(tmp_path, questions=2)
    talk = dialogue("planner", TURNS)
    first, second = trajectory("t0", "q0", [talk]), trajectory("t1", "q1", [talk])
    failed = trajectory("t0", "q0", [], status="failed")
    write_jsonl(folder.trajectories / "a.jsonl", [second, second, first, failed])
    rows = list(table_rows(prepared_rows(config, folder)[0].table))
    assert [row.trajectory for row in rows] == ["t0", "t1"] and rows[0].ids == rows[1].ids


def test_a_kept_trajectory_that_is_missing_is_named(tmp_path) -> None:  # type: ignore[no-untyped-def]
    _, config, folder = make_run(tmp_path, questions=2)
    write_jsonl(folder.trajectories / "a.jsonl", [sample_trajectory(0, 0)])
    with pytest.raises(UserError, match="trajectory t1 was selected but is not among"):
        prepared_rows(config, folder)


def test_check_rows_notices_a_changed_label_or_mask() -> None:
    one = trajectory("t", "q", [dialogue("planner", TURNS)])
    (row,), _ = build_rows(one, 1000)
    assert check_rows([row], {"t": one}) == 2
    wrong_id = row.model_copy(update={"ids": (*row.ids[:-1], row.ids[-1] + 1)})
    more = row.model_copy(update={"loss_mask": (0, *[1] * (len(row.ids) - 1))})
    for bad in (wrong_id, more):
        with pytest.raises(ValueError, match=r"differs? from|no loss token"):
            check_rows([bad], {"t": one})


@given(st.lists(st.lists(st.sampled_from(["ok", "free", "malformed"]), min_size=1, max_size=4), min_size=1, max_size=3))
def test_parquet_gives_back_the_rows(tmp_path_factory, roles) -> None:  # type: ignore[no-untyped-def]
    parts = [dialogue(f"role{n}", [("do", "done", parse) for parse in turns]) for n, turns in enumerate(roles)]
    rows, left_out = build_rows(trajectory("t", "q", parts), 1000)
    path = tmp_path_factory.mktemp("rows") / "rows.parquet"
    write_rows(path, rows_table(rows), "source", {"too long": 1})
    again = read_rows(path)
    assert list(table_rows(again.table)) == rows
    assert again.digest == rows_digest(rows_table(rows)) and again.skipped == {"too long": 1}
    assert len(rows) + len(left_out) == len(roles)


def test_a_damaged_or_changed_rows_file_is_refused(tmp_path) -> None:  # type: ignore[no-untyped-def]
    rows, _ = build_rows(sample_trajectory(1, 1), 1000)
    path = tmp_path / "rows.parquet"
    write_rows(path, rows_table(rows), "source", {})
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UserError, match=r"rows\.parquet.*delete"):
        read_rows(path)


def test_rows_with_text_that_is_not_utf8_are_refused(tmp_path) -> None:  # type: ignore[no-untyped-def]
    rows, _ = build_rows(sample_trajectory(1, 1), 1000)
    path = tmp_path / "rows.parquet"
    write_rows(path, rows_table(rows), "source", {})
    table = pq.read_table(path)
    damaged = pa.array([b"\xe5\xff"] * len(table), pa.binary()).view(pa.string())
    table = table.set_column(table.schema.get_field_index("trajectory"), "trajectory", damaged)
    pq.write_table(table.cast(rows_table(rows).schema).replace_schema_metadata(table.schema.metadata), path)
    with pytest.raises(UserError, match=r"rows\.parquet: cannot read the rows .*delete"):
        read_rows(path)


def test_rows_are_reused_for_the_same_selection_and_made_again_for_another(tmp_path) -> None:  # type: ignore[no-untyped-def]
    _, config, folder = make_run(tmp_path, questions=4)
    first, question_of = prepared_rows(config, folder)
    assert question_of == {f"t{n}": f"q{n}" for n in range(4)}
    stamp = folder.rows.stat().st_mtime_ns
    assert prepared_rows(config, folder)[0].digest == first.digest and folder.rows.stat().st_mtime_ns == stamp
    text = folder.selection.read_text()
    folder.selection.write_text(text.replace('"t3"\n', '"t2"\n'))
    second, _ = prepared_rows(config, folder)
    assert set(second.table["trajectory"].to_pylist()) == {"t0", "t1", "t2"}
    folder.rows.write_bytes(b"torn")
    assert prepared_rows(config, folder)[0].digest == second.digest


def test_rows_are_made_again_where_a_trajectory_was_sampled_again_under_its_key(tmp_path) -> None:  # type: ignore[no-untyped-def]
    """As where a damaged line was deleted: another time the model may say something else."""
    _, config, folder = make_run(tmp_path, questions=3)
    first, _ = prepared_rows(config, folder)
    other = sample_trajectory(9, 1).model_copy(update={"key": "t1"})
    write_jsonl(folder.trajectories / "a.jsonl", [sample_trajectory(0, 0), other, sample_trajectory(2, 2)])
    rows, _ = prepared_rows(config, folder)
    assert rows.digest != first.digest
    assert check_rows(table_rows(rows.table), {t.key: t for t in read_segments(folder.trajectories, Trajectory)}) == 9


def test_nothing_kept_says_why(tmp_path) -> None:  # type: ignore[no-untyped-def]
    _, config, folder = make_run(tmp_path, questions=2)
    choice = {"question_id": "q", "kept": [], "cause": "reward_too_low", "reason": "best reward is 0", "rewards": {}}
    write_json(folder.selection, {"weights": {}, "rule": {}, "questions": [choice]})
    with pytest.raises(UserError, match=r"no trajectory was kept.*1 x best reward is 0"):
        prepared_rows(config, folder)
    folder.selection.unlink()
    with pytest.raises(UserError, match="ratchet score"):
        prepared_rows(config, folder)
