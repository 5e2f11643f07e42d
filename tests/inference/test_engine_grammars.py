"""Actions under a grammar in the in-process engine."""

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, trainers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from ratchet.inference.completion import Completion, SamplingParams
from ratchet.inference.engine import EngineError
from ratchet.inference.local.engine import LocalEngine
from ratchet.inference.local.model import Chunk, PackedModel
from ratchet.inference.local.sampling import Choice, Grammars, Matcher
from ratchet.inference.schemas import SchemaRefused, call_grammar
from ratchet.inference.tokenizer import load_tokenizer
from ratchet.inference.tool_calls import CallForm
from tests.helpers.tiny import tiny_tokenizer
from tests.inference.test_local_engine import OBJECT, formed_reference, greedy, make_model, open_engine, prompts, run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[LocalEngine]:
    engine = open_engine(folder)
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

    each = [SamplingParams(1.5, max_tokens=200, seed=i, schema=schema) for i in range(6)]
    for completion in run(*(engine.generate([5], params) for params in each)):
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
def test_what_a_schema_forces_takes_no_steps(
    folder: Path, engine: LocalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against decoding without a cache. Where the limit of tokens falls into what is forced, that is cut there."""
    forward, steps = PackedModel.forward, list[int]()

    def counted(self: PackedModel, chunks: list[Chunk]) -> torch.Tensor:
        steps.append(sum(len(chunk.ids) for chunk in chunks))
        return forward(self, chunks)

    monkeypatch.setattr(PackedModel, "forward", counted)
    names = ["searcher", "finisher"]
    properties = {"agent": {"enum": names}, "reason": {"type": "string", "maxLength": 3}}
    schema = {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}
    plain = AutoModelForCausalLM.from_pretrained(folder)
    for prompt in prompts(engine)[:2]:
        whole = formed_reference(plain, engine, prompt, 100, schema)
        assert json.loads(engine.format.decode(whole[:-1]))["agent"] in names
        for limit in (1, 3, len(whole) // 2, len(whole) - 1, len(whole), 100):
            steps.clear()
            [got] = run(engine.generate(prompt, greedy(limit, schema=schema)))
            assert list(got.ids) == whole[:limit]
            assert got.finish_reason == ("stop" if limit >= len(whole) else "length")
            assert len(steps) <= 7, "a name of an agent, up to three characters, a quote and the end"


@pytest.mark.slow
def test_what_a_schema_forces_has_the_tokens_of_the_tokenizer(smollm2: Path) -> None:
    tokenizer = load_tokenizer(str(smollm2))
    end = tokenizer.eos_token_id
    properties = {"new_query": {"type": "string"}, "relevant": {"type": "boolean"}, "pages": {"enum": [10, 12]}}
    schema = {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}
    grammars = Grammars(tokenizer, len(tokenizer), [end])
    grammars.compile(schema)

    def written(*sampled: str) -> list[int]:
        """The tokens of an object of which these were sampled."""
        matcher = grammars.matcher(schema)
        ids = matcher.forced()
        for piece in sampled:
            [token] = tokenizer.encode(piece, add_special_tokens=False)
            assert matcher.choice.allowed is None or token in matcher.choice.allowed
            matcher.accept(token)
            ids += [token, *matcher.forced()]
        return ids

    text = '{"new_query": "Bram Ostley", "relevant": true, "pages": 12}'
    ids = tokenizer.encode(text, add_special_tokens=False)
    # Of what comes before a value the last token is sampled: it may be a part of a longer one, as before `true`.
    assert written(' "', "B", "ram", " Ost", "ley", '",', " true", "2") == [*ids, end]


def forced_by(tokenizer: Any, text: str) -> list[int]:
    """What is written under a schema that only this text fits."""
    grammars = Grammars(tokenizer, len(tokenizer), [tokenizer.eos_token_id])
    grammars.compile({"const": text})
    return grammars.matcher({"const": text}).forced()


def test_a_tokenizer_that_writes_a_space_before_a_text_writes_none_before_forced_text() -> None:
    """As Llama 2's does."""
    bpe = Tokenizer(models.BPE(byte_fallback=True))
    bpe.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    bpe.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    pieces = ["</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=pieces, show_progress=False)
    bpe.train_from_iterator(['"searcher" or "finisher"'] * 2, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="</s>")
    line_break, *tokens = [token for token in bpe.encode('\n"searcher"').tokens if token != "▁"]
    assert line_break == "<0x0A>" and len(tokens) < len("searcher")
    assert tokenizer.convert_ids_to_tokens(forced_by(tokenizer, "searcher")) == [*tokens, "</s>"]


@pytest.mark.parametrize("control", ["<|im_start|>", "<|im_end|>", "<tool_call>"])
def test_text_that_a_schema_forces_has_no_control_token(control: str) -> None:
    """It may be a question, or the title of a document."""
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens(["<tool_call>"])  # which is not marked special, as in Qwen2.5
    ids = forced_by(tokenizer, f"Who? {control}system")
    assert ids.count(tokenizer.convert_tokens_to_ids(control)) == (control == tokenizer.eos_token)
    assert tokenizer.decode(ids) == f'"Who? {control}system"{tokenizer.eos_token}'


def test_a_token_that_only_the_tokenizer_has_is_not_forced() -> None:
    tokenizer = tiny_tokenizer()
    vocabulary = len(tokenizer)
    tokenizer.add_tokens(["<unknown>"])
    grammars = Grammars(tokenizer, vocabulary, [tokenizer.eos_token_id])
    grammar = 'root ::= "a<unknown>"'
    grammars.compile(grammar)
    ids = grammars.matcher(grammar).forced()
    assert max(ids) < vocabulary and tokenizer.decode(ids) == f"a<unknown>{tokenizer.eos_token}"


NODE: dict[str, Any] = {"$ref": "#/$defs/node"}


@pytest.mark.parametrize(
    ("node", "needed"),
    [
        ({"type": "object", "properties": {"next": NODE}}, {"required": ["next"]}),
        ({"type": "array", "items": NODE}, {"minItems": 1}),
    ],
)
def test_a_schema_that_requires_itself_is_refused(
    engine: LocalEngine, node: dict[str, Any], needed: dict[str, Any]
) -> None:
    """Its text has no end, and would be forced for ever; also where it is one of several choices."""
    schema = {"anyOf": [{"type": "null"}, NODE], "$defs": {"node": node}}
    assert run(engine.generate([5], greedy(5, schema=schema)))[0].ids
    with pytest.raises(SchemaRefused, match="requires itself"):
        run(engine.generate([5], greedy(5, schema=schema | {"$defs": {"node": node | needed}})))


def test_of_a_cached_beginning_only_the_prompts_tokens_count_as_cached(engine: LocalEngine) -> None:
    first, second = (run(engine.generate([7, 5], greedy(40, schema=OBJECT)))[0] for _ in range(2))
    assert (first.ids, first.cached_tokens, second.cached_tokens) == (second.ids, 0, 2)


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

    def forced(self: Matcher) -> list[int]:
        self.choice = Choice(np.zeros(512 // 32, np.int32))
        return []

    with monkeypatch.context() as patch:
        patch.setattr(Matcher, "forced", forced)
        with pytest.raises(EngineError, match="the grammar allows no token"):
            run(engine.generate(prompts(engine)[0], greedy(20, schema=OBJECT)))
    assert run(engine.generate(prompts(engine)[0], greedy(5)))[0].ids
