"""When factors take less than gradients: numbers that one rank sends and receives for a dense layer of M x N weights.

K rows a worker, P1 workers, P2 servers on their devices      (Zhang et al., USENIX ATC 2017)

factors to all      2 K (P1 - 1) (M + N)
through servers     2 M N (P1 + P2 - 2) / P2
"""

from __future__ import annotations


def broadcast_elements(rows: int, columns: int, samples: int, workers: int) -> float:
    """Sent and received by a worker that gives its factors to all others and has theirs (FM-02)."""
    return 2.0 * samples * (workers - 1) * (rows + columns)


def server_elements(rows: int, columns: int, workers: int, servers: int) -> float:
    """Sent and received by a device that is a worker and one of `servers` (FM-03)."""
    return 2.0 * rows * columns * (workers + servers - 2) / servers


def broadcast_pays(rows: int, columns: int, samples: int, workers: int, servers: int) -> bool:
    """Whether factors go to all, and not gradients through servers (FM-03's choice)."""
    given = broadcast_elements(rows, columns, samples, workers)
    return given <= server_elements(rows, columns, workers, servers)


def push_pays(rows: int, columns: int, samples: int) -> bool:
    """Whether a worker sends a server less as factors than as a gradient: K < M N / (M + N) (FM-01)."""
    return samples * (rows + columns) < rows * columns
