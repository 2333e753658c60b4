"""Points of the grid whose gradients travel in a codec: replicas that sum up, of the model or of its stages.

A codec is about as if links were so many times as wide, and packed gradients were gone over so many times more; where
state is divided, weights go as wide as before. By that formula the best points of each codec are found; what none of
them takes less than is computing alone.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from partita.arrays import Ints, Reals
from partita.cost.costs import Costs
from partita.graph.graph import Graph
from partita.plan.memory import Shard
from partita.recipes.reading import with_knob
from partita.searches.estimates import Estimates
from partita.searches.lower_bounds import LowerBounds
from partita.searches.space import SHAPE, SHARDS, Space
from partita.units import Seconds
from partita.wire.codec import SPECS, coded_size, read_codecs, room, spec_of

KIND: Final = (SHAPE.index("data"), SHAPE.index("shard"))
AMONG: Final = 64  # points of divided state or stages whose steps are priced with a codec
OWNERS: Final = 64  # of a bucket: 4,032 messages a sum, each of which the clock knows


def codable(space: Space, name: str) -> Ints:
    """The points that take a codec."""
    spec, whole = SPECS[name], space.column("shard") == 0
    alone = whole & (space.column("pipe") == 1)
    takes = alone if spec.ahead else whole if spec.counts else np.ones(len(space), np.bool_)
    data = space.column("data")
    return np.flatnonzero((data > 1) & takes & (whole | (data <= OWNERS)))


def coded_points(space: Space) -> int:
    """How many points there are with codecs."""
    return sum(len(codable(space, name)) for name in SPECS)


def coded_fitting(estimates: Estimates, graph: Graph, capacity: Reals) -> int:
    """How many of these points fit, by formula, devices of `capacity` bytes, a number for each point of the grid."""
    taking = ((name, codable(estimates.space, name)) for name in SPECS)
    return sum(int((_held(estimates, some, graph, name) <= capacity[some]).sum()) for name, some in taking)


def coded(estimates: Estimates, costs: Costs, capacity: Reals, most: int) -> tuple[str, ...]:
    """Calls of the `most` best of these points with each codec, by formula, one of each codec; among those that fit by
    formula, if any do."""
    found: list[tuple[Seconds, str]] = []
    for name in SPECS:
        some = _promising(estimates, codable(estimates.space, name), costs.graph, name, capacity)
        kinds, seconds = estimates.space.shapes[some][:, KIND], np.empty(len(some))
        for data, shard in np.unique(kinds, axis=0).tolist():
            here = (kinds == (data, shard)).all(axis=1)
            seconds[here] = _seconds(estimates, costs, name, some[here], data, shard)
        if not len(some):
            continue
        best = int(seconds.argmin())
        found.append((float(seconds[best]), with_knob(estimates.space.call(int(some[best])), f"codec={name}")))
    return tuple(text for _, text in sorted(found)[:most])


def held_bytes(name: str, space: Space, graph: Graph) -> Reals:
    """What a codec holds on a rank of each point, by formula: what it keeps of the numbers that are trained, and
    rows of messages, one where they are summed, else those of all or, with owners, own ones and those of a part."""
    (codec,) = read_codecs(name)
    trained, item = graph.trained_elements, round(graph.item)
    spec, data, mine = spec_of(codec), space.column("data"), trained / space.column("pipe")
    row = 0.0 if codec.where == "hop" else room(codec, trained, item) / trained
    rows = np.where(space.column("shard") > 0, 2.0, 1.0 if spec.sums else data)
    found: Reals = mine * (item * (codec.error_feedback + (spec.counts is not None)) + rows * row)
    return found


def _held(estimates: Estimates, some: Ints, graph: Graph, name: str) -> Reals:
    """Bytes on a rank of `some` points with a codec, by formula."""
    held: Reals = estimates.memory[some] + held_bytes(name, estimates.space.some(some), graph)
    return held


def _promising(estimates: Estimates, some: Ints, graph: Graph, name: str, capacity: Reals) -> Ints:
    """Those that fit by formula, if any do; of those with stages or divided state as many as are looked at, which are
    the quickest without a codec."""
    fits = _held(estimates, some, graph, name) <= capacity[some]
    some = some[fits] if fits.any() else some
    divided = (estimates.space.column("pipe")[some] > 1) | (estimates.space.column("shard")[some] > 0)
    rest = some[divided]
    return np.concatenate([some[~divided], rest[np.argsort(estimates.seconds[rest], kind="stable")[:AMONG]]])


def _seconds(estimates: Estimates, costs: Costs, name: str, some: Ints, data: int, shard: int) -> Reals:
    """By formula, of points of so many replicas. What may not be added as it is goes to everybody whole, or to owners
    their part of it; new weights go as they are, and with divided ones once more."""
    (codec,) = read_codecs(name)
    words, item = costs.graph.trained_elements, round(costs.graph.item)
    summed = bool(spec_of(codec).sums) or codec.where == "hop" or shard > 0
    wider = item * words / coded_size(codec, words, item) * (1 if summed else 2 / data)
    if shard:
        gathers = 2 if SHARDS[shard] is Shard.PARAMETERS else 1
        wider = (1 + gathers) / (1 / wider + gathers)
    ahead, back = costs.codec(codec)
    speed = min(device.pace for device in costs.cluster.devices)
    over = (ahead.of(words) + back.of(words) * (1 if summed else data)) / speed
    return estimates.step_seconds(estimates.space.some(some), wider) + over


def lower_bound_of(space: Space, bounds: LowerBounds) -> Seconds:
    """What no point that takes a codec takes less than, whatever it sends."""
    some = np.flatnonzero(space.column("data") > 1)
    return float(bounds.steps.computing(space.some(some)).min()) if len(some) else np.inf
