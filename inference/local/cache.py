"""A paged key-value cache with automatic prefix sharing.

Keys and values live in blocks of BLOCK tokens. A full block is cached under its parent block and its tokens, so any
later prompt that begins with the same tokens (another sample of the question, the next turn of the conversation,
the same instructions for another question) finds it and is not prefilled again. Blocks that no running sequence
uses stay until memory is needed, and the oldest is evicted first. After vLLM's automatic prefix caching (Kwon et al.
2023, section 4).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import torch

BLOCK = 16

NodeKey = tuple[int | str, tuple[int, ...]]


class BlockPool:
    """Blocks of keys and values, shared by reference counts.

    `keys` and `values` are [layers, blocks, kv_heads, BLOCK, head_dim]. Memory is touched only when blocks are used.
    """

    def __init__(
        self, layers: int, kv_heads: int, head_dim: int, blocks: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        shape = (layers, blocks, kv_heads, BLOCK, head_dim)
        self.keys = torch.empty(shape, dtype=dtype, device=device)
        self.values = torch.empty(shape, dtype=dtype, device=device)
        self.blocks = blocks
        self._free_blocks = list(range(blocks - 1, -1, -1))
        self._evictable: OrderedDict[int, None] = OrderedDict()  # cached blocks without a user, oldest first
        self._ref_counts = [0] * blocks
        self._cached: dict[NodeKey, int] = {}
        self._key_of: dict[int, NodeKey] = {}
        # A node number is never used twice, so a block cached under an evicted parent can never be found again.
        self._node_of: dict[int, int] = {}
        self._next_node = 1

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

    def allocate(self) -> int | None:
        """A block to write to, or None if every block is in use."""
        if self._free_blocks:
            block = self._free_blocks.pop()
        elif self._evictable:
            block, _ = self._evictable.popitem(last=False)
            del self._cached[self._key_of.pop(block)]
            del self._node_of[block]
        else:
            return None
        self._ref_counts[block] = 1
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
                if block in self._key_of:
                    self._evictable[block] = None
                else:
                    self._free_blocks.append(block)
