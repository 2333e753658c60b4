"""The forward pass in blocks, of which recomputation keeps only what goes from one to the next.

operators   0 .... 12 ......... 24 ......... 36 ...... forward's end
blocks      |  0   |     1      |     2      |    3   |       cut where little crosses
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isqrt

from partita.graph.cuts import legal_cuts, liveness
from partita.graph.graph import Graph, Repeat
from partita.graph.repeats import find_repeats
from partita.units import Bytes

COVERS = 0.5  # of the forward pass: less is no reason to think that the model is made of these blocks


def block_starts(graph: Graph) -> tuple[int, ...]:
    """The forward positions at which blocks begin, the first at 0: one for each block that the model repeats, else as
    many as make what is kept and what the largest block computes again together smallest (ME-07; Chen et al. 2016)."""
    return graph.once("blocks", lambda: _block_starts(graph))


def _block_starts(graph: Graph) -> tuple[int, ...]:
    weights = crossings(graph)
    runs = [r for r in graph.repeats or find_repeats(graph) if r.start + r.length * r.count <= graph.forward_length]
    longest = max(runs, key=lambda run: run.length * run.count, default=None)
    if longest is not None and longest.length * longest.count >= COVERS * graph.forward_length:
        found = _of_run(longest, weights)
        if found:
            return found
    saved = saved_before(graph)
    tried = [evenly(saved, weights, count) for count in range(1, 2 * isqrt(len(weights)) + 2)]
    return min(tried, key=lambda starts: _need(starts, saved, weights))


def saved_before(graph: Graph) -> list[Bytes]:
    """For every forward position the bytes made before it that backward reads."""
    at, lives = [0] * (graph.forward_length + 1), liveness(graph)
    kept = {root for root, last in zip(lives.roots, lives.last, strict=True) if last >= graph.forward_length}
    for number in kept - {-1}:  # what a view looks at is kept for its readers
        if lives.made[number] < graph.forward_length:
            at[lives.made[number] + 1] += graph.tensor(lives.values[number]).size(graph.batch)
    for i in range(graph.forward_length):
        at[i + 1] += at[i]
    return at


def crossings(graph: Graph) -> dict[int, Bytes]:
    """The bytes that cross each legal cut, by its position."""
    return {cut.position: sum(graph.tensor(v).size(graph.batch) for v in cut.values) for cut in legal_cuts(graph)}


def _of_run(run: Repeat, weights: dict[int, Bytes]) -> tuple[int, ...]:
    """A block begins at the same place of every repetition: where all are legal cuts and least crosses."""
    places = [[run.start + shift + run.length * k for k in range(run.count)] for shift in range(run.length)]
    legal = [starts for starts in places if all(start in weights for start in starts)]
    best = min(legal, key=lambda starts: sum(weights[start] for start in starts), default=[])
    return (0, *best) if best else ()


def evenly(saved: Sequence[Bytes], weights: dict[int, Bytes], count: int) -> tuple[int, ...]:
    """About `count` blocks whose values take equal bytes, each begun at the cut near by that least crosses."""
    starts, total = [0], saved[-1]
    for k in range(1, count):
        low, high = total * (k - 0.25) / count, total * (k + 0.25) / count
        near = [at for at in weights if low <= saved[at] <= high and at > starts[-1]]
        if near:
            starts.append(min(near, key=lambda at: (weights[at], abs(saved[at] - total * k / count))))
    return tuple(starts)


def _need(starts: Sequence[int], saved: Sequence[Bytes], weights: dict[int, Bytes]) -> Bytes:
    """What is kept between blocks, and the largest block's own values."""
    stops = [*starts[1:], len(saved) - 1]
    inside = [saved[stop] - saved[start] for start, stop in zip(starts, stops, strict=True)]
    return sum(weights[start] for start in starts[1:]) + max(inside)
