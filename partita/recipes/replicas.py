"""PipeDream's partitioner: stages, and the number of replicas of each, chosen together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray

from partita.units import Bytes, BytesPerSecond, Seconds

Reals = NDArray[np.float64] | np.float64


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

    def stage(self, start: int, stop: int, replicas: int, bandwidth: BytesPerSecond, form: str = "paper") -> Seconds:
        """Seconds a minibatch of a replicated stage: `paper` 1/m max(T, 2(m-1)|w|/B), as computing and all-reduce
        overlap; `code` T/m + 4(m-1)|w|/(Bm), as PipeDream's released optimizer counts."""
        work, bytes_ = sum(self.seconds[start:stop]), sum(self.weights[start:stop])
        return float(_stage(np.float64(work), np.float64(bytes_), np.float64(replicas), bandwidth, form))


def _stage(work: Reals, size: Reals, m: Reals, bandwidth: BytesPerSecond, form: str) -> Reals:
    found: Reals = (
        np.maximum(work, 2 * (m - 1) * size / bandwidth) / m
        if form == "paper"
        else work / m + 4 * (m - 1) * size / (bandwidth * m)
    )
    return found


def replicated_stages(
    layers: Layers, devices: int, bandwidth: BytesPerSecond, form: str = "paper"
) -> tuple[Seconds, tuple[Replicated, ...]]:
    """The pipeline with the fastest slowest stage or message on exactly `devices` equal devices (PP-05; Narayanan et
    al., SOSP 2019): A(j, m) = min over i, m' of max(A(i, m - m'), 2 a_i / B, T(i..j, m')). O(layers^2 devices^2)."""
    count, own = len(layers.seconds), np.arange(devices + 1, dtype=np.float64)
    work, size = (np.concatenate([[0.0], np.cumsum(x)]) for x in (layers.seconds, layers.weights))
    message = 2 * np.asarray(layers.activations, np.float64) / bandwidth
    best = np.full((count + 1, devices + 1), inf)
    back: dict[tuple[int, int], tuple[int, int]] = {}
    for stop in range(1, count + 1):
        seconds = np.full((stop, devices + 1), inf)
        here, held = (x[stop] - x[:stop, None] for x in (work, size))
        seconds[:, 1:] = _stage(here, held, own[None, 1:], bandwidth, form)
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
