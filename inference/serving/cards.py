"""Kinds of GPU to plan with, and the time that tokens take on them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ratchet.core.errors import UserError, did_you_mean


@dataclass(frozen=True)
class Tokens:
    """Calls and their tokens: of one trajectory, or of a stage."""

    calls: float = 0.0
    prompt: float = 0.0
    """Prompt tokens that are in no cache."""
    new: float = 0.0
    trained: float = 0.0

    def __add__(self, other: Tokens) -> Tokens:
        return Tokens(*(getattr(self, name) + getattr(other, name) for name in Tokens.__dataclass_fields__))

    def __mul__(self, times: float) -> Tokens:
        return Tokens(*(getattr(self, name) * times for name in Tokens.__dataclass_fields__))


@dataclass(frozen=True)
class Rates:
    """Tokens a second of a model of 7 billion parameters in 16 bits, and the operations a second of training."""

    prompt: float
    new: float
    training: float = math.nan
    """Floating-point operations a second."""

    def seconds(self, tokens: Tokens, billions: float) -> float:
        """The seconds of these tokens of a model of so many billion parameters.

        A trained token takes 4 operations a parameter, as the weights are frozen: 2 forward and 2 for the gradients of
        its activations. Parameters of the embedding, which computes nothing, stand for attention.
        """
        trained = tokens.trained and tokens.trained * 4e9 * billions / self.training
        return (tokens.prompt / self.prompt + tokens.new / self.new) * billions / 7 + trained


Range = tuple[Rates, Rates]
"""(Slow, fast)."""
MFU = 0.36, 0.48
"""The part of a GPU's peak that LoRA training uses, recomputation not counted: measured on an H200 with rows of 16,000
tokens, with gradient checkpointing and without (`make gpu-check`, 27 November 2026)."""


def _published(peak: float, prompt: tuple[int, int], new: tuple[int, int]) -> Range:
    """Rates of a GPU; those of other models are in proportion to their parameters. `peak`: floating-point operations a
    second in bfloat16, dense (NVIDIA's data sheets).

    Slow: vLLM 0.11.0 at its defaults with Qwen3-14B, of which two workloads give the two rates: 500 requests of 4,000
    and 200 tokens in 407 s (A100) and 228 s (H100), and ShareGPT's 1,000 of 217 and 202 in 107 s and 64 s (GPUStack
    Performance Lab, docs.gpustack.ai/latest/performance-lab/qwen3-14b/a100 and h100, 6 January 2026). They give 2,000
    and 100 tokens 13% less than was measured there. Fast: of A100 the fastest engine of that page without
    quantization; of H100 27,670 prompt tokens a second of Llama 3.1 8B with SGLang (github.com/sgl-project/sglang/pull/
    1060, a comment of 13 August 2024), and ShareGPT in 50 s by the fastest engine. H200 has the H100's peak; fast is
    its memory's bandwidth, 4.8 for 3.35 TB a second (NVIDIA's data sheets). Between slow and fast lies Qwen3-8B with
    vLLM 0.9.2: 10,338 tokens of ShareGPT a second on A100, 13,305 on H100 (performance-lab/references/
    the-impact-of-quantization-on-vllm-inference-performance on the same site, found on 29 November 2026).
    """
    slow, fast = (Rates(read, written, mfu * peak) for read, written, mfu in zip(prompt, new, MFU, strict=True))
    return slow, fast


@dataclass(frozen=True)
class Card:
    """A kind of GPU, to plan with."""

    gb: float
    """Memory in 10^9 bytes, as its maker states it; CUDA shows some percent more."""
    rates: Range | None = None
    """None where nothing is published here."""


A100 = _published(312e12, (11_300, 13_700), (6_400, 10_900))
CARDS = {
    "A100-40": Card(40, A100),
    "A100-80": Card(80, A100),
    "H100": Card(80, _published(989e12, (20_300, 31_700), (10_400, 12_000))),
    "H200": Card(141, _published(989e12, (20_300, 31_700), (10_400, 17_200))),
    "B200": Card(180),
    "L40S": Card(48),
    "L4": Card(24),
    "A10": Card(24),
    "RTX 3090": Card(24),
    "RTX 4090": Card(24),
    "RTX 5090": Card(32),
    "RTX A6000": Card(48),
    "RTX 6000 Ada": Card(48),
}


def card_asked(name: str | None, gb: float | None) -> Card | None:
    """Return the card that --gpu, in whatever case and with whatever between its words, or --gpu-gb gives. Raises
    UserError."""
    if name and gb:
        raise UserError("--gpu and --gpu-gb: give one of them, a card's name or its memory")
    if not name:
        return Card(gb) if gb else None
    card = {_letters(known): card for known, card in CARDS.items()}.get(
        _letters(name).removeprefix("nvidia").removeprefix("geforce")
    )
    if card is None:
        raise UserError(
            f"--gpu {name}: not a known card{did_you_mean(name, CARDS)}; known are {', '.join(CARDS)}. For another, "
            "give its memory: --gpu-gb 48"
        )
    return card


def _letters(name: str) -> str:
    return "".join(letter for letter in name.casefold() if letter.isalnum()).removesuffix("gb")
