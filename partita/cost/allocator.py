"""The bytes of a device that torch's caching allocator reserves while tensors are allocated and freed (c10/cuda, 2.x).

segment     |######|..free..|###|        a request takes the smallest free block that is large enough; the rest of the
                                         block stays free; neighbours that are free are merged

Segments are never returned to the device, so all of them count, with the free blocks that no request fits into. Used
by `benchmarks/truth` and `benchmarks/gpu`; no prediction asks it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Final

from partita.units import Bytes

LEAST: Final = 512  # bytes of a block
SMALL: Final = 2**20  # requests up to here share segments of their own, and no smaller rest is split off a large one
SMALL_SEGMENT: Final = 2 * 2**20
MEDIUM: Final = 10 * 2**20  # requests below have segments of MEDIUM_SEGMENT, others their own, in steps of STEP
MEDIUM_SEGMENT: Final = 20 * 2**20
STEP: Final = 2 * 2**20


@dataclass(eq=False, slots=True)
class Block:
    """A contiguous part of a segment, free or given to one tensor, and its neighbours `before` and `after` it."""

    size: Bytes
    number: int
    small: bool
    free: bool = False
    before: Block | None = None
    after: Block | None = None


@dataclass
class Allocator:
    """The allocator's state for one stream: `held` bytes in all segments, and the blocks that tensors were `given`."""

    held: Bytes = 0
    given: dict[Hashable, Block] = field(default_factory=dict)
    free: dict[bool, list[tuple[Bytes, int]]] = field(default_factory=lambda: {True: [], False: []})
    blocks: list[Block] = field(default_factory=list)

    def take(self, key: Hashable, size: Bytes) -> None:
        """Allocate `size` bytes for the tensor `key`."""
        size = max(-(-size // LEAST) * LEAST, LEAST)
        small = size <= SMALL
        free = self.free[small]
        at = bisect_left(free, (size, -1))
        block = self.blocks[free.pop(at)[1]] if at < len(free) else self._segment(size, small)
        rest = block.size - size
        if rest >= LEAST if small else rest > SMALL:
            left = self._block(rest, small, block, block.after)
            if block.after:
                block.after.before = left
            block.size, block.after = size, left
            self._release(left)
        block.free = False
        self.given[key] = block

    def give(self, key: Hashable) -> None:
        """Free the tensor `key`. Raises KeyError if it was not allocated."""
        block = self.given.pop(key)
        for other in (block.before, block.after):
            if other and other.free:
                self.free[block.small].remove((other.size, other.number))
                first, second = (other, block) if other is block.before else (block, other)
                first.size, first.after = first.size + second.size, second.after
                if second.after:
                    second.after.before = first
                block = first
        self._release(block)

    def _segment(self, size: Bytes, small: bool) -> Block:
        whole = SMALL_SEGMENT if small else MEDIUM_SEGMENT if size < MEDIUM else -(-size // STEP) * STEP
        self.held += whole
        return self._block(whole, small, None, None)

    def _block(self, size: Bytes, small: bool, before: Block | None, after: Block | None) -> Block:
        self.blocks.append(Block(size, len(self.blocks), small, False, before, after))
        return self.blocks[-1]

    def _release(self, block: Block) -> None:
        block.free = True
        insort(self.free[block.small], (block.size, block.number))
