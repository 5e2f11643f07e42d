"""vLLM over HTTP: ids both ways, adapters, and wrong settings."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from ratchet.core.config import ModelConfig
from ratchet.core.errors import UserError
from ratchet.inference.adapters import adapter_digest
from ratchet.inference.completion import SamplingParams
from ratchet.inference.engine import EngineError
from ratchet.inference.engines import open_engine
from ratchet.inference.http.vllm import HttpEngine
from ratchet.inference.schemas import schema_grammar
from tests.helpers.wire_server import FAST, GREEDY, SCHEMA, Server, World, adapter, failure

pytestmark = pytest.mark.server

# vLLM: ids both ways


async def test_ids_go_out_and_come_back_exactly(world: World) -> None:
    completion = await world.ask()
    (request,) = world.server.asked()
    assert request.body["prompt"] == world.dialogue.ids
    assert completion.ids == tuple(world.server.ids)
    assert completion.ids != (*world.engine.format.encode("harbour"), world.end)
    assert completion.text == "harbour"
    assert completion.finish_reason == "stop"
    assert (completion.prompt_tokens, completion.cached_tokens) == (len(world.dialogue.ids), 3)


async def test_everything_about_sampling_is_sent(world: World) -> None:
    params = SamplingParams(temperature=0.7, top_p=0.9, max_tokens=9, seed=2**62 + 1, schema=SCHEMA)
    await world.ask(params)
    body = world.server.asked()[0].body
    expected = {
        "model": "tiny",
        "temperature": 0.7,
        "top_p": 0.9,
        "max_tokens": 9,
        "seed": 2**62 + 1,
        "stop_token_ids": [world.end],
        "structured_outputs": {"grammar": schema_grammar(json.dumps(SCHEMA))},
        "return_token_ids": True,
    }
    assert expected.items() <= body.items()
    # or the server would take them from the model's generation_config.json
    neutral = {"top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
    assert neutral.items() <= body.items()
    assert '"\\"a\\"" ": "' in body["structured_outputs"]["grammar"], "the in-process engine's white space"


async def test_several_completions_of_a_prompt_are_one_request(world: World) -> None:
    world.server.choices = 3
    completions = await world.engine.generate_several(world.dialogue.ids, GREEDY, 3)
    assert [completion.ids for completion in completions] == [tuple(world.server.ids)] * 3
    (request,) = world.server.asked()
    assert request.body["n"] == 3


def test_log_probabilities_under_a_grammar_are_not_passed_off_as_the_models_own() -> None:
    with pytest.raises(ValueError, match="under a schema"):
        SamplingParams(temperature=0.7, schema=SCHEMA, logprobs=True)


async def test_a_begun_answer_goes_on_with_a_log_probability_for_every_token(world: World) -> None:
    begun = tuple(i for letter in "The har" for i in world.engine.format.encode(letter))
    world.dialogue.continue_assistant(begun)
    completion = await world.ask(SamplingParams(temperature=0, max_tokens=50, logprobs=True))
    body = world.server.asked()[0].body
    assert body["prompt"] == world.dialogue.ids and tuple(body["prompt"][-len(begun) :]) == begun
    assert body["logprobs"] == 0  # the sampled tokens' own, and no alternatives
    assert completion.ids[-1] == world.end
    assert completion.logprobs == tuple(-0.5 * i for i in range(len(completion.ids)))


@pytest.mark.parametrize("stop_reason", [None, "id"])
async def test_the_end_of_turn_is_there_even_if_the_server_leaves_it_out(world: World, stop_reason: str | None) -> None:
    whole = tuple(world.server.ids)
    world.server.ids.pop()
    world.server.patch = {"choice.stop_reason": world.end if stop_reason else None}
    completion = await world.ask()
    assert completion.ids == whole
    assert completion.text == "harbour"


async def test_cut_off_by_max_tokens_or_by_the_window(world: World) -> None:
    short = await world.ask(SamplingParams(temperature=0, max_tokens=3))
    assert (short.finish_reason, len(short.ids), short.text) == ("length", 3, "har")
    world.server.window = len(world.dialogue.ids) + 4
    other = World(world.server, world.engine._model.path)
    full = await other.ask()
    assert (full.finish_reason, len(full.ids)) == ("context", 4)
    assert other.engine.max_context == world.server.window
    smaller = World(world.server, world.engine._model.path, max_context=world.server.window - 1)
    await smaller.ask()
    assert smaller.engine.max_context == world.server.window - 1
    other.engine.max_context = 5
    with pytest.raises(EngineError, match=rf"{len(world.dialogue.ids)} tokens.*context holds 5"):
        await other.ask()


async def test_a_context_error_ends_the_conversation(world: World, caplog: pytest.LogCaptureFixture) -> None:
    await world.ask()
    world.server.window = 10  # the server was restarted with less
    completion = await world.ask()
    assert (completion.finish_reason, completion.ids, completion.text) == ("context", (), "")
    assert "maximum context length is 10 tokens" in caplog.text
    assert len(world.server.asked()) == 2


@pytest.mark.parametrize(
    ("patch", "message"),
    [
        ({"usage.prompt_tokens": 7}, "read 7 prompt tokens, not the .* cut or changed"),
        ({"choice.prompt_token_ids": [1, 2]}, "cut or changed the prompt"),
        ({"choices": []}, "choices"),
        ({"usage": None}, "usage"),
        ({"choice.token_ids": "abc"}, "token_ids"),
        ({"choice.finish_reason": "abort"}, "'abort'"),
        ({"choice.logprobs": None}, "0 log-probabilities for 8 tokens"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
async def test_answers_that_cannot_be_used_fail_at_once(world: World, patch: dict[str, Any], message: str) -> None:
    world.server.patch = patch
    with pytest.raises(EngineError, match=message):
        await world.ask(SamplingParams(temperature=0, logprobs=True))
    assert len(world.server.asked()) == 1


async def test_a_server_without_token_ids_is_named(world: World) -> None:
    world.server.patch = {"choice.token_ids": None}
    with pytest.raises(UserError, match=r"no token ids.*return_token_ids"):
        await world.ask()


# Adapters


async def test_an_adapter_is_loaded_once_under_a_name_of_its_content(world: World, tmp_path: Path) -> None:
    one, two = adapter(tmp_path / "one"), adapter(tmp_path / "two", 2.0)
    await asyncio.gather(*(world.ask(adapter=str(one)) for _ in range(3)))
    await world.ask(adapter=str(two))
    await world.ask()
    names = [f"ratchet-{adapter_digest(path)}" for path in (one, two)]
    loads = [request.body for request in world.server.asked("load_lora_adapter")]
    assert loads == [{"lora_name": n, "lora_path": str(p)} for n, p in zip(names, (one, two), strict=True)]
    assert [r.body["model"] for r in world.server.asked()] == [names[0]] * 3 + [names[1], "tiny"]


async def test_a_server_of_merged_weights_answers_for_their_adapter_alone(world: World, tmp_path: Path) -> None:
    one, two = adapter(tmp_path / "one"), adapter(tmp_path / "two", 2.0)
    model = ModelConfig(path=str(tmp_path), engine="vllm", url=world.server.url, served_name="tiny")
    merged = HttpEngine(model, FAST, chat=world.engine.format, merged=adapter_digest(one))
    world.server.asking.append(merged)
    await merged.generate(world.dialogue.ids, GREEDY, str(one))
    assert [r.body["model"] for r in world.server.asked()] == ["tiny"] and not world.server.asked("load_lora_adapter")
    plain = HttpEngine(model, FAST, chat=world.engine.format)
    world.server.asking.append(plain)
    assert merged.fingerprint != plain.fingerprint, "the key of samples tells it"
    for other in (None, str(two)):
        with pytest.raises(UserError, match=r"merged into them \(serve.merge\), and cannot answer with"):
            await merged.generate(world.dialogue.ids, GREEDY, other)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ({"lora": False}, "VLLM_ALLOW_RUNTIME_LORA_UPDATING"),
        ({"ignores_adapters": True}, r"exactly as the base model tiny does.*stale"),
        ({"faults": [failure(500, "LoRA rank 64 is greater than 16.")]}, r"rank 64 is greater.*\n.*--max-lora-rank"),
    ],
)
async def test_an_adapter_that_does_not_work_on_the_server_is_refused(
    world: World, tmp_path: Path, fault: dict[str, Any], message: str
) -> None:
    for name, value in fault.items():
        setattr(world.server, name, value)
    with pytest.raises(UserError, match=rf"(?s){message}"):
        await world.ask(adapter=str(adapter(tmp_path / "one")))
    assert not world.server.asked()


async def test_a_folder_that_is_no_trained_adapter_is_refused_before_a_server_hears_of_it(
    world: World, tmp_path: Path
) -> None:
    damaged = adapter(tmp_path / "damaged")
    (damaged / "adapter_model.safetensors").write_bytes(b"half a file")
    for folder, message in (
        (tmp_path / "missing", "is this a PEFT adapter folder"),
        (adapter(tmp_path / "untrained", b=0.0), "changes nothing of its base model"),
        (damaged, r"damaged/adapter_model.safetensors: not a safetensors file"),
    ):
        with pytest.raises(UserError, match=message):
            await world.ask(adapter=str(folder))
    assert not world.server.asked("load_lora_adapter")


async def test_a_server_that_has_forgotten_an_adapter_gets_it_again_once(world: World, tmp_path: Path) -> None:
    folder = str(adapter(tmp_path / "one"))
    await world.ask(adapter=folder)
    world.server.adapters.clear()  # a restart
    answers = await asyncio.gather(*(world.ask(adapter=folder) for _ in range(6)))
    assert [answer.text for answer in answers] == ["harbour"] * 6
    assert len(world.server.asked("load_lora_adapter")) == 2


# Wrong settings


@pytest.mark.parametrize(
    ("url", "message"),
    [
        (None, "no url; set"),
        ("127.0.0.1:8000/v1", "is not an address"),
        ("ftp://host/v1", "is not an address"),
        ("http://me:secret@host/v1", "keep secrets out"),
    ],
)
def test_addresses_that_cannot_be_used(folder: str, url: str | None, message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        open_engine(ModelConfig(path=folder, engine="vllm", url=url))
    assert "secret@" not in str(error.value)


async def test_no_server_at_all(server: Server, folder: str) -> None:
    url = server.url
    server.stop()
    with pytest.raises(UserError, match=f"no server answers at {url}.*vllm serve"):
        await World(server, folder, url=url).ask()


async def test_a_model_that_the_server_does_not_know(server: Server, folder: str) -> None:
    with pytest.raises(UserError, match=r"does not serve 'tinny' \(did you mean 'tiny'\?\).*served_name"):
        await World(server, folder, served_name="tinny").ask()


async def test_fingerprints_tell_models_apart_and_not_addresses(server: Server, folder: str) -> None:
    base = World(server, folder).engine.fingerprint
    assert World(server, folder, url="http://elsewhere:1/v1").engine.fingerprint == base
    assert World(server, folder, served_name="other").engine.fingerprint != base
