"""Collectives layer by layer: within nodes and between them (CO-07), and butterflies of any degrees (CO-08).

8 ranks, nodes of 4     within: reduce-scatter   0 1 2 3 | 4 5 6 7     rank i of a node ends with slice i
                        between: all-reduce      0-4  1-5  2-6  3-7    each slice among its owners
                        within: all-gather       0 1 2 3 | 4 5 6 7
"""

from __future__ import annotations

from math import prod

from partita.errors import ProgramError
from partita.wire.rings import ring_all_gather, ring_reduce_scatter
from partita.wire.schedule import Hop, Schedule, Steps, schedule


def hierarchical(ranks: int, width: int) -> Schedule:
    """All-reduce of nodes of `width` consecutive ranks (Jia et al. 2018, with a slice for each rank in place of one
    master): 2(k-1) + 2(p/k-1) steps, and a node sends 2(p/k-1)/(p/k) n bytes to others.

    Raises ProgramError where the nodes do not hold all ranks.
    """
    if width < 1 or ranks % width:
        raise ProgramError(f"nodes of {width} ranks do not divide {ranks}; give a divisor of {ranks}")
    nodes = ranks // width
    within = [range(first, first + width) for first in range(0, ranks, width)]
    between = [range(place, ranks, width) for place in range(width)]
    steps = _rings(ring_reduce_scatter(width), within, [0] * nodes, nodes)
    for part in (ring_reduce_scatter(nodes), ring_all_gather(nodes)):
        steps += _rings(part, between, [place * nodes for place in range(width)], 1)
    steps += _rings(ring_all_gather(width), within, [0] * nodes, nodes)
    return schedule(f"hierarchical({width})", ranks, ranks, steps)


def _rings(one: Schedule, groups: list[range], firsts: list[int], scale: int) -> Steps:
    """A schedule in every group at once, on the parts from `firsts` on; one part of it is `scale` parts here."""
    return [
        [
            Hop(group[h.source], group[h.target], first + h.start * scale, first + h.stop * scale, h.add)
            for group, first in zip(groups, firsts, strict=True)
            for h in step
        ]
        for step in one.steps
    ]


def butterfly(*degrees: int) -> Schedule:
    """All-reduce of prod(degrees) ranks: in layer l groups of d_l ranks divide what they still sum, directly; results
    go back through the same groups (Kylix's nested butterfly, Zhao & Canny 2014).

    degrees 2, 3   layer 0: 0-3 1-4 2-5 halve all   layer 1: 0-1-2, 3-4-5 take a third of a half each
    """
    ranks = prod(degrees)
    down: Steps = []
    share, stride = ranks, ranks
    for degree in degrees:
        stride, share = stride // degree, share // degree
        step = []
        for d in range(1, degree):
            for rank in range(ranks):
                place = rank // stride % degree
                other = rank + ((place + d) % degree - place) * stride
                start = other // stride * share
                step.append(Hop(rank, other, start, start + share, add=True))
        down.append(step)
    back = [[Hop(h.target, h.source, h.start, h.stop, add=False) for h in step] for step in reversed(down)]
    return schedule(f"butterfly({','.join(map(str, degrees))})", ranks, ranks, down + back)
