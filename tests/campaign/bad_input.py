"""Configs and question files with values that nobody can use."""

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import yaml

from ratchet.core.config import load_config
from ratchet.core.config.questions import SplitConfig
from ratchet.questions.load import load_questions
from tests.campaign.trial import Attack, Trial, refusal
from tests.helpers.experiment import make_experiment

ODD: tuple[Any, ...] = (
    None, True, -1, 0, 10**30, 1e300, float("nan"), float("inf"), "", " ", "\0", "~", "~nobody/x", "../..", "/dev/zero",
    "x" * 300, "\ud800", "=SUM(A1)", "{{ 7*7 }}", [], {}, [[]], {"": 1}, ["a"] * 50, {"name": "none"}, "/proc/self/mem",
)  # fmt: skip


@contextmanager
def configs(folder: Path) -> Iterator[Trial]:
    """One to three values of a working config are replaced, removed or added."""
    base = yaml.safe_load(make_experiment(folder).read_text())

    def trial(dice: random.Random) -> None:
        data = deepcopy(base)
        for _ in range(dice.randint(1, 3)):
            change(dice, data)
        path = folder / "changed.yaml"
        path.write_bytes(yaml.safe_dump(data).encode(errors="replace"))
        _check(refusal(lambda: load_config(path)), "changed.yaml")

    yield trial


def change(dice: random.Random, data: dict[str, Any]) -> None:
    """Change one value, at any depth."""
    while True:
        key = dice.choice([*data, "odd"])
        child = data.get(key)
        if isinstance(child, dict) and child and dice.random() < 0.7:
            data = child
            continue
        if dice.random() < 0.1:
            data.pop(key, None)
        else:
            data[key] = deepcopy(dice.choice(ODD))  # or the next change would be made to ODD itself
        return


@contextmanager
def questions(folder: Path) -> Iterator[Trial]:
    """One line of a question file is damaged, or has a value of another type."""
    lines = [{"id": f"q{i}", "text": f"Who built {i}?", "answers": ["Ada"], "gold_ids": ["d"]} for i in range(4)]
    path = folder / "odd.jsonl"

    def trial(dice: random.Random) -> None:
        rows: list[dict[str, Any]] = deepcopy(lines)
        row = dice.choice(rows)
        row[dice.choice([*row, "odd", "label", "form"])] = deepcopy(dice.choice(ODD))
        text = "\n".join(json.dumps(row) for row in rows).encode(errors="replace")
        if dice.random() < 0.3:
            at = dice.randrange(len(text))
            text = text[:at] + dice.choice([b"", b"\xff", b"\n", b"\0", b"[" * 5000]) + text[at + 1 :]
        path.write_bytes(text)
        _check(refusal(lambda: load_questions(SplitConfig(path=str(path)), 0)), "odd.jsonl")

    yield trial


def _check(message: str, name: str) -> None:
    """If it is refused, the message names the file, and can be shown."""
    assert not message or name in message, message
    assert len(message) < 20_000 and "\x1b" not in message and "\0" not in message


ATTACKS = (
    Attack("odd configs", configs, 20, 5000),
    Attack("odd question files", questions, 20, 5000),
)
