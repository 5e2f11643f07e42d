"""benchmarks/engine: its prompts, its tables, and what it says where there is no vLLM."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from types import SimpleNamespace

import pytest

from benchmarks import engine
from benchmarks.engine import ENGINE, GENERATE, VLLM, Turn, better, cached_line, decoding_table, question_prompts
from tests.helpers.tiny import tiny_format


def test_samples_share_the_prompt_of_their_question_and_no_prompt_of_another_repetition() -> None:
    chat = tiny_format()
    prompts = question_prompts(chat, 20, 8, "a")
    assert [prompts.count(prompt) for prompt in prompts] == [8] * 16 + [4] * 4
    assert question_prompts(chat, 1, 8, "a") == prompts[:1]
    other = question_prompts(chat, 20, 8, "b")
    assert other[0] != prompts[0] and [len(prompt) for prompt in other] == [len(prompt) for prompt in prompts]


def test_the_faster_of_each_turn_counts_and_the_least_cpu_time() -> None:
    one, other = [Turn(1.0, 2.0, 0.5), Turn(4.0, 3.0, 0.5)], [Turn(2.0, 1.0, 0.6), Turn(3.0, 9.0, 0.6)]
    assert better(one, other) == [Turn(1.0, 1.0, 0.5), Turn(3.0, 3.0, 0.6)]


def test_a_table_has_new_tokens_a_second_and_the_ratios_of_the_engine() -> None:
    best = {
        (GENERATE, 8): [Turn(8.0, 8.0, 0.0), Turn(16.0, 20.0, 0.0)],
        (VLLM, 8): [Turn(4.0, 4.0, 0.25), Turn(4.0, 8.0, 0.5)],
        (ENGINE, 8): [Turn(2.0, 4.0, 0.75), Turn(5.0, 10.0, 0.9)],
    }
    table = decoding_table(best, 10, "")
    assert list(zip(*(column.cells for column in table.columns), strict=True)) == [
        ("wall time", "first", "8", "10", "20", "40", "4.0", "2.0"),
        ("wall time", "second", "8", "5", "20", "16", "3.2", "0.8"),
        ("CPU time", "first", "8", "10", "20", "20", "2.0", "1.0"),
        ("CPU time", "second", "8", "4", "10", "8", "2.0", "0.8"),
    ]
    assert cached_line(best).endswith("with 8 requests, first and second turn: vLLM 25% and 50%, engine 75% and 90%")


def test_without_vllm_it_is_left_out_and_this_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def one_second_a_turn(command: Sequence[str], **options: object) -> SimpleNamespace:
        turns = [Turn(1.0, 1.0, 0.0), Turn(1.0, 1.0, 0.0)]
        return SimpleNamespace(stdout=f"loading\n{json.dumps({8: turns, 24: turns})}\n")

    monkeypatch.setattr(subprocess, "run", one_second_a_turn)
    engine.main(["--vllm", "no/python", "--requests", "8,24", "--dtype", "float32"])
    said = capsys.readouterr()
    assert "vLLM is left out: there is no" in said.err and "no/python (make vllm)" in said.err
    heading = next(line.split() for line in said.out.splitlines() if "generate" in line)
    assert heading[-7:] == ["generate", "engine", "one", "batch", "engine", "/", "generate"]
    assert "vLLM" not in said.out and said.out.count("  24  ") == 4
