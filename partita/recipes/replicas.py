"""PipeDream's partitioner: stages and how often each is replicated, together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import inf

from partita.units import Bytes, BytesPerSecond, Seconds


@dataclass(frozen=True, slots=True)
class Replicated:
    """Layers `start` to `stop` on `replicas` devices."""

    start: int
    stop: int
    replicas: int


@dataclass(frozen=True)
class Layers:
    """`seconds` of forward and backward, bytes of `activations` that each layer gives the next, bytes of `weights`."""

    seconds: Sequence[Seconds]
    activations: Sequence[Bytes]
    weights: Sequence[Bytes]

    def stage(self, start: int, stop: int, replicas: int, bandwidth: BytesPerSecond, form: str = "paper") -> Seconds:
        """Seconds a minibatch of a replicated stage: `paper` 1/m max(T, 2(m-1)|w|/B), as computing and all-reduce
        overlap; `code` T/m + 4(m-1)|w|/(Bm), as PipeDream's released optimizer counts."""
        work, bytes_, m = sum(self.seconds[start:stop]), sum(self.weights[start:stop]), replicas
        if form == "paper":
            return max(work, 2 * (m - 1) * bytes_ / bandwidth) / m
        return work / m + 4 * (m - 1) * bytes_ / (bandwidth * m)


def replicated_stages(
    layers: Layers, devices: int, bandwidth: BytesPerSecond, form: str = "paper"
) -> tuple[Seconds, tuple[Replicated, ...]]:
    """The pipeline with the fastest slowest stage or message on exactly `devices` equal devices (PP-05; Narayanan et
    al., SOSP 2019): A(j, m) = min over i, m' of max(A(i, m - m'), 2 a_i / B, T(i..j, m'))."""

    @cache
    def best(stop: int, count: int) -> tuple[Seconds, tuple[Replicated, ...]]:
        alone: tuple[Replicated, ...] = (Replicated(0, stop, count),)
        found = layers.stage(0, stop, count, bandwidth, form), alone
        for start in range(1, stop):
            message = 2 * layers.activations[start - 1] / bandwidth
            for own in range(1, count):
                before, stages = best(start, count - own)
                slowest = max(before, message, layers.stage(start, stop, own, bandwidth, form))
                if slowest < found[0]:
                    found = slowest, (*stages, Replicated(start, stop, own))
        return found

    return best(len(layers.seconds), devices) if layers.seconds else (inf, ())
