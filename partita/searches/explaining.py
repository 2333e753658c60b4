"""A ranking in words: what binds a plan, what the others lose, at which bandwidth the order turns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from math import log
from typing import Final

from partita.cluster.cluster import Cluster
from partita.program.timeline import Timeline
from partita.searches.objective import OBJECTIVES
from partita.units import BytesPerSecond

WIDEST: Final = 16.0
HALVINGS: Final = 5
MOST_RANKS: Final = 64  # a break-even takes a dozen simulations


def bottleneck(timeline: Timeline) -> str:
    """What most of a step is spent on."""
    name, share = largest_part(timeline)
    return f"bound by {name} ({share:.0%} of its step)"


def largest_part(timeline: Timeline) -> tuple[str, float]:
    """What most of a step is spent on, and how much of it."""
    b = timeline.breakdown
    parts = {
        "computing": b.forward + b.backward, "waiting for messages": b.exposed_communication, "updating": b.optimizer,
        "encoding": b.codec, "loading data": b.data, "idling": b.idle,
    }  # fmt: skip
    name = max(parts, key=lambda name: parts[name])
    return name, parts[name] / timeline.step_seconds if timeline.step_seconds else 0.0


def excess(other: float, best: float, objective: str) -> str:
    """How much more of the objective than the best plan another takes."""
    return OBJECTIVES[objective].format(other / best if best else 1.0)


def break_even(
    best: Callable[[float], float], other: Callable[[float], float], narrowest: BytesPerSecond
) -> tuple[BytesPerSecond, bool] | None:
    """The bandwidth nearest to `narrowest` at which `other` overtakes `best`, and whether it wins above it.

    Both give a step's seconds with every link's bandwidth times a factor. None where the order holds from a sixteenth
    to sixteen times the bandwidth, as far as a few points between tell.
    """
    turns = {}
    for edge in (WIDEST, 1 / WIDEST):
        for near, far in pairwise(edge**part for part in (0.0, 0.5, 1.0)):
            if other(far) < best(far):
                for _ in range(HALVINGS):
                    middle = (near * far) ** 0.5
                    near, far = (near, middle) if other(middle) < best(middle) else (middle, far)
                turns[abs(log(near * far))] = narrowest * (near * far) ** 0.5, edge > 1
                break
    return turns[min(turns)] if turns else None


def widened(cluster: Cluster, factor: float) -> Cluster:
    """The cluster with every link's bandwidth times `factor`, its burst lasting as long as before."""
    return cluster.rewired(
        lambda link: replace(link, bandwidth=link.bandwidth * factor, burst=round(link.burst * factor))
    )
