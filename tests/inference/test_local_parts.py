"""The pieces of the in-process engine: attention and sampling kernels, and the block pool."""

from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit

from ratchet.core.config import ModelConfig
from ratchet.inference.local.attention import attention_kernel, tile_tokens
from ratchet.inference.local.cache import BLOCK, KEPT, BlockPool
from ratchet.inference.local.model import Chunk, PackedModel
from ratchet.inference.local.sampling import (
    NO_TOKEN,
    NOT_FINITE,
    Grammars,
    few_tokens,
    log_probability,
    sample,
)
from ratchet.inference.local.vectors import exp
from ratchet.inference.tokenizer import load_tokenizer
from tests.inference.test_local_engine import make_model


def pool(blocks: int = 8) -> BlockPool:
    return BlockPool(1, 1, 4, blocks, torch.float32, torch.device("cpu"))


@pytest.mark.parametrize("tokens", [1, tile_tokens(3)])
@pytest.mark.parametrize("dim", [8, 20, 64])
def test_paged_attention_equals_dense_attention_at_every_length(tokens: int, dim: int) -> None:
    generator = np.random.default_rng(0)
    heads, kv_heads, pages = 6, 2, 5
    keys = generator.standard_normal((40, kv_heads, dim, BLOCK), np.float32)
    values = generator.standard_normal((40, kv_heads, BLOCK, dim), np.float32)
    lengths = [1, 15, 16, 17, 33, 80 - tokens + 1]
    tables = generator.permutation(40)[: len(lengths) * pages].reshape(-1, pages).astype(np.int32)
    query = generator.standard_normal((len(lengths) * tokens, heads, dim), np.float32)
    # Places past a sequence's end were written by somebody else, or never: whatever is there must not leak in.
    keys[tables[0, 0], :, :, tokens:] = values[tables[0, 0], :, tokens:] = np.nan
    out = np.zeros_like(query)
    tiles = np.array([(i * tokens, tokens, i, n) for i, n in enumerate(lengths)], np.int64)
    kernel = attention_kernel(heads // kv_heads, dim)
    kernel(query, keys.ravel(), values.ravel(), kv_heads, tables, tiles, np.float32(0.3), out, 0, len(tiles))
    for i, t in np.ndindex(len(lengths), tokens):
        n = lengths[i] + t
        for h in range(heads):
            k = np.concatenate(keys[tables[i], h // 3], axis=1)[:, :n]
            v = np.concatenate(values[tables[i], h // 3])[:n]
            weights = np.exp(query[i * tokens + t, h] @ k * 0.3)
            np.testing.assert_allclose(out[i * tokens + t, h], weights @ v / weights.sum(), atol=1e-5)


@njit
def exponentials(x: Any) -> Any:
    out = np.empty_like(x)
    for i in range(len(x)):
        out[i] = exp(x[i])
    return out


def test_the_kernels_exponential_is_exact_to_float32_and_never_overflows() -> None:
    x = np.linspace(-87, 88, 200_001, dtype=np.float32)
    exact = np.exp(x.astype(np.float64))
    assert np.abs(exponentials(x) / exact - 1).max() < 3e-7
    assert np.isfinite(exponentials(np.array([-np.inf, -1e9, 1e9], np.float32))).all()


def nucleus_reference(logits: np.ndarray, temperature: float, top_p: float, draw: float) -> int:
    weights = np.exp((logits.astype(np.float64) - logits.max()) / temperature)
    order = np.argsort(-weights, kind="stable")
    reached = np.cumsum(weights[order])
    kept = int(np.searchsorted(reached, top_p * weights.sum() * (1 - 1e-7))) + 1
    return int(order[min(np.searchsorted(reached, draw * reached[kept - 1], side="right"), kept - 1)])


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    temperature=st.floats(0.1, 3.0),
    top_p=st.floats(0.05, 0.999),
    draw=st.floats(0.0, 0.9999),
)
def test_nucleus_sampling_picks_the_reference_token(seed: int, temperature: float, top_p: float, draw: float) -> None:
    logits = np.random.default_rng(seed).normal(0, 3, 300).astype(np.float32)
    scratch = np.empty(300, np.float32)
    got = sample(logits, np.zeros(1, np.int32), False, temperature, top_p, draw, scratch)
    near = {nucleus_reference(logits, temperature, top_p, d) for d in (draw, max(0, draw - 1e-4), min(1, draw + 1e-4))}
    assert got in near


def test_a_mask_leaves_only_its_tokens_possible() -> None:
    logits = np.zeros(70, np.float32)
    logits[3] = 50
    mask = np.zeros(3, np.int32)
    mask[1], mask[2] = 1 << 5, 1 << 2
    scratch = np.empty(70, np.float32)
    seen = {sample(logits, mask, True, 1.0, 1.0, draw, scratch) for draw in np.linspace(0, 0.99, 20)}
    assert seen == {37, 66}
    assert sample(logits, np.zeros(3, np.int32), True, 1.0, 1.0, 0.5, scratch) == -1
    assert sample(logits, mask, True, 0.0, 1.0, 0.5, scratch) == 37


def test_log_probability_is_log_softmax() -> None:
    logits = np.random.default_rng(1).normal(0, 5, 200).astype(np.float32)
    expected = torch.tensor(logits).log_softmax(0)
    assert all(abs(log_probability(logits, t) - float(expected[t])) < 1e-4 for t in range(200))


def fill(p: BlockPool, root: str, ids: list[int]) -> list[int]:
    """What a sequence does: take what is filed, compute and file the rest."""
    blocks = p.find_prefix(root, ids)
    while (len(blocks) + 1) * BLOCK <= len(ids):
        block = p.allocate()
        assert block is not None
        start = len(blocks) * BLOCK
        blocks.append(p.cache_block(root, blocks[-1] if blocks else None, block, ids[start : start + BLOCK]))
    return blocks


def test_a_prefix_is_found_under_its_own_root_only_and_never_the_whole_prompt() -> None:
    p = pool()
    ids = list(range(3 * BLOCK))
    blocks = fill(p, "base", ids)
    assert p.find_prefix("base", [*ids, 99]) == blocks
    assert p.find_prefix("base", ids) == blocks[:2], "the last token must be computed, for its logits"
    assert p.find_prefix("adapter", [*ids, 99]) == []
    assert p.find_prefix("base", [*ids[:BLOCK], 7, *ids[BLOCK + 1 :], 99]) == blocks[:1]


def test_idle_blocks_are_reused_oldest_first_endings_before_beginnings() -> None:
    p = pool(3)
    ids = list(range(3 * BLOCK))
    blocks = fill(p, "base", ids)
    assert p.allocate() is None, "all are in use"
    p.free(blocks)
    assert p.available == 3
    assert p.allocate() == blocks[2]
    assert p.find_prefix("base", [*ids, 99]) == blocks[:2]


def test_memory_grows_with_the_sequences_at_once_and_not_with_all_that_there_ever_were() -> None:
    """Ten at once, of 40 blocks each, the first of which all have in common."""
    p = pool(6000)
    used: list[int] = []
    written = set[int]()
    for group in range(40):
        held = [fill(p, "base", [1] * BLOCK + [2 + group, number] * 312) for number in range(10)]
        written.update(block for blocks in held for block in blocks)
        used.append(len(written))
        for blocks in held:
            p.free(blocks)
        assert len(p.find_prefix("base", [1] * BLOCK + [2])) == 1, "everybody's beginning is kept"
        p.free([held[0][0]])
    per_group = used[0]
    assert used[-1] <= (1 + KEPT) * per_group and used[-1] == used[KEPT + 1]
    assert p.available == 6000


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4), st.booleans()), max_size=40))
def test_blocks_are_never_shared_by_different_texts_nor_lost(steps: list[tuple[int, int, bool]]) -> None:
    p = pool(12)
    held: list[tuple[list[int], list[int]]] = []
    content: dict[int, tuple[int, ...]] = {}
    for text, length, keep in steps:
        ids = [text % 2] * BLOCK + [text] * (BLOCK * (length - 1))
        if p.available < length:
            continue
        blocks = fill(p, "base", ids)
        for i, block in enumerate(blocks):
            content[block] = tuple(ids[: (i + 1) * BLOCK])
        held.append((ids, blocks))
        if not keep:
            p.free(held.pop()[1])
        for other_ids, other_blocks in held:
            for i, block in enumerate(other_blocks):
                assert content[block] == tuple(other_ids[: (i + 1) * BLOCK])
    for _, blocks in held:
        p.free(blocks)
    assert p.available == 12


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 3 * BLOCK), st.integers(0, 3), st.booleans()), max_size=30))
def test_what_is_found_or_copied_holds_the_prompts_own_tokens(steps: list[tuple[int, int, int, bool]]) -> None:
    """Sequences that branch within blocks, in a pool so small that blocks are used again for other tokens."""
    p = pool(6)
    p.values.fill_(-1)
    held: list[list[int]] = []
    for first, shared, last, keep in steps:
        ids = [first] * shared + [last] * 9
        blocks = p.find_prefix("base", ids)
        full = len(blocks)
        computed = full * BLOCK + p.copy_beginning("base", blocks, ids)
        assert computed < len(ids)
        for at in range(computed):
            assert p.values[0, blocks[at // BLOCK], 0, at % BLOCK, 0] == ids[at]
            assert p.keys[0, blocks[at // BLOCK], 0, 0, at % BLOCK] == ids[at]
        while len(blocks) * BLOCK < len(ids) and (block := p.allocate()) is not None:
            blocks.append(block)
        for at in range(computed, min(len(ids), len(blocks) * BLOCK)):
            p.values[0, blocks[at // BLOCK], 0, at % BLOCK] = ids[at]
            p.keys[0, blocks[at // BLOCK], 0, :, at % BLOCK] = ids[at]
        for i in range(full, min(len(blocks), len(ids) // BLOCK)):
            parent = blocks[i - 1] if i else None
            blocks[i] = p.cache_block("base", parent, blocks[i], ids[i * BLOCK : (i + 1) * BLOCK])
        whole = len(ids) // BLOCK
        if whole < len(blocks) and ids[whole * BLOCK :]:
            p.cache_beginning("base", blocks[whole - 1] if whole else None, blocks[whole], ids[whole * BLOCK :])
        held.append(blocks)
        if not keep or p.available < 2:
            for some in held:
                p.free(some)
            held = []
    for some in held:
        p.free(some)
    assert p.available == 6


def test_a_prompt_that_ends_or_branches_within_a_block_copies_what_is_the_same() -> None:
    p = pool()
    ids = list(range(BLOCK + 9))
    blocks = fill(p, "base", ids)
    tail = p.allocate()
    assert tail is not None
    p.cache_beginning("base", blocks[0], tail, ids[BLOCK:])
    p.values[0, tail, 0, :9, 0] = torch.arange(BLOCK, BLOCK + 9)
    for wanted, count in ((ids, 8), ([*ids, 99], 9), ([*ids[: BLOCK + 4], 99, 98], 4), ([*ids[:BLOCK], 99, 98], 0)):
        mine = p.find_prefix("base", wanted)
        assert p.copy_beginning("base", mine, wanted) == count
        assert len(mine) == 1 + (count > 0) and tail not in mine
        if count:
            assert p.values[0, mine[1], 0, :count, 0].tolist() == ids[BLOCK : BLOCK + count]
    assert p.copy_beginning("adapter", [], ids) == 0


def drawn(logits: np.ndarray, allowed: int | None = None, temperature: float = 1.0, top_p: float = 0.9) -> int:
    """`allowed`: a word of mask bits."""
    mask = np.array([allowed or 0] * (len(logits) // 32 + 1), np.int64).astype(np.int32)
    row = logits.astype(np.float32)
    return int(sample(row, mask, allowed is not None, temperature, top_p, 0.7, np.empty(len(row), np.float32)))


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("size", [8, 40, 100_000])
def test_logits_that_are_not_finite_are_told_and_never_sampled_from(size: int, temperature: float) -> None:
    usual = np.random.default_rng(0).normal(0, 3, size)
    for value in (np.nan, np.inf):
        for places in ([0], [size - 1], [3, 5], slice(None)):
            logits = usual.copy()
            logits[places] = value
            assert drawn(logits, temperature=temperature) == NOT_FINITE
            assert drawn(logits, 0b10, temperature) == NOT_FINITE
    assert drawn(np.full(size, -np.inf), temperature=temperature) == NOT_FINITE
    assert drawn(usual, 0, temperature) == NO_TOKEN


def test_tokens_that_a_model_rules_out_are_never_sampled() -> None:
    logits = np.array([-np.inf, 1.0, -np.inf, 2.0])
    for temperature in (0.0, 1e-320, 1e-40, 1.0, 1e300, np.inf):
        for top_p in (0.0, 0.5, 1.0, 1.5):
            assert drawn(logits, temperature=temperature, top_p=top_p) in (1, 3)
    assert drawn(logits, 0b101) == NOT_FINITE
    np.testing.assert_allclose(log_probability(logits.astype(np.float32), 3), -np.log1p(np.exp(-1.0)), rtol=1e-6)


@pytest.mark.parametrize("temperature", [0.0, 0.7, 2.0])
def test_of_a_few_tokens_the_same_is_sampled_as_under_their_mask(temperature: float) -> None:
    random = np.random.default_rng(0)
    logits = random.normal(0, 2, 320).astype(np.float32)
    mask = random.integers(-(2**31), 2**31, 10).astype(np.int32)
    tokens, scratch = few_tokens(mask, 320), np.empty(320, np.float32)
    assert tokens is not None
    for draw in np.linspace(0, 0.999, 40):
        masked = sample(logits, mask, True, temperature, 0.9, draw, scratch)
        assert tokens[sample(logits[tokens], mask, False, temperature, 0.9, draw, scratch)] == masked


def test_float16_on_a_cpu_gives_nearly_the_logits_of_float32(tmp_path: Path) -> None:
    folder = make_model(tmp_path)

    def logits(dtype: Literal["float32", "float16"]) -> torch.Tensor:
        model = PackedModel(ModelConfig(path=str(folder), dtype=dtype, device="cpu", cache_gb=0.02))
        got = model.forward([Chunk(list(range(1, 20)), 0, [0, 1], 0)])[0]
        model.close()
        return got

    exact = logits("float32")
    assert 0 < (logits("float16") - exact).norm() < 0.01 * exact.norm()


@pytest.mark.slow
def test_a_grammar_may_leave_a_choice_inside_a_character(smollm2: Path) -> None:
    """The first byte of É is a token of its own; what is forced after it is half a character."""
    tokenizer = load_tokenizer(str(smollm2))
    grammars = Grammars(tokenizer, len(tokenizer), [tokenizer.eos_token_id])
    schema = {"enum": ["Émile Zola", "Wilka Brandeleck"]}
    grammars.compile(schema)
    matcher = grammars.matcher(schema)
    first_byte = tokenizer.convert_tokens_to_ids("Ã")  # 0xC3
    before = matcher.forced()
    matcher.accept(first_byte)
    assert tokenizer.decode([*before, first_byte, *matcher.forced()]) == f'"Émile Zola"{tokenizer.eos_token}'
