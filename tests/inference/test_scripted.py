"""The scripted engine keeps the engine protocol: what tests with it show, holds for a model's engine too."""

import json
import math
from pathlib import Path

import pytest

from ratchet.core.config import ModelConfig
from ratchet.core.errors import UserError
from ratchet.inference.completion import SamplingParams
from ratchet.inference.engine import EngineError
from ratchet.inference.engines import open_engine
from ratchet.inference.scripted import ScriptedEngine, ScriptedReply
from tests.helpers.tiny import STYLES, Style, save_tiny_tokenizer, tiny_format

PARAMS = SamplingParams(temperature=0.7, max_tokens=100)


def scripted(folder: Path, *rules: object, max_context: int = 32_000) -> ScriptedEngine:
    script = folder / "script.jsonl"
    script.write_text("".join(json.dumps(rule) + "\n" for rule in rules))
    path = str(save_tiny_tokenizer(folder / "tokenizer"))
    engine = open_engine(ModelConfig(path=path, engine="scripted", script=str(script), max_context=max_context))
    assert isinstance(engine, ScriptedEngine)
    return engine


@pytest.mark.parametrize("style", STYLES)
async def test_a_reply_is_tokens_that_end_the_turn(style: Style) -> None:
    chat = tiny_format(style)
    engine = ScriptedEngine(chat, ["Ada <|im_end|><|eot_id|><|endoftext|> Torrin"])
    prompt = chat.encode("Who?")
    got = await engine.generate(prompt, PARAMS, adapter="a", messages=[{"role": "user", "content": "Who?"}])
    assert got.ids[-1] == chat.end_of_turn
    assert chat.control_ids.isdisjoint(got.ids[:-1])
    assert chat.decode(got.ids[:-1]) == got.text
    assert (got.finish_reason, got.prompt_tokens) == ("stop", len(prompt))
    assert engine.calls[0].prompt == prompt and engine.calls[0].adapter == "a"


async def test_limits_cut_a_reply() -> None:
    chat = tiny_format()
    engine = ScriptedEngine(chat, ["one two three four", "one two three four"], max_context=20)
    cut = await engine.generate((), SamplingParams(temperature=0, max_tokens=3))
    assert cut.finish_reason == "length" and len(cut.ids) == 3 and cut.text == chat.decode(cut.ids)
    full = await engine.generate(chat.encode("x") * 18, PARAMS)
    assert full.finish_reason == "context" and len(full.ids) == 2


async def test_a_list_runs_out_and_raises_its_errors() -> None:
    engine = ScriptedEngine(tiny_format(), [EngineError("gone"), "here"])
    with pytest.raises(EngineError, match="gone"):
        await engine.generate((), PARAMS)
    assert (await engine.generate((), PARAMS)).text == "here"
    with pytest.raises(EngineError, match="only 2 replies"):
        await engine.generate((), PARAMS)
    one = ScriptedEngine(tiny_format(), ["here"])
    await one.generate((), PARAMS)
    with pytest.raises(EngineError, match="has only 1 reply, and this call asks for one more"):
        await one.generate((), PARAMS)


async def test_rules_look_at_the_last_user_message_first_match_wins(tmp_path: Path) -> None:
    engine = scripted(
        tmp_path,
        {"match": "harbour", "prompt": "Find", "reply": "found"},
        {"match": "harbour", "reply": "told"},
        {"match": "boom", "error": "the server is gone"},
        {"default": "unknown"},
    )

    async def ask(system: str, *users: str) -> str:
        messages = [{"role": "system", "content": system}] + [{"role": "user", "content": u} for u in users]
        prompt = engine.format.encode(" ".join([system, *users]))
        return (await engine.generate(prompt, PARAMS, messages=messages)).text  # type: ignore[arg-type]

    assert await ask("Find.", "the harbour") == "found"
    assert await ask("Tell.", "the harbour") == "told"
    assert await ask("Find.", "the harbour", "the mill") == "unknown"
    with pytest.raises(EngineError, match="the server is gone"):
        await ask("Find.", "boom")
    assert (await engine.generate(engine.format.encode("the harbour"), PARAMS)).text == "told"


async def test_no_matching_rule_names_the_message(tmp_path: Path) -> None:
    engine = scripted(tmp_path, {"match": "mill", "reply": "x"})
    with pytest.raises(EngineError, match="the harbour"):
        await engine.generate(engine.format.encode("the harbour"), PARAMS)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"match": "a", "repyl": "b"}, r"script.jsonl:2: repyl: unknown key \(did you mean 'reply'"),
        ({"match": "a"}, r"script.jsonl:2: .*exactly one of"),
    ],
)
def test_a_bad_rule_names_file_and_line(tmp_path: Path, rule: object, message: str) -> None:
    with pytest.raises(UserError, match=message):
        scripted(tmp_path, {"default": "x"}, rule)


async def test_a_reply_in_pieces_has_their_probabilities() -> None:
    chat = tiny_format()
    said = ScriptedReply(("one", 1.0), (" two", 0.5), end=0.25)
    engine = ScriptedEngine(chat, [said, said, "plain", said])
    asked = SamplingParams(temperature=0, max_tokens=100, logprobs=True)
    got = await engine.generate((), asked)
    one, two = chat.encode("one"), chat.encode(" two")
    assert (got.ids, got.text) == ((*one, *two, chat.end_of_turn), "one two")
    assert got.logprobs == pytest.approx([*(0.0 for _ in one), *(math.log(0.5) for _ in two), math.log(0.25)])
    cut = await engine.generate((), SamplingParams(temperature=0, max_tokens=len(one), logprobs=True))
    assert (cut.text, cut.finish_reason, cut.logprobs) == ("one", "length", (0.0,) * len(one))
    plain = await engine.generate((), asked)
    assert plain.logprobs == (0.0,) * len(plain.ids)
    assert (await engine.generate((), PARAMS)).logprobs is None
