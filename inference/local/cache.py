"""A paged key-value cache with automatic prefix sharing.

Keys and values live in blocks of BLOCK tokens. A full block is filed under its parent block and its tokens, so any
later prompt that begins with the same tokens (another sample of the question, the next turn of the conversation,
the same instructions for another question) finds it and is not prefilled again. Blocks that no running sequence
uses stay until room is needed, oldest first. After vLLM's automatic prefix caching (Kwon et al. 2023, section 4).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import torch

BLOCK = 16

NodeKey = tuple[int | str, tuple[int, ...]]


class BlockPool:
    """Blocks of keys and values, shared by reference count.

    `keys` and `values` are [layers, blocks, kv_heads, BLOCK, head_dim]. Memory is touched only when blocks are used.
    """

    def __init__(
        self, layers: int, kv_heads: int, head_dim: int, blocks: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        shape = (layers, blocks, kv_heads, BLOCK, head_dim)
        self.keys = torch.empty(shape, dtype=dtype, device=device)
        self.values = torch.empty(shape, dtype=dtype, device=device)
        self.blocks = blocks
        self._fresh = list(range(blocks - 1, -1, -1))
        self._idle: OrderedDict[int, None] = OrderedDict()  # filed blocks without a user, oldest first
        self._users = [0] * blocks
        self._filed: dict[NodeKey, int] = {}
        self._key_of: dict[int, NodeKey] = {}
        # A node number is never used twice, so a block filed under an evicted parent can never be found again.
        self._node_of: dict[int, int] = {}
        self._next_node = 1

    @property
    def available(self) -> int:
        return len(self._fresh) + len(self._idle)

    def match(self, root: str, ids: Sequence[int]) -> list[int]:
        """The longest run of filed blocks that holds a proper prefix of `ids` under `root`; takes a share of each."""
        found: list[int] = []
        parent: int | str = root
        for start in range(0, (len(ids) - 1) // BLOCK * BLOCK, BLOCK):
            block = self._filed.get((parent, tuple(ids[start : start + BLOCK])))
            if block is None:
                break
            found.append(block)
            parent = self._node_of[block]
        for block in found:
            self._users[block] += 1
            self._idle.pop(block, None)
        return found

    def take(self) -> int | None:
        """A block to write in, or None when every block is in use."""
        if self._fresh:
            block = self._fresh.pop()
        elif self._idle:
            block, _ = self._idle.popitem(last=False)
            del self._filed[self._key_of.pop(block)]
            del self._node_of[block]
        else:
            return None
        self._users[block] = 1
        return block

    def file(self, root: str, parent: int | None, block: int, ids: Sequence[int]) -> int:
        """File a full block for sharing; returns the block that holds these tokens from now on.

        When another sequence filed the same tokens first, that block is shared and this one given back.
        """
        key: NodeKey = (root if parent is None else self._node_of[parent], tuple(ids))
        known = self._filed.get(key)
        if known is not None and known != block:
            self._users[known] += 1
            self._idle.pop(known, None)
            self.release([block])
            return known
        self._filed[key] = block
        self._key_of[block] = key
        self._node_of[block] = self._next_node
        self._next_node += 1
        return block

    def release(self, blocks: Sequence[int]) -> None:
        """Give back one share of each block. Leaves are given back first, so that prefixes outlive their endings."""
        for block in reversed(blocks):
            self._users[block] -= 1
            if self._users[block] == 0:
                if block in self._key_of:
                    self._idle[block] = None
                else:
                    self._fresh.append(block)
