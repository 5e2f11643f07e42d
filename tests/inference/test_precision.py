"""What `dtype: bfloat16` changes in the answers of a real model on the CPU, against float32."""

import asyncio
import json
from pathlib import Path
from statistics import fmean

import pytest

from ratchet.core.config import ModelConfig
from ratchet.inference.chat import Dialogue
from ratchet.inference.completion import Completion, SamplingParams
from ratchet.inference.local.engine import LocalEngine

pytestmark = pytest.mark.model

ROOT = Path(__file__).parents[2]
MEAN, MOST = 0.015, 0.15
"""Mean and largest difference of a token's log-probability that users may rely on. Seen on an AMD EPYC: 0.009, 0.09."""


async def greedy(smollm2: Path, dtype: str, questions: list[str]) -> list[Completion]:
    engine = LocalEngine(
        ModelConfig.model_validate({"path": str(smollm2), "dtype": dtype, "device": "cpu", "cache_gb": 0.2})
    )
    try:
        prompts = []
        for question in questions:
            dialogue = Dialogue("r", "m", engine.format, True, "Answer in a few words.")
            dialogue.user(question)
            prompts.append(dialogue.ids)
        params = SamplingParams(temperature=0.0, max_tokens=12, logprobs=True)
        return list(await asyncio.gather(*(engine.generate(prompt, params) for prompt in prompts)))
    finally:
        await engine.close()


async def test_bfloat16_gives_nearly_the_log_probabilities_of_float32(smollm2: Path) -> None:
    """Compared up to the first token that differs: after it the two answer after different texts."""
    questions = [json.loads(line)["text"] for line in (ROOT / "demo" / "dev.jsonl").read_text().splitlines()[:7]]
    exact, rounded = [await greedy(smollm2, dtype, questions) for dtype in ("float32", "bfloat16")]
    differences = []
    for one, other in zip(exact, rounded, strict=True):
        assert one.logprobs is not None and other.logprobs is not None
        for token, same, a, b in zip(one.ids, other.ids, one.logprobs, other.logprobs, strict=False):
            if token != same:
                break
            differences.append(abs(a - b))
    print(f"{len(differences)} tokens: mean {fmean(differences):.4f}, most {max(differences):.4f}")
    assert len(differences) > 40
    assert 0 < fmean(differences) < MEAN and max(differences) < MOST
