"""How much of whose weights each rank takes: matrices over ranks, from graphs or drawn from a seed.

ring        0-1-2-3-0           torus  a ring in each of two directions     exponential  0-1, 0-2, 0-4, ...
complete    everybody           topology  a ring under each switch, and one of the first ranks of its members

A plugin's graph has a matrix for each exchange of a round, such as one partner at a distance of 1, 2, 4, .. in turn.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from functools import partial
from itertools import pairwise
from math import isfinite, isqrt
from typing import Any, Final, TypeAlias

from partita.cluster.cluster import Cluster, Group
from partita.errors import OptionError, PlanError, users_code
from partita.plan.sync import GRAPHS, Gossip, Neighbours, Sync
from partita.wire.plugins import Registry, others, shown

Matrix: TypeAlias = tuple[tuple[float, ...], ...]
Graphed: TypeAlias = Callable[[int, Cluster], tuple[Matrix, ...]]
NEAR: Final = 1e-9  # of 1: what a row of a plugin's matrix sums to


def mixing_matrices_of(through: Neighbours | Gossip, ranks: int, cluster: Cluster) -> tuple[Matrix, ...]:
    """W of each exchange of a round: rank i takes the sum over j of W[i][j] times the weights of j."""
    if isinstance(through, Neighbours):
        return MIXING[through.graph](ranks, cluster)
    draw = random.Random(through.seed)
    return tuple(drawn(through, ranks, draw) for _ in range(through.draws))


def check_graph(name: str, sync: Sync) -> None:
    """Raises PlanError where the plan `name` agrees between neighbours in a graph that is none."""
    if isinstance(sync.through, Neighbours) and sync.through.graph not in MIXING:
        raise PlanError(f"{name}: there is no graph {sync.through.graph!r}; there are {', '.join(MIXING)}{others()}")


def own_graph(name: str, make: Any) -> Graphed:
    """A plugin's matrices by the number of ranks, which raises PlanError where it fails or returns others. Raises
    OptionError for what is no function."""
    if not callable(make):
        raise OptionError("give a function of the number of ranks that returns a list of matrices")

    def made(ranks: int, cluster: Cluster) -> tuple[Matrix, ...]:
        what = f"the graph {name} of a plugin"
        mend = "it takes the number of ranks and returns a list of matrices, one for each exchange of a round"
        with users_code(what, mend, PlanError):
            found = make(ranks)
        try:
            matrices = tuple(tuple(tuple(float(share) for share in row) for row in matrix) for matrix in found)
        except (TypeError, ValueError):
            matrices = ()
        sizes = {len(matrix) for matrix in matrices} | {len(row) for matrix in matrices for row in matrix}
        if sizes != {ranks}:
            raise PlanError(f"{what} returned {shown(found)} for {ranks} ranks; {mend}, with {ranks} rows of {ranks}")
        for number, matrix in enumerate(matrices):
            for rank, row in enumerate(matrix):
                if not isfinite(sum(row)) or abs(sum(row) - 1) > NEAR:
                    raise PlanError(
                        f"{what} has {sum(row):g} for the sum of row {rank} of matrix {number} for {ranks} ranks; "
                        "give the share of every rank's weights that a rank takes, which are 1 together"
                    )
        return matrices

    return made


def metropolis(edges: Iterable[tuple[int, int]], ranks: int) -> Matrix:
    """Symmetric doubly stochastic weights of a graph: 1 / (1 + the larger degree) along each edge, the rest stays
    (Xiao, Boyd & Kim 2007). A ring's are 1/3."""
    near: list[set[int]] = [set() for _ in range(ranks)]
    for i, j in edges:
        if i != j:
            near[i].add(j)
            near[j].add(i)
    rows = []
    for i in range(ranks):
        row = [1 / (1 + max(len(near[i]), len(near[j]))) if j in near[i] else 0.0 for j in range(ranks)]
        row[i] = 1 - sum(row)
        rows.append(tuple(row))
    return tuple(rows)


def graph_edges(graph: str, ranks: int, cluster: Cluster) -> set[tuple[int, int]]:
    """The edges of a graph of GRAPHS."""
    every = range(ranks)
    if graph == "ring":
        return ring(every)
    if graph == "complete":
        return {(i, j) for i in every for j in range(i)}
    if graph == "exponential":
        return {(i, (i + 2**k) % ranks) for i in every for k in range((ranks - 1).bit_length())}
    if graph == "torus":
        wide = next(w for w in range(isqrt(ranks), 0, -1) if ranks % w == 0)
        across = [ring(range(row * wide, row * wide + wide)) for row in range(ranks // wide)]
        return set[tuple[int, int]]().union(*across, *(ring(range(column, ranks, wide)) for column in range(wide)))
    return {(i, j) for i, j in _switches(cluster.root, 0)[1] if max(i, j) < ranks}


def _fixed(graph: str, ranks: int, cluster: Cluster) -> tuple[Matrix, ...]:
    return (metropolis(graph_edges(graph, ranks, cluster), ranks),)


MIXING: Final[Registry[Graphed]] = Registry("GRAPHS", {name: partial(_fixed, name) for name in GRAPHS}, own_graph)


def ring(ranks: Iterable[int]) -> set[tuple[int, int]]:
    """Each rank beside the next, the last beside the first."""
    listed = list(ranks)
    return set(pairwise([*listed, listed[0]])) if len(listed) > 1 else set()


def _switches(group: Group, first: int) -> tuple[int, set[tuple[int, int]]]:
    """The next free rank after a group whose ranks start at `first`, and the edges in it."""
    heads, edges, at = list[int](), set[tuple[int, int]](), first
    for member in group.members:
        heads.append(at)
        if isinstance(member, Group):
            at, inner = _switches(member, at)
            edges |= inner
        else:
            at += 1
    return at, edges | ring(heads)


def drawn(gossip: Gossip, ranks: int, draw: random.Random) -> Matrix:
    """One exchange of gossip: every rank draws its partners, all others alike.

    'pull': it takes their weights, so rows sum to 1. 'push': it gives them an equal part of its own, so columns do, and
    the sum over all stays (Kempe, Dobra & Gehrke 2003). 'pair': a matching, doubly stochastic.
    """
    count = min(gossip.partners, ranks - 1)
    matrix = [[float(i == j) for j in range(ranks)] for i in range(ranks)]
    if gossip.direction == "pair":
        order = draw.sample(range(ranks), ranks)
        for i, j in zip(order[::2], order[1::2], strict=False):
            matrix[i][i] = matrix[j][j] = matrix[i][j] = matrix[j][i] = 0.5
        return tuple(map(tuple, matrix))
    for i in range(ranks):
        partners = draw.sample([j for j in range(ranks) if j != i], count)
        matrix[i][i] = 1 / (count + 1)
        for j in partners:
            row, column = (i, j) if gossip.direction == "pull" else (j, i)
            matrix[row][column] = 1 / (count + 1)
    return tuple(map(tuple, matrix))
