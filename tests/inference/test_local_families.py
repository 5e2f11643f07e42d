"""The in-process engine against transformers' own `generate` on the families that its decoder does not know."""

import asyncio
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, MistralConfig, Phi3Config

from ratchet.core.config import ModelConfig
from ratchet.inference.local.model import Chunk, PackedModel, why_unpaged
from tests.helpers.families import save_family
from tests.inference.test_local_engine import OBJECT, SHAPE, formed_reference, greedy, open_engine, run

OVER_PAGES = {"glm4_moe", "phi3"}
ON_THEIR_OWN = {"qwen3_5", "gemma3", "gemma4", "gpt_oss", "deepseek_v3", "nemotron_h"}


@pytest.mark.slow
@pytest.mark.parametrize("family", sorted(OVER_PAGES | ON_THEIR_OWN))
def test_in_transformers_own_code_every_family_says_what_generate_says(
    tmp_path: Path, family: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Some prompts share beginnings, some continue others, and one has a schema. The memory is so small that sequences
    wait and start again. Windows, states, sinks and latent keys are never cut, mixed or shared."""
    engine = open_engine(save_family(family, tmp_path), cache_gb=14e-5, max_context=128, workers=2)
    plain = AutoModelForCausalLM.from_pretrained(tmp_path)
    (line,) = [one.getMessage() for one in caplog.records if one.name == "ratchet.inference.local.model"]
    assert type(plain).__name__ in line and ("every prompt is computed whole" in line) == (family in ON_THEIR_OWN)
    shared = list(range(30, 80))
    asked = [[5, 6, 7], [*shared, 9], [*shared, 9, 9, 4, *range(5, 20)], shared, [*shared, 9, 9]]
    constrained = engine.generate(shared, greedy(20, schema=OBJECT))
    with_scores = engine.generate(shared, greedy(20, logprobs=True))
    *got, scored, formed = run(*(engine.generate(prompt, greedy(20)) for prompt in asked), with_scores, constrained)
    asyncio.run(engine.close())
    for prompt, completion in zip(asked, got, strict=True):
        ids, end = torch.tensor([prompt]), engine.format.end_of_turn
        said = plain.generate(ids, attention_mask=ids > 0, do_sample=False, max_new_tokens=20, eos_token_id=end)[0]
        assert list(completion.ids) == said[len(prompt) :].tolist()
    with torch.no_grad():
        logits = plain(torch.tensor([[*shared, *scored.ids]])).logits[0, len(shared) - 1 : -1]
    expected = logits.log_softmax(-1).gather(1, torch.tensor(scored.ids)[:, None])[:, 0]
    assert scored.logprobs == pytest.approx(expected.tolist(), abs=1e-3)
    assert list(formed.ids) == formed_reference(plain, engine, shared, 20)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["qwen3_5", "nemotron_h", "gemma3"])
def test_a_state_goes_on_with_any_number_of_tokens(tmp_path: Path, family: str) -> None:
    model = PackedModel(ModelConfig(path=str(save_family(family, tmp_path)), dtype="float32", device="cpu"))
    ids = list(range(5, 65))
    got = [model.forward([Chunk(ids[:20], 0, [7], 0, sampled=False)]), model.forward([Chunk(ids[20:40], 20, [7], 0)])]
    got += [model.forward([Chunk(ids[40:57], 40, [7], 0)]), model.forward([Chunk(ids[57:], 57, [7], 0)])]
    model.close()
    with torch.no_grad():
        exact = AutoModelForCausalLM.from_pretrained(tmp_path)(torch.tensor([ids])).logits[0, [39, 56, 59]]
    torch.testing.assert_close(torch.cat(got), exact[:, : model.vocabulary], atol=1e-3, rtol=1e-3)


def test_what_changes_with_a_texts_length_is_not_packed_where_texts_can_be_so_long() -> None:
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    turning = Phi3Config(**SHAPE, rope_parameters=rope, original_max_position_embeddings=64, pad_token_id=0)
    assert "longrope" in why_unpaged(turning, 65) and not why_unpaged(turning, 64)
    windows = MistralConfig(**SHAPE, sliding_window=64)
    assert "SlidingWindow" in why_unpaged(windows, 65) and not why_unpaged(windows, 64)
