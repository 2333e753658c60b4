"""When the factors of a dense layer's gradient are smaller than the gradient: elements that one rank sends and
receives.

K rows a worker, P1 workers, P2 servers on their devices, a layer of M x N weights      (Zhang et al., USENIX ATC 2017)

factors to all      2 K (P1 - 1) (M + N)
through servers     2 M N (P1 + P2 - 2) / P2
"""

from __future__ import annotations


def broadcast_elements(rows: int, columns: int, samples: int, workers: int) -> float:
    """Elements that a worker sends and receives if all workers exchange their factors (FM-02)."""
    return 2.0 * samples * (workers - 1) * (rows + columns)


def server_elements(rows: int, columns: int, workers: int, servers: int) -> float:
    """Elements that a device sends and receives that is a worker and one of `servers` (FM-03)."""
    return 2.0 * rows * columns * (workers + servers - 2) / servers


def broadcast_pays(rows: int, columns: int, samples: int, workers: int, servers: int) -> bool:
    """Whether exchanging factors takes fewer elements than gradients through servers (FM-03's choice)."""
    given = broadcast_elements(rows, columns, samples, workers)
    return given <= server_elements(rows, columns, workers, servers)


def push_pays(rows: int, columns: int, samples: int) -> bool:
    """Whether the factors have fewer elements than the gradient: K < M N / (M + N) (FM-01)."""
    return samples * (rows + columns) < rows * columns
