"""Attention of prompts in bfloat16, and steps whose threads compute products of their own."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

from ratchet.core.config import ModelConfig
from ratchet.inference.local import model as model_module
from ratchet.inference.local.cache import BLOCK
from ratchet.inference.local.linear import Progress, share_work
from ratchet.inference.local.model import MIN_APART, Chunk, PackedModel
from ratchet.inference.local.pairs import MIN_TOKENS, MULTIPLIES_PAIRS, ROWS, prompt_kernel, suits
from tests.helpers.tiny import save_tiny_tokenizer
from tests.inference.test_local_engine import SHAPE as SMALL

pytestmark = pytest.mark.numeric

needs_instruction = pytest.mark.skipif(not MULTIPLIES_PAIRS, reason="this CPU has no AVX-512 instructions for bfloat16")
PAGES = 60


def rounded(numbers: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(numbers)).bfloat16().double()


def dense(query: np.ndarray, keys: np.ndarray, values: np.ndarray, past: int, scale: float) -> torch.Tensor:
    """query [tokens, heads, dim]; keys [pages, kv_heads, dim, BLOCK], values [pages, kv_heads, BLOCK, dim], in order.

    Of what is rounded to bfloat16, with nothing else rounded.
    """
    tokens, heads, dim = query.shape
    kv_heads, length = keys.shape[1], past + tokens
    k = rounded(keys.transpose(1, 0, 3, 2)).reshape(kv_heads, -1, dim)[:, :length]
    v = rounded(values.transpose(1, 0, 2, 3)).reshape(kv_heads, -1, dim)[:, :length]
    k, v = (one.repeat_interleave(heads // kv_heads, 0) for one in (k, v))
    scores = rounded(query).transpose(0, 1) @ k.transpose(1, 2) * scale
    hidden = torch.ones(tokens, length, dtype=torch.bool).triu(past + 1)
    return (scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v).transpose(0, 1)


@pytest.mark.slow
@needs_instruction
@pytest.mark.parametrize(("group", "kv_heads", "dim"), [(1, 3, 32), (3, 2, 32), (7, 1, 96), (16, 1, 32)])
def test_prompts_of_all_lengths_after_cached_ones_equal_dense_attention(group: int, kv_heads: int, dim: int) -> None:
    """A ragged batch, in ranges that begin and end within a prompt, as on several threads."""
    generator = np.random.default_rng(0)
    keys = generator.standard_normal((PAGES, kv_heads, dim, BLOCK), np.float32)
    values = generator.standard_normal((PAGES, kv_heads, BLOCK, dim), np.float32)
    chunks = [(1, 0), (1, 15), (16, 0), (31, 5), (33, 16), (45, 150), (77, 0)]
    tables = np.zeros((len(chunks), 20), np.int32)
    free = iter(generator.permutation(PAGES))
    tokens = sum(count for count, _ in chunks)
    query = 2 * generator.standard_normal((tokens, group * kv_heads, dim), np.float32)
    tiles, wanted, at = [], [], 0
    for number, (count, past) in enumerate(chunks):
        used = [next(free) for _ in range(-(-(past + count) // BLOCK))]
        tables[number, : len(used)] = used
        # Places past a sequence's end were written by somebody else, or never: whatever is there must not leak in.
        if rest := (past + count) % BLOCK:
            keys[used[-1], :, :, rest:] = values[used[-1], :, rest:] = np.nan
        wanted.append(dense(query[at : at + count], keys[used], values[used], past, 0.3))
        tiles += [(at, count, number, past, row) for row in range(0, count * group, ROWS)]
        at += count
    table = np.array(tiles, np.int64)
    exact = torch.cat(wanted)
    for out in (np.full_like(query, np.nan), np.zeros(query.shape, np.uint16)):
        for first, last in ((0, 3), (3, len(table) // 2), (len(table) // 2, len(table))):
            prompt_kernel(group, dim)(
                query, keys.ravel(), values.ravel(), kv_heads, tables, table, np.float32(0.3), out, first, last
            )
        got = torch.from_numpy(out)
        got = got if got.dtype == torch.float32 else got.view(torch.bfloat16)
        # Weights in bfloat16 have an error of 2**-9 at most, and those of many keys cancel out.
        torch.testing.assert_close(got.double(), exact, atol=0.008, rtol=0.008)
        assert (got.double() - exact).norm() < 0.003 * exact.norm()


@needs_instruction
def test_what_another_thread_has_not_written_yet_does_not_leak_in() -> None:
    """Tokens after a range of tiles are another thread's: their keys and values may be anything at that time."""
    generator = np.random.default_rng(1)
    group, kv_heads, dim, past, count = 3, 2, 32, 2, 40
    keys = generator.standard_normal((3, kv_heads, dim, BLOCK), np.float32)
    values = generator.standard_normal((3, kv_heads, BLOCK, dim), np.float32)
    query = generator.standard_normal((count, group * kv_heads, dim), np.float32)
    tiles = np.array([(0, count, 0, past, row) for row in range(0, count * group, ROWS)])
    tables, mine = np.arange(3, dtype=np.int32)[None], 7 * ROWS // group
    exact = dense(query[:mine], keys, values, past, 0.3)
    for position in range(past + mine, 3 * BLOCK):
        keys[position // BLOCK, :, :, position % BLOCK] = values[position // BLOCK, :, position % BLOCK] = np.nan
    out = np.zeros_like(query)
    prompt_kernel(group, dim)(query, keys.ravel(), values.ravel(), kv_heads, tables, tiles, np.float32(0.3), out, 0, 7)
    torch.testing.assert_close(torch.from_numpy(out[:mine]).double(), exact, atol=0.008, rtol=0.008)


@needs_instruction
@pytest.mark.parametrize("size", [1e-30, 1e4])
def test_scores_that_are_all_alike_or_far_apart_give_weights_that_add_up_to_one(size: float) -> None:
    generator = np.random.default_rng(0)
    query = size * generator.standard_normal((40, 1, 32), np.float32)
    keys = generator.standard_normal((3, 1, 32, BLOCK), np.float32)
    values, out = np.ones((3, 1, BLOCK, 32), np.float32), np.zeros_like(query)
    tiles = np.array([(0, 40, 0, 0, row) for row in range(0, 40, ROWS)])
    tables = np.arange(3, dtype=np.int32)[None]
    prompt_kernel(1, 32)(query, keys.ravel(), values.ravel(), 1, tables, tiles, np.float32(1.0), out, 0, len(tiles))
    np.testing.assert_allclose(out, 1.0, rtol=1e-6)


def test_only_models_in_bfloat16_with_heads_of_whole_vectors_are_computed_so() -> None:
    assert not suits(torch.float32, 64) and not suits(torch.float16, 64) and not suits(torch.bfloat16, 80)
    assert suits(torch.bfloat16, 64) == MULTIPLIES_PAIRS


def test_a_part_waits_for_those_before_it_and_for_no_other() -> None:
    progress, begun, first_is_done = Progress(3), [], threading.Event()
    seen: dict[int, set[int]] = {}

    def work(part: int, end: int) -> None:
        with progress.of(part):
            if part == 1:
                assert first_is_done.wait(300)
                time.sleep(0.05)
            begun.append(part)
            progress.wait(part, 1)
            seen[part] = set(begun)
            if part == 0:
                first_is_done.set()

    with ThreadPoolExecutor(3) as threads:
        share_work(threads, range(4), work)
    assert 1 not in seen[0] and seen[2] == {0, 1, 2}


def test_a_part_that_fails_keeps_no_other_waiting() -> None:
    progress, seen = Progress(2), []

    def work(part: int, end: int) -> None:
        with progress.of(part):
            progress.wait(part, 1)
            if part == 0:
                raise ValueError("broken")
            progress.wait(part, 2)
            seen.append(part)

    with ThreadPoolExecutor(2) as threads, pytest.raises(ValueError, match="broken"):
        share_work(threads, range(3), work)
    assert seen == [1]


SHAPE = {**SMALL, "hidden_size": 192, "initializer_range": 0.15}


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Heads of 32."""
    folder = tmp_path_factory.mktemp("llama")
    torch.manual_seed(7)
    LlamaForCausalLM(LlamaConfig(**SHAPE)).save_pretrained(folder)
    save_tiny_tokenizer(folder)
    return folder


def open_model(folder: Path, dtype: Any) -> PackedModel:
    return PackedModel(ModelConfig(path=str(folder), dtype=dtype, device="cpu", cache_gb=0.05, workers=1))


@pytest.mark.slow
def test_prompts_in_pieces_beside_others_give_nearly_the_logits_of_float32(llama: Path) -> None:
    """Nearer than plain transformers in bfloat16, and the same in one piece and alone, but for rounding."""
    torch.manual_seed(1)
    first, second = (torch.randint(0, 512, (count,)).tolist() for count in (150, 71))
    mine = open_model(llama, "bfloat16")
    blocks = [[0, 1, 2, 3, 4, 5, 6, 7, 8, 9], [10, 11, 12, 13, 14]]
    mine.forward([Chunk(first[:50], 0, blocks[0], 0, sampled=False)])
    pieces = [Chunk(first[50:100], 50, blocks[0], 0, sampled=False), Chunk(second[:70], 0, blocks[1], 0)]
    got = [mine.forward(pieces)[0]]
    got += [*mine.forward([Chunk(first[100:], 100, blocks[0], 0), Chunk(second[70:], 70, blocks[1], 0)])]
    whole = [mine.forward([Chunk(ids, 0, blocks[0], 0)])[0] for ids in (second[:70], first, second)]
    mine.close()

    def plain(dtype: torch.dtype) -> list[torch.Tensor]:
        model = LlamaForCausalLM.from_pretrained(llama, dtype=torch.bfloat16).to(dtype)
        with torch.no_grad():
            return [model(torch.tensor([ids])).logits[0, -1].float() for ids in (second[:70], first, second)]

    exact, usual = torch.stack(plain(torch.float32)), torch.stack(plain(torch.bfloat16))
    for logits in (torch.stack(got), torch.stack(whole)):
        assert 0 < (logits - exact).norm() < 0.75 * (usual - exact).norm()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_threads_with_products_of_their_own_compute_what_one_thread_computes(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    """Base and adapters in one step, with chunks across the threads' bounds."""
    torch.manual_seed(2)
    base = LlamaForCausalLM.from_pretrained(llama)
    peft = get_peft_model(base, LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False))
    peft.save_pretrained(tmp_path, save_embedding_layers=False)
    long, middle, short = (torch.randint(0, 512, (count,)).tolist() for count in (3 * MIN_APART, MIN_TOKENS + 3, 7))
    before = torch.get_num_threads()

    def logits(threads: int) -> list[torch.Tensor]:
        monkeypatch.setattr(model_module, "cpu_threads", lambda: threads)
        mine = open_model(llama, dtype)
        assert mine.threads == threads
        number = mine.lora.load(str(tmp_path))
        found = []
        for adapters in ((0, 0, 0), (number, 0, number), (number, number, number)):
            chunks = [Chunk(long, 0, list(range(12)), adapters[0]), Chunk(middle, 0, [12, 13, 14], adapters[1])]
            found.append(mine.forward([*chunks, Chunk(short, 0, [15], adapters[2])]))
        # Logits of the base's tokens, of which the first thread has no others.
        bases = [Chunk(long[:MIN_APART], 0, list(range(at, at + 4)), 0) for at in (0, 4)]
        found.append(mine.forward([*bases, Chunk(long, 0, list(range(8, 20)), number)]))
        mine.close()
        return found

    for one, several in zip(logits(1), logits(3), strict=True):
        assert (one - several).norm() < (1e-5 if dtype == "float32" else 0.02) * one.norm()
    assert torch.get_num_threads() == before
