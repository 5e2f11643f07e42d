"""The in-process engine against plain transformers and PEFT, on tiny random models of the real architectures."""

import asyncio
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from ratchet.core.config import ModelConfig
from ratchet.core.errors import UserError
from ratchet.inference.chat import Dialogue
from ratchet.inference.completion import Completion, SamplingParams
from ratchet.inference.engine import EngineError, asking_about
from ratchet.inference.local.engine import LocalEngine
from ratchet.inference.local.model import Chunk, PackedModel
from ratchet.inference.local.sampling import Grammars
from tests.helpers.tiny import save_tiny_tokenizer

SHAPE: dict[str, Any] = {
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,
}

OBJECT = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}


def make_model(folder: Path, kind: str = "llama") -> Path:
    torch.manual_seed(7)
    model = {
        "llama": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE)),
        "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SHAPE)),
        "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SHAPE, head_dim=12, tie_word_embeddings=True)),
        "windows": lambda: MistralForCausalLM(MistralConfig(**SHAPE, sliding_window=9)),
    }[kind]()
    model.save_pretrained(folder)
    save_tiny_tokenizer(folder)
    return folder


def make_adapter(model: Path, folder: Path, seed: int, targets: str | list[str] = "all-linear") -> Path:
    torch.manual_seed(seed)
    peft = get_peft_model(
        AutoModelForCausalLM.from_pretrained(model),
        LoraConfig(r=4, lora_alpha=8, target_modules=targets, init_lora_weights=False),
    )
    peft.save_pretrained(folder, save_embedding_layers=False)
    return folder


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def engine(llama: Path) -> Iterator[LocalEngine]:
    engine = open_engine(llama)
    yield engine
    asyncio.run(engine.close())


def open_engine(path: Path, **settings: Any) -> LocalEngine:
    return LocalEngine(ModelConfig(path=str(path), **{"dtype": "float32", "cache_gb": 0.02, "workers": 1, **settings}))


def run(*calls: Coroutine[Any, Any, Completion]) -> list[Completion]:
    async def together() -> list[Completion]:
        return await asyncio.gather(*calls)

    return asyncio.run(together())


def greedy(n: int, **more: Any) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=n, **more)


def reference(model: Any, prompt: list[int], n: int, end: int) -> list[int]:
    """Greedy decoding without a cache: the whole text through the model for every token."""
    ids = list(prompt)
    while len(ids) < len(prompt) + n and (len(ids) == len(prompt) or ids[-1] != end):
        with torch.no_grad():
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(prompt) :]


def formed_reference(model: Any, engine: LocalEngine, prompt: list[int], n: int, schema: Any = OBJECT) -> list[int]:
    """Greedy decoding under a schema without a cache."""
    grammars = Grammars(engine.format.tokenizer, SHAPE["vocab_size"], engine.format.end_ids)
    grammars.compile(schema)
    matcher = grammars.matcher(schema)
    new = matcher.forced()
    while len(new) < n and not {*new} & {*engine.format.end_ids}:
        with torch.no_grad():
            logits = model(torch.tensor([[*prompt, *new]])).logits[0, -1]
        allowed = matcher.choice.allowed
        assert allowed is not None
        token = int(allowed[logits[allowed].argmax()])
        matcher.accept(token)
        new += [token, *matcher.forced()]
    return new[:n]


def prompts(engine: LocalEngine) -> list[list[int]]:
    texts = ["harbour", "Which agent should act next? " * 4, "The searcher finds documents " * 12, "a" * 150]
    return [list(engine.format.encode(text)) for text in texts]


@pytest.mark.slow
@pytest.mark.numeric
@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "windows"])
def test_mixed_lengths_in_one_batch_give_the_tokens_of_plain_transformers(tmp_path: Path, kind: str) -> None:
    folder = make_model(tmp_path, kind)
    engine = open_engine(folder)
    plain = AutoModelForCausalLM.from_pretrained(folder)
    got = run(*(engine.generate(prompt, greedy(40)) for prompt in prompts(engine)))
    asyncio.run(engine.close())
    assert (engine._schedulers[0].model._decoder is None) == (kind == "windows")
    for prompt, completion in zip(prompts(engine), got, strict=True):
        assert list(completion.ids) == reference(plain, prompt, 40, engine.format.end_of_turn)


