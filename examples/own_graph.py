"""A graph from outside the package: one partner at a time, at a distance of 1, 2, 4, .. ranks in turn (Assran et al.,
ICML 2019). After log2(n) exchanges each of n = 2^k ranks has the mean of all.

Rows sum to 1; columns do too, or the mean of all ranks' weights does not stay what it is.

PARTITA_PLUGINS=examples/own_graph.py partita verify digits-cnn --cluster local:4 --plan "d_psgd(neighbours=one_peer)"
"""

from __future__ import annotations

Matrix = list[list[float]]


def one_peer(ranks: int) -> list[Matrix]:
    """For each exchange of a round, the shares of all ranks' weights that each takes: half its own, half its peer's."""
    return [peer(ranks, 2**k) for k in range(max((ranks - 1).bit_length(), 1))]


def peer(ranks: int, distance: int) -> Matrix:
    """Row i has what rank i takes of every rank's weights: half of the one so far behind it."""
    return [[((j == i) + (j == (i - distance) % ranks)) / 2 for j in range(ranks)] for i in range(ranks)]


GRAPHS = {"one_peer": one_peer}
