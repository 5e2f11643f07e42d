"""A paged key-value cache with automatic prefix sharing.

Keys and values live in blocks of BLOCK tokens. A full block is cached under its parent block and its tokens, so any
later prompt that begins with the same tokens (another sample of the question, the next turn of the conversation,
the same instructions for another question) finds it and is not prefilled again. Of a block whose first tokens alone are
the same, these are copied. Blocks that no running sequence uses are idle. They stay until memory is needed or, on a
CPU, until they are KEPT times as many as running sequences ever used at once, and the oldest is evicted first. After
vLLM's automatic prefix caching (Kwon et al. 2023, section 4), and SGLang's radix tree, which shares single tokens
(Zheng et al. 2023, arXiv 2312.07104, section 3).
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch

BLOCK = 16
LOOKED_AT = 64
"""Blocks after the same tokens that are compared with a prompt, the newest first."""

KEPT = 3
"""Idle blocks for each block that running sequences used at once: room for what conversations in progress share with
their next turn, and for instructions. More are hardly ever found again."""
MIN_KEPT = 256
"""Idle blocks that are kept in any case, for the instructions of all roles where one question is in progress."""

NodeKey = tuple[int | str, tuple[int, ...]]


class BlockPool:
    """Blocks of keys and values, shared by reference counts.

    `keys` are [layers, blocks, kv_heads, head_dim, BLOCK], so that the scores of a block's tokens are the lanes of a
    vector; `values` are [layers, blocks, kv_heads, BLOCK, head_dim]. Memory is touched only when blocks are used.
    """

    def __init__(
        self, layers: int, kv_heads: int, head_dim: int, blocks: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.keys = torch.empty((layers, blocks, kv_heads, head_dim, BLOCK), dtype=dtype, device=device)
        self.values = torch.empty((layers, blocks, kv_heads, BLOCK, head_dim), dtype=dtype, device=device)
        self.blocks = blocks
        self._free_blocks = list(range(blocks - 1, -1, -1))  # the last is taken first: its memory may have been used
        self._evictable: OrderedDict[int, None] = OrderedDict()  # cached blocks without a user, oldest first
        # A GPU's memory is taken as a whole when the pool is made, a CPU's when a block is first written to.
        self._kept = MIN_KEPT if device.type == "cpu" else blocks
        self._ref_counts = [0] * blocks
        self._cached: dict[NodeKey, int] = {}
        self._key_of: dict[int, NodeKey] = {}
        # A node number is never used twice, so a block cached under an evicted parent can never be found again.
        self._node_of: dict[int, int] = {}
        self._next_node = 1
        # By parent, the blocks that come after it with the tokens they begin with, and each block's parent.
        self._after: dict[int | str, dict[int, tuple[int, ...]]] = {}
        self._parent_of: dict[int, int | str] = {}

    @property
    def available(self) -> int:
        return len(self._free_blocks) + len(self._evictable)

    def find_prefix(self, root: str, ids: Sequence[int]) -> list[int]:
        """The longest run of cached blocks that holds a proper prefix of `ids` under `root`; references each."""
        found: list[int] = []
        parent: int | str = root
        for start in range(0, (len(ids) - 1) // BLOCK * BLOCK, BLOCK):
            block = self._cached.get((parent, tuple(ids[start : start + BLOCK])))
            if block is None:
                break
            found.append(block)
            parent = self._node_of[block]
        for block in found:
            self._ref_counts[block] += 1
            self._evictable.pop(block, None)
        return found

    def copy_beginning(self, root: str, blocks: list[int], ids: Sequence[int]) -> int:
        """Go on from `blocks`, which hold the beginning of `ids`, with the tokens that another block begins with.

        They are copied into a block of its own, which is added to `blocks`. Returns how many: 0 where there are none,
        or no block to write to. The last of `ids` is never among them.
        """
        rest = tuple(ids[len(blocks) * BLOCK : len(ids) - 1])
        most, source = 0, -1
        after = self._after.get(self._node_of[blocks[-1]] if blocks else root, {})
        for block in itertools.islice(reversed(after), LOOKED_AT):
            same = next((i for i, pair in enumerate(zip(rest, after[block], strict=False)) if pair[0] != pair[1]), None)
            count = min(len(rest), len(after[block])) if same is None else same
            if count > most:
                most, source = count, block
        if not most:
            return 0
        self._ref_counts[source] += 1
        self._evictable.pop(source, None)
        copy = self.allocate()
        if copy is not None:
            self.keys[:, copy], self.values[:, copy] = self.keys[:, source], self.values[:, source]
            blocks.append(copy)
        self.free([source])
        return 0 if copy is None else most

    def cache_beginning(self, root: str, parent: int | None, block: int, ids: Sequence[int]) -> None:
        """Let later prompts copy the tokens that a block begins with."""
        known = root if parent is None else self._node_of[parent]
        if self._parent_of.setdefault(block, known) == known:
            self._after.setdefault(known, {})[block] = tuple(ids)

    def _forget(self, block: int) -> None:
        if (key := self._key_of.pop(block, None)) is not None:
            del self._cached[key]
            del self._node_of[block]
        if (parent := self._parent_of.pop(block, None)) is not None:
            del self._after[parent][block]
            if not self._after[parent]:
                del self._after[parent]

    def allocate(self) -> int | None:
        """A block to write to, or None if every block is in use."""
        if self._free_blocks and len(self._evictable) < self._kept:
            block = self._free_blocks.pop()
        elif self._evictable:
            block, _ = self._evictable.popitem(last=False)
            self._forget(block)
        else:
            return None
        self._ref_counts[block] = 1
        self._kept = max(self._kept, KEPT * (self.blocks - self.available))
        return block

    def cache_block(self, root: str, parent: int | None, block: int, ids: Sequence[int]) -> int:
        """Cache a full block for sharing; returns the block that holds these tokens from now on.

        If another sequence cached the same tokens first, that block is shared and this one is freed.
        """
        key: NodeKey = (root if parent is None else self._node_of[parent], tuple(ids))
        known = self._cached.get(key)
        if known is not None and known != block:
            self._ref_counts[known] += 1
            self._evictable.pop(known, None)
            self.free([block])
            return known
        self.cache_beginning(root, parent, block, ids)
        self._cached[key] = block
        self._key_of[block] = key
        self._node_of[block] = self._next_node
        self._next_node += 1
        return block

    def free(self, blocks: Sequence[int]) -> None:
        """Drop one reference to each block. The last block is freed first, so that prefixes are evicted last."""
        for block in reversed(blocks):
            self._ref_counts[block] -= 1
            if self._ref_counts[block] == 0:
                if block in self._parent_of:
                    self._evictable[block] = None
                else:
                    self._free_blocks.append(block)


class UnsharedPool(BlockPool):
    """Room for sequences whose keys, values and states transformers' own caches hold: nothing is shared or found again.

    A sequence is known by its first block, which no other has.
    """

    def __init__(self, blocks: int) -> None:
        super().__init__(0, 1, 1, blocks, torch.float32, torch.device("cpu"))
        self.sequences: dict[int, tuple[Any, list[int]]] = {}
        """By first block, a sequence's cache and those of its tokens that are not in it yet."""

    def find_prefix(self, root: str, ids: Sequence[int]) -> list[int]:
        return []

    def copy_beginning(self, root: str, blocks: list[int], ids: Sequence[int]) -> int:
        return 0

    def cache_beginning(self, root: str, parent: int | None, block: int, ids: Sequence[int]) -> None:
        pass

    def cache_block(self, root: str, parent: int | None, block: int, ids: Sequence[int]) -> int:
        return block

    def free(self, blocks: Sequence[int]) -> None:
        if blocks:
            self.sequences.pop(blocks[0], None)
        super().free(blocks)
