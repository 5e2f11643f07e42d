"""Splits, the order of rows, padding."""

from collections import Counter
from typing import Any

import pytest
import torch

from ratchet.core.config import TrainingConfig
from ratchet.training.batches import Collator, EpochSampler, epoch_order, mixed_batches, mixed_order
from ratchet.training.rows import build_rows, rows_table, split_rows
from tests.helpers.world import sample_trajectory

TRAJECTORIES = [sample_trajectory(n, n // 2) for n in range(40)]
TABLE = rows_table([row for one in TRAJECTORIES for row in build_rows(one, 1000)[0]])
QUESTION_OF = {t.key: t.question_id for t in TRAJECTORIES}


def test_a_question_is_never_on_both_sides() -> None:
    train, dev = split_rows(TABLE, QUESTION_OF, 0.25, seed=0)
    sides = [{QUESTION_OF[key] for key in part["trajectory"].to_pylist()} for part in (train, dev)]
    assert not sides[0] & sides[1] and len(sides[1]) == 5 and len(train) + len(dev) == len(TABLE)
    shuffled = TABLE.take(list(reversed(range(len(TABLE)))))
    assert {QUESTION_OF[k] for k in split_rows(shuffled, QUESTION_OF, 0.25, 0)[1]["trajectory"].to_pylist()} == sides[1]
    assert {QUESTION_OF[k] for k in split_rows(TABLE, QUESTION_OF, 0.25, 1)[1]["trajectory"].to_pylist()} != sides[1]


def test_too_few_questions_hold_none_out() -> None:
    few = TABLE.slice(0, 30)  # 8 questions
    train, dev = split_rows(few, QUESTION_OF, 0.5, seed=0)
    assert len(dev) == 0 and len(train) == 30
    assert len(split_rows(TABLE, QUESTION_OF, 0.0, seed=0)[1]) == 0


def test_an_epoch_visits_every_row_once_in_another_order_each_time() -> None:
    lengths = [(n * 37) % 50 for n in range(30)]
    first, second = epoch_order(lengths, 8, 0, 0), epoch_order(lengths, 8, 0, 1)
    assert Counter(first) == Counter(range(30)) and first != second and first == epoch_order(lengths, 8, 0, 0)
    for at in range(0, 30, 8):
        batch = [lengths[row] for row in first[at : at + 8]]
        assert batch == sorted(batch, reverse=True)
    assert sorted(first[:8]) != list(range(8))


def test_micro_batches_without_padding_put_long_rows_with_short_ones() -> None:
    lengths = [1000, 10, 20, 900, 30, 40, 50, 60, 800, 70]
    order = mixed_order(range(10), lengths, 4)
    assert sorted(order) == list(range(10))
    tokens = [sum(lengths[row] for row in order[at : at + 4]) for at in (0, 4, 8)]
    assert max(tokens) < 1100  # in order of length it is 2770
    epoch = epoch_order(lengths, 8, 0, 0)
    mixed = mixed_batches(epoch, lengths, 8, 4)
    assert sorted(mixed) == list(range(10)) and set(mixed[:8]) == set(epoch[:8]), "a step has the rows that it had"


def test_the_sampler_asks_for_the_epoch_when_it_starts() -> None:
    now = 0
    sampler = EpochSampler(lambda epoch: epoch_order([3] * 20, 4, 0, epoch), 20, 20, lambda: now)
    first = list(sampler)
    now = 1
    assert list(sampler) == epoch_order([3] * 20, 4, 0, 1) != first and len(sampler) == 20


def test_padding_is_on_the_right_and_masked_everywhere() -> None:
    batch = Collator(9)([{"ids": [1, 2, 3], "loss_mask": [0, 1, 0]}, {"ids": [4, 5], "loss_mask": [0, 1]}])
    assert batch["input_ids"].tolist() == [[1, 2, 3], [4, 5, 9]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 1, 0]]
    assert batch["labels"].tolist() == [[-100, 2, -100], [-100, 5, -100]]
    assert all(value.dtype == torch.long for value in batch.values())


def test_without_padding_rows_lie_one_after_the_other() -> None:
    rows = [{"ids": [1, 2, 3], "loss_mask": [0, 1, 1]}, {"ids": [4, 5], "loss_mask": [0, 1]}]
    batch = Collator(9, padding_free=True)(rows)
    assert batch["input_ids"].tolist() == [[1, 2, 3, 4, 5]] and batch["position_ids"].tolist() == [[0, 1, 2, 0, 1]]
    assert batch["labels"].tolist() == [[-100, 2, 3, -100, 5]]
    assert batch["cu_seq_lens_q"].tolist() == [0, 3, 5] and batch["max_length_q"] == 3
    for inputs in (batch, Collator(9)(rows)):
        assert inputs["row_lengths"].tolist() == [3, 2] and inputs["row_labels"].tolist() == [2, 1]


@pytest.mark.parametrize(
    ("given", "fraction"),
    [
        ({}, 0.1),
        ({"choose_by": "reward"}, 0.0),
        ({"choose_by": "reward", "dev_fraction": 0.3}, 0.3),
    ],
)
def test_rows_are_held_out_only_where_their_loss_is_needed(given: dict[str, Any], fraction: float) -> None:
    assert TrainingConfig.model_validate(given).dev_fraction == fraction
