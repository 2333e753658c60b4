"""A plan over bandwidths: how long a step takes where every link is so much wider or narrower."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final, TypeAlias

from partita.cluster.cluster import Cluster
from partita.cost.costs import Costs
from partita.errors import InputError, OptionError
from partita.lowering.lower import last_program
from partita.plan.plan import Plan
from partita.searches.break_even import BreakEven, break_even_of, without_codecs
from partita.searches.explaining import widened
from partita.simulator.simulate import simulate, step_seconds
from partita.units import BytesPerSecond, Seconds, parse_bandwidth

Curve: TypeAlias = tuple[tuple[float, float], ...]  # (x, y), both above 0, by increasing x
EACH: Final = 4  # points a power of ten, unless told otherwise
MOST: Final = 200


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """A step's `seconds` where the narrowest link has `bandwidth`, how long of it messages are waited for, and its
    seconds without the plan's codecs (0: it has none)."""

    bandwidth: BytesPerSecond
    seconds: Seconds
    waiting: Seconds
    plain: Seconds = 0.0


@dataclass(frozen=True, slots=True)
class Sweep:
    """A plan's points, narrowest first; `own` is the cluster's bandwidth, `pays` where its codecs would pay."""

    plan: str
    points: tuple[SweepPoint, ...]
    own: BytesPerSecond
    pays: BreakEven | None = None


def read_sweep(text: str) -> tuple[BytesPerSecond, ...]:
    """`'bandwidth=10M..10G'` -> bandwidths in bytes a second, four a power of ten with both ends; `..10G/5` gives five
    in all; in bits a second, unless an end says B/s. Raises OptionError for any other text."""
    found = re.fullmatch(r"\s*bandwidth\s*=\s*(.+?)\s*\.\.\s*([^/]+?|[^/]+/s)\s*(?:/\s*(\d+))?\s*", text)
    wrong = f"--sweep is {text!r}; write bandwidth=10M..10G, or bandwidth=10M..10G/5 for five points"
    if found is None:
        raise OptionError(wrong)
    if bare := next((end for end in found.groups()[:2] if re.fullmatch(r"[-+\d.e]+", end)), ""):
        raise OptionError(f"{wrong}: {bare} has no unit, such as M for Mbit/s")
    try:
        low, high = (parse_bandwidth(end if end.endswith("/s") else f"{end}bit/s") for end in found.groups()[:2])
    except InputError:
        raise OptionError(wrong) from None
    count = (
        int(found[3] or math.ceil(EACH * math.log10(high / low)) + 1)
        if 0 < low <= high and high / low < math.inf
        else 0
    )
    if not 1 <= count <= MOST or (count == 1 and low < high):
        raise OptionError(f"{wrong}: from a bandwidth above 0 to a higher one, in 2 to {MOST} points")
    return tuple(low * (high / low) ** (k / max(count - 1, 1)) for k in range(count))


def check_links(cluster: Cluster) -> BytesPerSecond:
    """The cluster's narrowest link. Raises OptionError where there is none."""
    own = cluster.narrowest
    if not own or cluster.size < 2:
        raise OptionError(f"{cluster.name} has no links between devices to sweep; give a cluster of two or more")
    return own


def sweep(plan: Plan, costs: Costs, bandwidths: tuple[BytesPerSecond, ...]) -> Sweep:
    """The plan's last phase at each bandwidth of the cluster's narrowest link, all others in proportion.

    Raises OptionError for a cluster without links.
    """
    own = check_links(costs.cluster)
    coded = any(sync.wire.codecs for sync in plan.sync)
    program = last_program(costs.graph, replace(plan, before=()), costs.cluster)
    plain = last_program(costs.graph, without_codecs(plan), costs.cluster) if coded else None
    points = []
    for bandwidth in bandwidths:
        there = replace(costs, cluster=widened(costs.cluster, bandwidth / own))
        found = simulate(program, there)
        without = step_seconds(plain, there) if plain else 0.0
        points.append(SweepPoint(bandwidth, found.step_seconds, found.breakdown.exposed_communication, without))
    return Sweep(plan.name, tuple(points), own, break_even_of(plan, costs))


def crossings(one: Curve, other: Curve) -> tuple[tuple[float, bool], ...]:
    """(x, whether `other` is below from there on) wherever two curves cross, by straight lines on logarithmic axes
    between the x that they share."""
    there = dict(other)
    lead = [(math.log(x), math.log(y / there[x])) for x, y in one if x in there]
    return tuple(
        (math.exp(x + (z - x) * a / (a - b)), b > 0) for (x, a), (z, b) in pairwise(lead) if a <= 0 < b or b <= 0 < a
    )


def lowest(curves: Mapping[str, Curve]) -> tuple[tuple[float, str], ...]:
    """(x, name) wherever another curve becomes the lowest, the first x included; where two that take turns were not
    both given on both sides, halfway."""
    at: dict[float, dict[str, float]] = {}
    for name, curve in curves.items():
        for x, y in curve:
            at.setdefault(x, {})[name] = y
    best = [(x, min(ys, key=ys.__getitem__)) for x, ys in sorted(at.items())]
    found = best[:1]
    for (x, a), (z, b) in pairwise(best):
        if a != b:
            sides = (tuple((k, at[k][name]) for k in (x, z) if name in at[k]) for name in (a, b))
            found.append((next((turn for turn, _ in crossings(*sides)), math.sqrt(x * z)), b))
    return tuple(found)
