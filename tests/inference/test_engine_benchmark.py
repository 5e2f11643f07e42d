"""benchmarks/engine: its prompts, its tables, and what it says where there is no vLLM."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

import benchmarks.engine.__main__ as benchmark
from benchmarks.engine.contenders import ENGINE, GENERATE, VLLM, Turn, question_prompts
from benchmarks.engine.table import better, cached_line, decoding_table
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
    assert decoding_table(best, 10).splitlines()[2:] == [
        "| wall time     | first  | 8        | 10       | 20   | 40     | 4.0               | 2.0           |",
        "| wall time     | second | 8        | 5        | 20   | 16     | 3.2               | 0.8           |",
        "| CPU time      | first  | 8        | 10       | 20   | 20     | 2.0               | 1.0           |",
        "| CPU time      | second | 8        | 4        | 10   | 8      | 2.0               | 0.8           |",
    ]
    assert cached_line(best).endswith("with 8 requests, first and second turn: vLLM 25% and 50%, engine 75% and 90%")


class FakeProcess:
    """Takes a second a turn."""

    def __init__(self, name: str, arguments: Sequence[str]) -> None:
        self.name = name

    def line(self) -> str:
        return "ready"

    def turns(self, requests: int, salt: str) -> list[Turn]:
        return [Turn(1.0, 1.0, 0.0), Turn(1.0, 1.0, 0.0)]

    def close(self) -> None: ...


def test_without_vllm_it_is_left_out_and_this_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(benchmark, "ContenderProcess", FakeProcess)
    benchmark.main(["--vllm", "no/python", "--requests", "8,24", "--dtype", "float32"])
    said = capsys.readouterr()
    assert "vLLM is left out: there is no no/python (make vllm)" in said.err
    assert "| requests | generate | engine | one batch | engine / generate |" in said.out
    assert "vLLM" not in said.out and said.out.count("| 24 ") == 4