def test_each_token_that_ends_a_turn_ends_it(llama: Path) -> None:
    engine = open_engine(llama)
    prompt = prompts(engine)[0]
    [free] = run(engine.generate(prompt, greedy(20)))
    other = free.ids[5]
    engine.format.__dict__["end_ids"] = (engine.format.end_of_turn, other)
    [ended] = run(engine.generate(prompt, greedy(20)))
    asyncio.run(engine.close())
    length = free.ids.index(other) + 1
    assert (ended.ids, ended.finish_reason) == (free.ids[:length], "stop")
    assert ended.text == engine.format.decode(free.ids[: length - 1])


@pytest.mark.slow
@pytest.mark.numeric
@pytest.mark.parametrize("kind", ["llama", "qwen3"])
@pytest.mark.parametrize("adapted", [False, True])
def test_in_bfloat16_on_a_cpu_only_the_products_are_rounded(tmp_path: Path, adapted: bool, kind: str) -> None:
    """Prefill and decoding are nearer to the same weights in float32 than plain transformers in bfloat16 is."""
    folder = make_model(tmp_path / "model", kind)
    mine = PackedModel(ModelConfig(path=str(folder), dtype="bfloat16", device="cpu", cache_gb=0.02))
    adapter = str(make_adapter(folder, tmp_path / "adapter", 1))
    number = mine.lora.load(adapter) if adapted else 0
    ids = list(range(1, 44))
    got = [mine.forward([Chunk(ids[:40], 0, [0, 1, 2], number)])[0]]
    got += [mine.forward([Chunk([ids[at]], at, [0, 1, 2], number)])[0] for at in range(40, 43)]
    mine.close()

    def plain(dtype: torch.dtype) -> torch.Tensor:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).to(dtype)
        with torch.no_grad():
            return (PeftModel.from_pretrained(model, adapter) if adapted else model)(torch.tensor([ids])).logits[0, 39:]

    exact, rounded = plain(torch.float32), plain(torch.bfloat16).float()
    assert 0 < (torch.stack(got) - exact).norm() < 0.75 * (rounded - exact).norm()


@pytest.mark.slow
def test_several_workers_give_the_tokens_of_one(llama: Path, tmp_path: Path) -> None:
    """Base and adapter, prompts that share beginnings and next turns that a worker has cached, spread over three."""
    adapters = [None, str(make_adapter(llama, tmp_path / "adapter", 1))]
    one, three = open_engine(llama), open_engine(llama, workers=3)

    def turns(engine: LocalEngine) -> list[tuple[int, ...]]:
        jobs = [(prompt, adapter) for prompt in prompts(engine) for adapter in adapters for _ in range(2)]
        first = run(*(engine.generate(prompt, greedy(12), adapter=adapter) for prompt, adapter in jobs))
        longer = [[*prompt, *said.ids, 9, 8, 7] for (prompt, _), said in zip(jobs, first, strict=True)]
        calls = zip(longer, jobs, strict=True)
        second = run(*(engine.generate(prompt, greedy(5), adapter=adapter) for prompt, (_, adapter) in calls))
        asyncio.run(engine.close())
        return [said.ids for said in (*first, *second)]

    assert turns(three) == turns(one)


def test_a_question_stays_with_a_worker_until_another_would_be_idle(llama: Path) -> None:
    two = open_engine(llama, workers=2)
    prompt = list(range(1, 97))

    def given(question: str, root: str = "base") -> int:
        with asking_about(question):
            place, tokens = two._choose(root, prompt, 16)
        two._load[place] += tokens
        return place

    assert [given(question) for question in ("a", "b", "b", "a", "b")] == [0, 1, 1, 0, 1]
    assert {given("a") for _ in range(30)} == {0, 1}, "an idle core costs more than computing a beginning twice"
    two._load = [0, 0]
    assert [given("c", "base"), given("d", "base"), given("c", "adapter"), given("c", "adapter")] == [0, 1, 0, 0]
    asyncio.run(two.close())


@pytest.mark.slow
@pytest.mark.numeric
@pytest.mark.parametrize(
    ("kind", "targets"),
    [("llama", "all-linear"), ("llama", ["q_proj", "lm_head"]), ("qwen3", "all-linear"), ("windows", "all-linear")],
)
def test_base_and_two_adapters_in_one_batch_each_match_peft(
    tmp_path: Path, kind: str, targets: str | list[str]
) -> None:
    model_folder = make_model(tmp_path / "model", kind)
    engine = open_engine(model_folder)
    adapters = [None, *(str(make_adapter(model_folder, tmp_path / str(seed), seed, targets)) for seed in (1, 2))]
    jobs = [(prompt, adapter) for prompt in prompts(engine)[:3] for adapter in adapters]
    got = run(*(engine.generate(prompt, greedy(12), adapter=adapter) for prompt, adapter in jobs))
    asyncio.run(engine.close())
    end = engine.format.end_of_turn
    for adapter in adapters:
        model = AutoModelForCausalLM.from_pretrained(model_folder)
        model = model if adapter is None else PeftModel.from_pretrained(model, adapter)
        for (prompt, used), completion in zip(jobs, got, strict=True):
            if used == adapter:
                assert list(completion.ids) == reference(model, prompt, 12, end)


