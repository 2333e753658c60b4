"""Where to cut the forward pass into stages, so that the largest time, or memory, of a stage is as small as possible.

A block is what lies between two legal cuts. It belongs to one stage as a whole, with its part of backward.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from partita.arrays import Ints, Reals
from partita.cluster.cluster import Cluster
from partita.cost.costs import Costs
from partita.cost.datasheet import datasheet_costs
from partita.errors import PlanError
from partita.graph.cuts import Cut, legal_cuts, liveness
from partita.graph.graph import Graph
from partita.graph.homes import homes_of
from partita.units import Bytes, BytesPerSecond, Seconds

Price = Callable[[int], Reals]
MOST_CUTS: Final = 128


@dataclass(frozen=True)
class Blocks:
    """The blocks of a graph, in order.

    `firsts` names each block's first operator; `seconds` are those of forward and backward on a device of speed 1,
    `state` the bytes of trained parameters, `saved` the bytes that backward needs, all for one microbatch;
    `crossing[i]` are the bytes of the values that cross the cut before block i, `frozen` those of other parameters and
    of buffers, `put_off` those of what gradients of parameters are made of, where they are all that is still to be
    computed.
    """

    firsts: tuple[str, ...]
    seconds: tuple[Seconds, ...]
    state: tuple[Bytes, ...]
    saved: tuple[Bytes, ...]
    crossing: tuple[Bytes, ...]
    frozen: tuple[Bytes, ...] = ()
    put_off: tuple[Bytes, ...] = ()


def blocks_of(graph: Graph, cluster: Cluster, costs: Costs | None, count: int) -> Blocks:
    """The blocks of a graph for microbatches of `count` samples."""
    if costs is None or not costs.sizes:
        key = ("blocks", count, cluster.devices[0])
        return graph.once(key, lambda: _blocks(graph, cluster, None, count))
    return _blocks(graph, cluster, costs, count)


def _blocks(graph: Graph, cluster: Cluster, costs: Costs | None, count: int) -> Blocks:
    prices, homes = prices_near(graph, cluster, costs, count), homes_of(graph)
    cuts, block = numbered(graph)
    starts = [0, *(cut.position for cut in cuts)]
    seconds, saved = np.zeros(len(starts)), [0] * len(starts)
    state, frozen = [0] * len(starts), [0] * len(starts)
    np.add.at(seconds, block, [prices[operator.name] for operator in graph.operators])
    for parameter in graph.parameters:
        first = min(homes.readers.get(parameter.name, [0]))
        (state if parameter.trainable else frozen)[block[first]] += parameter.tensor.size()
    for buffer in graph.buffers:
        frozen[block[min(homes.readers.get(buffer.name, [0]))]] += buffer.tensor.size()
    lives = liveness(graph)
    ends = list(lives.last)
    for number, root in enumerate(lives.roots):  # a view keeps its root
        ends[root] = max(ends[root], lives.last[number]) if root >= 0 else ends[root]
    for number, value in enumerate(lives.values):
        kept = lives.made[number] < graph.forward_length <= ends[number] and lives.roots[number] == number
        if kept and value.name not in homes.free:
            saved[block[lives.made[number]]] += graph.tensor(value).size(count)
    crossing = [
        sum(graph.tensor(value).size(count) for value in cut.values if value.name not in homes.free) for cut in cuts
    ]
    names = tuple(graph.operators[start].name for start in starts)
    late = tuple(_put_off(graph, block.tolist(), len(starts), count))
    return Blocks(names, tuple(seconds.tolist()), tuple(state), tuple(saved), (0, *crossing), tuple(frozen), late)


def _put_off(graph: Graph, block: Sequence[int], blocks: int, count: int) -> list[Bytes]:
    """Bytes of what operators read from which nothing comes that an earlier block needs: W, if a stage ends here."""
    lives, homes, first = liveness(graph), homes_of(graph), graph.forward_length
    place, lowest = {ref: number for number, ref in enumerate(lives.values)}, list(block)
    for i in reversed(range(first, len(lowest))):
        for ref in graph.operators[i].reads():
            if graph.index.get(ref.name, -1) >= first:
                lowest[graph.index[ref.name]] = min(lowest[graph.index[ref.name]], lowest[i])
    found, met = [0] * blocks, set[tuple[int, int]]()
    for i in range(first, len(lowest)):
        for number in (place[ref] for ref in graph.operators[i].reads() if ref in place and lowest[i] == block[i]):
            root, made = lives.roots[number], lives.made[lives.roots[number]]
            if root < 0 or lives.values[root].name in homes.free or (made >= first and lowest[made] == block[i]):
                continue
            where = block[i] if made >= first else block[made]
            if (root, where) not in met:
                met.add((root, where))
                found[where] += graph.tensor(lives.values[root]).size(count)
    return found


def numbered(graph: Graph) -> tuple[tuple[Cut, ...], Ints]:
    """The cuts between blocks, and the number of the block that each operator belongs to."""
    return graph.once("numbered", lambda: _numbered(graph))


def block_count(graph: Graph) -> int:
    """How many blocks there are between cuts."""
    return len(numbered(graph)[0]) + 1


def _numbered(graph: Graph) -> tuple[tuple[Cut, ...], Ints]:
    cuts = narrow(graph, legal_cuts(graph))
    starts = [0, *(cut.position for cut in cuts)]
    return cuts, np.searchsorted(starts, homes_of(graph).home, side="right") - 1


def prices_near(
    graph: Graph, cluster: Cluster, costs: Costs | None, count: int, precision: str = ""
) -> Mapping[str, Seconds]:
    """Core-seconds of each operator for `count` samples: measured costs at the nearest size that they cover, or
    without costs from FLOPs and bytes on the cluster's devices; of the step in the short dtype `precision` if it is
    given."""
    if costs is None or not costs.sizes:
        size = count if graph.symbolic else graph.batch
        costs = datasheet_costs(graph, cluster, (size,), precisions=(precision,) if precision else ())
    return costs.prices(min(costs.sizes, key=lambda size: abs(size - count)), precision)


def narrow(graph: Graph, cuts: tuple[Cut, ...]) -> tuple[Cut, ...]:
    """The cuts. If a deep model has more than MOST_CUTS, only those that the fewest bytes cross, as long as they are
    enough: cuts between repeated blocks and not within them."""
    if len(cuts) <= MOST_CUTS:
        return cuts
    free = homes_of(graph).free
    sizes = [sum(graph.tensor(value).size(1) for value in cut.values if value.name not in free) for cut in cuts]
    least = min(sizes)
    kept = tuple(cut for cut, size in zip(cuts, sizes, strict=True) if size <= least)
    return kept if len(kept) >= MOST_CUTS // 4 else cuts


def _check_parts(blocks: int, parts: int) -> None:
    if blocks < parts:
        raise PlanError(
            f"{parts} stages were asked of a model that can be cut into {blocks} at most; ask for fewer stages"
        )


def least_maximum(blocks: int, parts: int, price: Price) -> tuple[int, ...]:
    """The first block of each of `parts` contiguous runs, none empty, with the smallest largest price.

    `price(k)[i, j]` is that of blocks i to j (exclusive) as part k. Dynamic programme over parts, O(parts blocks^2)
    (PP-10). Raises PlanError where there are fewer blocks than parts.
    """
    _check_parts(blocks, parts)
    best = np.full(blocks + 1, np.inf)
    best[0] = -np.inf
    back = []
    empty = np.tri(blocks + 1, dtype=bool)
    for k in range(parts):
        worst = np.where(empty, np.inf, np.maximum(best[:, None], price(k)))
        back.append(worst.argmin(axis=0))
        best = worst.min(axis=0)
    starts, at = [], blocks
    for choice in reversed(back):
        at = int(choice[at])
        starts.append(at)
    return tuple(reversed(starts))


def by_time(blocks: Blocks, speeds: Sequence[float], bandwidths: Sequence[BytesPerSecond] = ()) -> tuple[int, ...]:
    """The stages with the least largest time: computing at each device's speed, and the messages over both of its
    cuts, forward and back, if `bandwidths` gives those between neighbours (PP-10)."""
    total = np.concatenate([[0.0], np.cumsum(blocks.seconds)])
    crossing = np.array([*blocks.crossing, 0.0])
    price = partial(_seconds, total, crossing, speeds, bandwidths)
    return least_maximum(len(blocks.seconds), len(speeds), price)


def _seconds(
    total: Reals, crossing: Reals, speeds: Sequence[float], bandwidths: Sequence[BytesPerSecond], k: int
) -> Reals:  # fmt: skip
    """The price of stage `k` from each block to each other."""
    found: Reals = (total[None, :] - total[:, None]) / speeds[k]
    if bandwidths:
        before = 2 * crossing / bandwidths[k - 1] if k else 0 * crossing
        after = 2 * crossing / bandwidths[k] if k < len(bandwidths) else 0 * crossing
        found = found + before[:, None] + after[None, :]
    return found


def by_time_each(
    blocks: Blocks, speeds: Sequence[float], bandwidths: Sequence[BytesPerSecond]
) -> tuple[tuple[int, ...], ...]:  # fmt: skip
    """What `by_time` finds for the first 1, 2, .. of these devices and the links between them, as far as there are
    blocks, in one pass: the prices of all stages but the last are the same."""
    count = len(blocks.seconds)
    total = np.concatenate([[0.0], np.cumsum(blocks.seconds)])
    crossing, some = np.array([*blocks.crossing, 0.0]), np.tri(count + 1, k=-1, dtype=bool)
    work = np.where(some, total[:, None] - total, np.inf)  # of blocks j to i (exclusive) at [i, j]
    best, backs, found = np.full(count + 1, np.inf), list[NDArray[np.intp]](), list[tuple[int, ...]]()
    best[0] = -np.inf
    for k in range(min(len(speeds), count)):  # the k-th stage has k blocks or more before it
        before = work[k:, k:] / speeds[k] + (2 * crossing[k:] / bandwidths[k - 1] if k else 0 * crossing)
        at = int(np.maximum(best[k:], before[-1]).argmin()) + k
        starts = [at]
        for j, back in reversed([*enumerate(backs)]):
            at = int(back[at - j]) + j
            starts.append(at)
        found.append(tuple(reversed(starts)))
        if k < len(bandwidths):
            worst = np.maximum(best[k:], before + (2 * crossing[k:] / bandwidths[k])[:, None])
            backs.append(worst.argmin(axis=1))
            best[k:] = worst[np.arange(len(worst)), backs[-1]]
    return tuple(found)


def by_memory(
    blocks: Blocks, in_flight: Sequence[int], state_factor: float, waiting: Sequence[int] = ()
) -> tuple[int, ...]:  # fmt: skip
    """The stages with the least largest memory: trained parameters times `state_factor` (weights, gradients,
    optimizer), the others once, what backward needs once for each microbatch in flight, and what W needs for each whose
    W is `waiting` (PP-10)."""
    none = (0,) * len(blocks.state)
    held = [state_factor * own + other for own, other in zip(blocks.state, blocks.frozen or none, strict=True)]
    late = waiting or (0,) * len(in_flight)
    sums = [np.concatenate([[0.0], np.cumsum(each)]) for each in (held, blocks.saved, blocks.put_off or none)]
    times = [(1, flying, wait) for flying, wait in zip(in_flight, late, strict=True)]
    return least_maximum(len(blocks.seconds), len(in_flight), partial(_bytes, sums, times))


def _bytes(sums: Sequence[Reals], times: Sequence[tuple[int, ...]], k: int) -> Reals:
    """The price of stage `k` from each block to each other: each of the sums so many times."""
    parts = [many * (each[None, :] - each[:, None]) for many, each in zip(times[k], sums, strict=True)]
    found: Reals = sum(parts[1:], parts[0])
    return found


def _sizes(normal: Sequence[float], stops: Sequence[int]) -> list[tuple[float, int]]:
    """The sum of each run, and its number."""
    return [(sum(normal[start:stop]), k) for k, (start, stop) in enumerate(zip([0, *stops], stops, strict=False))]


def block_partition(sequence: Sequence[float], parts: int) -> tuple[int, ...]:
    """First elements of runs whose sums differ by at most the difference between the largest and the smallest
    element: while they differ by more, a minimal run takes one element from the side of the maximal one (PP-02;
    Barany & Grinberg 2015, as in torchgpipe). Ties: the last maximal, the first minimal run.

    Raises PlanError for more parts than elements.
    """
    _check_parts(len(sequence), parts)
    low, width = min(sequence), max(sequence) - min(sequence)
    normal = [(x - low) / width if width else 0.0 for x in sequence]
    stops = [len(normal) // parts * (k + 1) for k in range(parts - 1)] + [len(normal)]
    largest, p = max(_sizes(normal, stops))
    while largest > min(_sizes(normal, stops))[0] + 1:
        _, q = min(_sizes(normal, stops))
        neighbour = q - 1 if p < q else q + 1
        if p < q:
            stops[neighbour] -= 1
        else:
            stops[q] += 1
        if neighbour == p:
            largest, p = max(_sizes(normal, stops))
    return (0, *stops[:-1])
