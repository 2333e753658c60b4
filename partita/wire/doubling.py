"""Exchanges with partners at distance 1, 2, 4, ...: recursive doubling, halving-doubling, binary blocks.

halving of 4: partners halve what both still sum      doubling
step 0   0 <-[..|..]-> 1   2 <-[..|..]-> 3             0 <-[.|.]->  2   1 <-[.|.]->  3
     1   0 <-[.|.]->   2   1 <-[.|.]->   3             0 <-[..|..]-> 1   2 <-[..|..]-> 3

Then rank 0 has part 0, rank 1 part 2, rank 2 part 1, rank 3 part 3: the bits of the rank reversed. Long messages go to
near ranks (CO-04..06; Thakur, Rabenseifner & Gropp 2005).
"""

from __future__ import annotations

from partita.wire.schedule import Hop, Schedule, Steps, schedule


def recursive_doubling(ranks: int) -> Schedule:
    """All-reduce in log2 p exchanges of the whole vector; of p beyond a power of two, the others fold in first."""
    core = _power(ranks)
    steps, distance = [_in(ranks, core, 1)], 1
    while distance < core:
        steps.append([Hop(i, i ^ distance, 0, 1, add=True) for i in range(core)])
        distance *= 2
    return schedule("recursive doubling", ranks, 1, [*steps, _out(ranks, core, 1)])


def halving_doubling(ranks: int) -> Schedule:
    """All-reduce of 2(p-1)/p n bytes a rank in 2 log2 p steps (Rabenseifner); the others fold in first."""
    core = _power(ranks)
    down = _halving(range(core), core)
    steps = [_in(ranks, core, core), *down, *_back(down), _out(ranks, core, core)]
    return schedule("halving-doubling", ranks, core, steps)


def binary_blocks(ranks: int) -> Schedule:
    """All-reduce for any number of ranks, as blocks of powers of two: 11 = 8 + 2 + 1.

        step      0        1        2        3        4        5
        8 ranks   halve    halve    halve +  double   double   double
        2 ranks   halve +        up ---^     ^-down   double
        1 rank    up --^                              ^-down

    Every block halves by itself. A smaller block gives its sums to the next larger one while that one halves for the
    last time, and gets the result when that one begins to double, so there are no more steps than the 2 log2 of the
    largest block.
    """
    blocks, first = [], 0
    while first < ranks:
        blocks.append(range(first, first + _power(ranks - first)))
        first = blocks[-1].stop
    parts, depth = len(blocks[0]), len(_halving(blocks[0], len(blocks[0])))
    up: Steps = [[] for _ in range(depth)]
    down: Steps = [[] for _ in range(depth + len(blocks))]
    for k, block in enumerate(blocks):
        own = _halving(block, parts)
        for s, hops in enumerate(own):
            up[s] += hops
        for s, hops in enumerate(_back(own)):
            down[k + s] += hops
        if k:
            handed = _handed(block, blocks[k - 1], parts)
            up[len(_halving(blocks[k - 1], parts)) - 1] += handed
            down[k - 1] += _back([handed])[0]
    return schedule("binary blocks", ranks, parts, up + down)


def _power(ranks: int) -> int:
    """The largest power of two that is at most `ranks`."""
    return 1 << (ranks.bit_length() - 1)


def _share(j: int, size: int, parts: int, distance: int = 0) -> tuple[int, int]:
    """The parts that member `j` of a block of `size` still sums after the exchange over `distance` (0: after the
    last one)."""
    start, width, bit = 0, parts, 1
    while bit < size and (not distance or bit <= distance):
        width //= 2
        start += width * bool(j & bit)
        bit *= 2
    return start, start + width


def _halving(block: range, parts: int) -> Steps:
    """Reduce-scatter in a block of 2^k ranks, each of which ends with its share of the parts."""
    steps: Steps = []
    distance, size = 1, len(block)
    while distance < size:
        pairs = [(j, j ^ distance) for j in range(size)]
        steps.append([Hop(block[j], block[i], *_share(i, size, parts, distance), add=True) for j, i in pairs])
        distance *= 2
    return steps


def _back(steps: Steps) -> Steps:
    """The messages of a reduce-scatter reversed, the last step first, distributing results."""
    return [[Hop(hop.target, hop.source, hop.start, hop.stop, add=False) for hop in step] for step in reversed(steps)]


def _handed(small: range, large: range, parts: int) -> list[Hop]:
    """The hops by which each rank of a small block gives its sums to the ranks of the next larger block, to each its
    share."""
    found = []
    for j, rank in enumerate(small):
        start, stop = _share(j, len(small), parts)
        shares = [(other, *_share(i, len(large), parts)) for i, other in enumerate(large)]
        found += [Hop(rank, other, low, high, add=True) for other, low, high in shares if start <= low < stop]
    return found


def _in(ranks: int, core: int, parts: int) -> list[Hop]:
    """The hops by which ranks beyond the core give their vectors to the first ranks."""
    return [Hop(core + i, i, 0, parts, add=True) for i in range(ranks - core)]


def _out(ranks: int, core: int, parts: int) -> list[Hop]:
    return [Hop(i, core + i, 0, parts, add=False) for i in range(ranks - core)]