def test_an_adapter_of_another_model_is_refused(engine: LocalEngine, tmp_path: Path) -> None:
    other = LlamaForCausalLM(LlamaConfig(**{**SHAPE, "hidden_size": 60}))
    lora = LoraConfig(r=2, target_modules="all-linear", init_lora_weights=False)
    get_peft_model(other, lora).save_pretrained(tmp_path)
    with pytest.raises(UserError, match="another shape"):
        run(engine.generate([5, 6], greedy(2), adapter=str(tmp_path)))


@pytest.mark.slow
def test_samples_of_one_prompt_prefill_it_once_and_a_next_turn_only_what_is_new(llama: Path) -> None:
    engine = open_engine(llama)
    prompt = prompts(engine)[2]
    samples = run(*(engine.generate(prompt, SamplingParams(0.9, max_tokens=20, seed=i)) for i in range(8)))
    assert (
        sum(len(prompt) - one.cached_tokens for one in samples) == len(prompt) + 7
    )  # of each other sample the last token, after which it samples

    first = run(engine.generate(prompt, greedy(30)))[0]
    longer = [*prompt, *first.ids, *engine.format.encode("go on")]
    second = run(engine.generate(longer, greedy(5)))[0]
    asyncio.run(engine.close())
    assert second.cached_tokens == len(prompt) + len(first.ids) - 1


@pytest.mark.slow
def test_sampling_is_seeded_and_other_seeds_differ(engine: LocalEngine) -> None:
    prompt = prompts(engine)[1]

    def once(seed: int) -> Completion:
        return run(engine.generate(prompt, SamplingParams(1.0, 0.9, max_tokens=24, seed=seed)))[0]

    assert once(3).ids == once(3).ids
    assert len({once(seed).ids for seed in range(6)}) > 3


@pytest.mark.numeric
def test_log_probabilities_are_those_of_the_unmodified_model(llama: Path, engine: LocalEngine) -> None:
    prompt = prompts(engine)[1]
    got = run(engine.generate(prompt, SamplingParams(0.5, 0.5, max_tokens=10, seed=1, logprobs=True)))[0]
    with torch.no_grad():
        logits = AutoModelForCausalLM.from_pretrained(llama)(torch.tensor([[*prompt, *got.ids]])).logits[0]
    expected = logits.log_softmax(-1)[len(prompt) - 1 : -1].gather(1, torch.tensor(got.ids)[:, None])[:, 0]
    assert got.logprobs == pytest.approx(expected.tolist(), abs=1e-4)


def test_a_begun_answer_goes_on_with_the_log_probabilities_of_plain_transformers(
    llama: Path, engine: LocalEngine
) -> None:
    plain = AutoModelForCausalLM.from_pretrained(llama)

    def both(ids: list[int]) -> Completion:
        got = run(engine.generate(ids, greedy(6, logprobs=True)))[0]
        with torch.no_grad():
            logits = plain(torch.tensor([[*ids, *got.ids]])).logits[0]
        expected = logits.log_softmax(-1)[len(ids) - 1 : -1].gather(1, torch.tensor(got.ids)[:, None])[:, 0]
        assert got.logprobs == pytest.approx(expected.tolist(), abs=1e-4)
        return got

    first, again = (Dialogue("r", "m", engine.format, True) for _ in range(2))
    first.user("Who built the harbour?")
    said = both(first.ids)
    again.user("Who built the harbour?")
    again.continue_assistant(said.ids[:3])
    assert both(again.ids).ids[:3] == said.ids[3:]  # greedy: it says what it would have said anyway


