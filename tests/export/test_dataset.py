"""The exported data set is read by `datasets`, and says where it is from and what is missing."""

from pathlib import Path

import pytest
from datasets import load_dataset

from ratchet.sampling.store import TrajectoryStore
from ratchet.training.rows import read_rows
from tests.helpers.commands import command_of

main = command_of("export")


@pytest.mark.slow
@pytest.mark.parametrize(("scope", "count"), [("kept", 11), ("all", 12)])
def test_trajectories_and_rows_are_read_by_datasets(
    trained: Path, run_folder: Path, tmp_path: Path, scope: str, count: int
) -> None:
    words = ["--config", str(trained), "--out", str(tmp_path), "--dataset", scope]
    main(words)
    main(words)  # complete: nothing happens
    folder, cache = str(tmp_path / "dataset"), str(tmp_path / "cache")
    found = load_dataset(folder, "trajectories", split="train", cache_dir=cache)
    stored = {one.key: one for one in TrajectoryStore(run_folder / "round-1/trajectories").read()}
    assert len(found) == count and found["kept"].count(True) == 11
    for row in found:
        trajectory = stored[row["trajectory"]]
        assert row["question_text"] == f"Who is {row['question'][1:]}?" and row["answer"] == trajectory.answer
        said = [part["text"] for talk in row["conversations"] for part in talk["parts"] if part["sampled"]]
        assert said == [call.text + "<|im_end|>" for call in trajectory.model_calls]
    number = {row["trajectory"]: row["f1"] for row in found}
    assert number["t3"] == pytest.approx(0.3) and number["t11"] is None, "one column for each score"
    rows = load_dataset(folder, "rows", split="train", cache_dir=cache)
    table = read_rows(run_folder / "round-1/rows.parquet").table
    assert rows["ids"][:] == table["ids"].to_pylist() and rows["loss_mask"][:] == table["loss_mask"].to_pylist()
    card = (tmp_path / "dataset/README.md").read_text()
    for fact in (
        "sampled, scored and selected by Ratchet." if scope == "kept" else "sampled and scored by Ratchet.",
        f"{count} of 12 planned trajectories are here",
        "11 kept, 1 reward_too_low",
        f"{count} finished",
        "| training questions, own file | unknown |",
        "12 of train.jsonl",
        "f1 1.0",
        "| system | mrag |",
    ):
        assert fact in card, fact
    assert str(trained.parent) not in card
