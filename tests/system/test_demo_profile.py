"""python -m benchmarks.demo: which kind of work a stack belongs to."""

from __future__ import annotations

import pytest

from benchmarks.demo import kind_of, seconds_by_kind, stage_seconds

ENGINE = "thread (7): engine;Scheduler._run (inference/local/scheduler.py:103)"
FORWARD = f"{ENGINE};PackedModel.forward (inference/local/model.py:239)"
CALL = "Module._call_impl (torch/nn/modules/module.py:1789)"
HEAD = f"{FORWARD};LlamaForCausalLM.forward (transformers/models/llama/modeling_llama.py:468);{CALL}"
LAYER = f"{HEAD};LlamaModel.forward (transformers/models/llama/modeling_llama.py:392);{CALL}"
LINEAR = "Linear.forward (torch/nn/modules/linear.py:134)"


@pytest.mark.parametrize(
    ("stack", "kind"),
    [
        (f"{HEAD};{LINEAR}", "output head"),
        (
            f"{LAYER};LlamaMLP.forward (transformers/models/llama/modeling_llama.py:164);{CALL};{LINEAR}",
            "linear layers",
        ),
        (
            f"{LAYER};LlamaRMSNorm.forward (transformers/models/llama/modeling_llama.py:64)",
            "norms, activations, rotary",
        ),
        (f"{LAYER};paged_attention (inference/local/model.py:178)", "attention"),
        (f"{FORWARD};Decoder.__call__ (inference/local/decoder.py:160)", "norms, activations, rotary"),
        (f"{FORWARD};Decoder.__call__ (inference/local/decoder.py:160);Product.__call__ (x.py:9)", "linear layers"),
        (f"{ENGINE};Scheduler._sample_next (inference/local/scheduler.py:221)", "choosing tokens"),
        (f"{ENGINE};Scheduler._schedule (inference/local/scheduler.py:155)", "engine, between steps"),
        (
            "thread (1): MainThread;<module> (selftrain.py:5);_find_and_load (<frozen importlib._bootstrap>:1176)",
            "importing",
        ),
        ("thread (1): MainThread;run_episode (agents/core/episode.py:40)", "agents, records, asyncio"),
    ],
)
def test_each_stack_has_the_kind_of_its_innermost_work(stack: str, kind: str) -> None:
    assert kind_of(stack) == kind


def test_counts_become_thread_seconds() -> None:
    process = 'process 5:"python -c \nimport sys\n"'
    attention = f"{LAYER};paged_attention (inference/local/model.py:178)"
    text = f"{process};{HEAD};{LINEAR} 100\n{attention} 25\n{HEAD};{LINEAR} 50\n"
    assert seconds_by_kind(text, 50) == {"output head": 3.0, "attention": 0.5}


def test_a_stage_lasts_until_the_next_begins() -> None:
    said = "== 1/3 index (0s so far)\nx\n\n== 2/3 score and select (5s so far)\n"
    said += "== 3/3 report (1m02s so far)\ndone in 2m00s; it is"
    assert stage_seconds(said) == {"index": 5, "score and select": 57, "report": 58, "all": 120}