def test_limits_end_a_request_and_say_which(llama: Path) -> None:
    # Without the end-of-turn token nothing but a limit can stop this model.
    engine = open_engine(llama, max_context=80)
    endless = {"type": "string", "minLength": 500}
    length, context = run(
        engine.generate([5, 6, 7], greedy(10, schema=endless)), engine.generate([5] * 60, greedy(100, schema=endless))
    )
    assert (length.finish_reason, len(length.ids)) == ("length", 10)
    assert (context.finish_reason, len(context.ids)) == ("context", 20)
    with pytest.raises(EngineError, match="the model's context holds 80"):
        run(engine.generate([5] * 80, greedy(1)))
    with pytest.raises(EngineError, match="empty"):
        run(engine.generate([], greedy(1)))
    asyncio.run(engine.close())


def test_a_request_over_its_time_ends_as_timeout(llama: Path) -> None:
    engine = open_engine(llama, timeout=0.001)
    got = run(engine.generate([5], greedy(400, schema={"type": "string", "minLength": 5000})))[0]
    asyncio.run(engine.close())
    assert got.finish_reason == "timeout" and len(got.ids) < 400


@pytest.mark.slow
def test_when_the_cache_is_full_sequences_wait_their_turn_and_lose_nothing(llama: Path) -> None:
    block_bytes = 2 * 3 * 2 * 16 * 8 * 4
    small, large = open_engine(llama, cache_gb=30 * block_bytes / 1e9), open_engine(llama)
    schema = {"type": "string", "minLength": 500}
    calls = [(prompts(small)[1 + i % 3][i:], greedy(60 + i, schema=schema)) for i in range(10)]
    crowded = run(*(small.generate(prompt, params) for prompt, params in calls))
    roomy = run(*(large.generate(prompt, params) for prompt, params in calls))
    with pytest.raises(EngineError, match="cache_gb"):
        run(small.generate([5] * 300, greedy(200)))
    asyncio.run(small.close())
    asyncio.run(large.close())
    assert [c.ids for c in crowded] == [c.ids for c in roomy]


def test_a_cancelled_request_leaves_the_others_alone(engine: LocalEngine) -> None:
    async def scenario() -> Completion:
        doomed = asyncio.create_task(engine.generate([5, 6], greedy(300)))
        kept = asyncio.create_task(engine.generate([7, 8], greedy(30)))
        await asyncio.sleep(0.02)
        doomed.cancel()
        with pytest.raises(asyncio.CancelledError):
            await doomed
        return await kept

    assert asyncio.run(scenario()).finish_reason in {"length", "stop"}


def test_the_fingerprint_tells_weights_and_precision_apart(llama: Path, engine: LocalEngine, tmp_path: Path) -> None:
    same = open_engine(llama)
    torch.manual_seed(8)
    LlamaForCausalLM(LlamaConfig(**SHAPE)).save_pretrained(tmp_path)
    save_tiny_tokenizer(tmp_path)
    other = open_engine(tmp_path)
    asyncio.run(same.close())
    asyncio.run(other.close())
    assert same.fingerprint == engine.fingerprint != other.fingerprint


@pytest.mark.slow
def test_logits_that_are_not_finite_fail_their_request_alone(tmp_path: Path) -> None:
    folder = make_model(tmp_path)
    model = LlamaForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        model.model.embed_tokens.weight[77] = torch.nan
    model.save_pretrained(folder)
    engine = open_engine(folder)
    good = list(engine.format.encode("harbour"))
    wanted = run(engine.generate(good, greedy(20)))[0]

    async def batch() -> list[Any]:
        sampled = SamplingParams(temperature=0.7, max_tokens=20, logprobs=True)
        bad = [engine.generate([*good, 77], params) for params in (greedy(20), sampled, greedy(20, schema=OBJECT))]
        return await asyncio.gather(engine.generate(good, greedy(20)), *bad, return_exceptions=True)

    first, *failed = asyncio.run(batch())
    assert first.ids == wanted.ids
    assert [type(error) for error in failed] == [EngineError] * 3
    assert str(failed[0]).startswith("the model's logits are not finite")
    assert run(engine.generate(good, greedy(20)))[0].ids == wanted.ids, "the engine goes on"
    asyncio.run(engine.close())


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_after_a_fault_of_the_engine_itself_no_request_waits_for_ever(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = open_engine(llama)

    def broken(chunks: Any) -> Any:
        raise ZeroDivisionError("a fault of ours")

    monkeypatch.setattr(engine._schedulers[0].model, "forward", broken)
    for error in (ZeroDivisionError, RuntimeError):
        with pytest.raises(error):
            run(engine.generate(prompts(engine)[0], greedy(5)))
    asyncio.run(engine.close())
