"""PipeDream's partitioner: stages, and the number of replicas of each, chosen together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from partita.units import Bytes, BytesPerSecond, Seconds


@dataclass(frozen=True, slots=True)
class Replicated:
    """Layers `start` to `stop` on `replicas` devices."""

    start: int
    stop: int
    replicas: int


@dataclass(frozen=True)
class Layers:
    """For each layer `seconds` of forward and backward, bytes of the `activations` that it passes on, bytes of
    `weights`."""

    seconds: Sequence[Seconds]
    activations: Sequence[Bytes]
    weights: Sequence[Bytes]


def replicated_stages(
    layers: Layers, devices: int, bandwidth: BytesPerSecond
) -> tuple[Seconds, tuple[Replicated, ...]]:
    """The pipeline with the fastest slowest stage or message on exactly `devices` equal devices (PP-05; Narayanan et
    al., SOSP 2019): A(j, m) = min over i, m' of max(A(i, m - m'), 2 a_i / B, T(i..j, m')), in O(layers^2 devices^2).
    A stage with m replicas takes 1/m max(T, 2 (m - 1) |w| / B), as computing and all-reduce overlap."""
    count, own = len(layers.seconds), np.arange(devices + 1, dtype=np.float64)
    work, size = (np.concatenate([[0.0], np.cumsum(x)]) for x in (layers.seconds, layers.weights))
    message = 2 * np.asarray(layers.activations, np.float64) / bandwidth
    best = np.full((count + 1, devices + 1), inf)
    back: dict[tuple[int, int], tuple[int, int]] = {}
    for stop in range(1, count + 1):
        seconds = np.full((stop, devices + 1), inf)
        here, held = (x[stop] - x[:stop, None] for x in (work, size))
        seconds[:, 1:] = np.maximum(here, 2 * (own[1:] - 1) * held / bandwidth) / own[1:]
        for m in range(1, devices + 1):
            best[stop, m], back[stop, m] = seconds[0, m], (0, m)
            before = np.maximum(best[1:stop, m - 1 : 0 : -1], message[: stop - 1, None])
            slowest = np.maximum(before, seconds[1:, 1:m])
            if slowest.size and slowest.min() < best[stop, m]:
                start, mine = np.unravel_index(slowest.argmin(), slowest.shape)
                best[stop, m], back[stop, m] = slowest.min(), (int(start) + 1, int(mine) + 1)
    found: list[Replicated] = []
    stop, left = count, devices
    while stop:
        start, mine = back[stop, left]
        found.insert(0, Replicated(start, stop, mine))
        stop, left = start, left - mine
    return float(best[count, devices]) if count else inf, tuple(found)
