"""Actions under a grammar in the in-process engine, with what the grammar forces taken ahead."""

import asyncio
import json
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from ratchet.inference.completion import Completion, SamplingParams
from ratchet.inference.engine import EngineError
from ratchet.inference.local import engine as engine_module
from ratchet.inference.local.engine import LocalEngine
from ratchet.inference.local.model import Chunk, PackedModel
from ratchet.inference.local.sampling import Choice, Grammars, Matcher
from ratchet.inference.schemas import call_grammar
from ratchet.inference.tool_calls import CallForm
from tests.inference.test_local_engine import OBJECT, greedy, make_model, open_engine, prompts, run


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalEngine]:
    engine = open_engine(make_model(tmp_path_factory.mktemp("llama")))
    yield engine
    asyncio.run(engine.close())


@pytest.mark.slow
def test_a_schema_holds_even_for_a_random_model(engine: LocalEngine) -> None:
    schema = {
        "type": "object",
        "properties": {
            "agent": {"enum": ["searcher", "finisher"]},
            "relevance": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
        },
        "required": ["agent", "relevance"],
        "additionalProperties": False,
    }

    def sampled(**more: Any) -> list[Completion]:
        each = [SamplingParams(1.5, max_tokens=200, seed=i, schema=schema, **more) for i in range(6)]
        return run(*(engine.generate([5], params) for params in each))

    got = sampled()
    # Only with log-probabilities are the logits of tokens computed that the schema does not allow.
    assert [one.ids for one in got] == [one.ids for one in sampled(logprobs=True)]
    for completion in got:
        assert completion.finish_reason == "stop"
        assert completion.ids[-1] == engine.format.end_of_turn
        value = json.loads(completion.text)
        assert value["agent"] in {"searcher", "finisher"} and len(value["relevance"]) <= 2


def test_even_a_random_model_calls_a_tool_that_it_must_call(engine: LocalEngine) -> None:
    form = CallForm(
        ("<tool_call>{name}\n",), "</tool_call>", "pairs", "<tool_call>", pair=("<k>{key}</k><v>", "</v>\n")
    )
    schema = {"type": "object", "properties": {"q": {"enum": ["a", "b"]}, "n": {"type": "boolean"}}, "required": ["q"]}
    tools = [{"function": {"name": "search", "parameters": schema}}]
    grammar = call_grammar(form, tools)
    each = [SamplingParams(1.5, max_tokens=200, seed=i, schema=grammar) for i in range(4)]
    for completion in run(*(engine.generate([5], params) for params in each)):
        assert completion.finish_reason == "stop" and completion.ids[-1] == engine.format.end_of_turn
        [call] = form.read(completion.text, tools)[1]
        assert call.name == "search" and call.value["q"] in ("a", "b")


@pytest.mark.slow
@pytest.mark.parametrize("logprobs", [False, True])
def test_tokens_taken_ahead_change_nothing_but_the_steps(
    engine: LocalEngine, monkeypatch: pytest.MonkeyPatch, logprobs: bool
) -> None:
    """A random model rarely writes a schema's text in the tokens that were expected, so all kinds of mismatch occur."""
    properties = {"agent": {"enum": ["searcher", "finisher"]}, "reason": {"type": "string", "maxLength": 3}}
    schema = {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}
    each = [SamplingParams(0.4, 0.99, max_tokens=9 + 8 * i, seed=i, schema=schema, logprobs=logprobs) for i in range(8)]

    forward, taken = PackedModel.forward, list[int]()

    def counted(self: PackedModel, chunks: list[Chunk]) -> torch.Tensor:
        taken.append(len(chunks))
        return forward(self, chunks)

    monkeypatch.setattr(PackedModel, "forward", counted)

    def sampled() -> tuple[list[Completion], int]:
        taken.clear()
        got = [run(engine.generate(prompt, params))[0] for params in each for prompt in prompts(engine)[:2]]
        return got, len(taken)

    ahead, steps = sampled()
    monkeypatch.setattr(engine_module, "MOST_AHEAD", 0)
    alone, more = sampled()
    assert [one.ids for one in ahead] == [one.ids for one in alone]
    assert [one.finish_reason for one in ahead] == [one.finish_reason for one in alone]
    for one, other in zip(ahead, alone, strict=True):
        assert one.logprobs == (pytest.approx(other.logprobs, abs=1e-4) if logprobs else None)
    assert steps < more


def test_other_requests_go_on_while_a_schema_is_compiled(engine: LocalEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A text with a `maxLength` takes two seconds, in which a server would answer nobody."""
    answered = threading.Event()
    compile_schema = Grammars.compile

    def compile_later(grammars: Grammars, schema: Any) -> None:
        assert answered.wait(300)
        compile_schema(grammars, schema)

    async def other() -> Completion:
        completion = await engine.generate(prompts(engine)[0], greedy(5))
        answered.set()
        return completion

    monkeypatch.setattr(Grammars, "compile", compile_later)
    schema = OBJECT | {"title": "compiled by no other test"}
    run(engine.generate(prompts(engine)[0], greedy(5, schema=schema)), other())


def test_a_grammar_without_a_next_token_fails_its_request_alone(
    engine: LocalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = np.zeros(512 // 32, np.int32)
    with monkeypatch.context() as patch:
        patch.setattr(Matcher, "look_ahead", lambda self, most, every_logit: ([], [Choice(nothing)]))
        with pytest.raises(EngineError, match="the grammar allows no token"):
            run(engine.generate(prompts(engine)[0], greedy(20, schema=OBJECT)))
    assert run(engine.generate(prompts(engine)[0], greedy(5)))[0].ids
