"""Points of the grid whose gradients travel in a codec: data parallelism alone, for neither stages nor sharded state
take one.

A codec is about as if links were so many times as wide, and packed gradients were gone over so many times more. By that
formula the best points of each codec are found; what none of them takes less than is computing alone.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from partita.cost.costs import Costs
from partita.searches.floors import Floors
from partita.searches.screen import Screen
from partita.searches.space import Space
from partita.units import Bytes, Seconds
from partita.wire.codec import SPECS, coded_size, read_codecs, spec_of

Reals = NDArray[np.float64]
Ints = NDArray[np.int64]
WORD: Final = 4  # bytes of a parameter


def codable(space: Space) -> Ints:
    """The points that take a codec."""
    return np.flatnonzero((space.column("data") > 1) & (space.column("pipe") == 1) & (space.column("shard") == 0))


def coded(screen: Screen, costs: Costs, capacity: Bytes, most: int) -> tuple[str, ...]:
    """Calls of the `most` best of these points with each codec, by formula, one of each codec; among those that fit by
    formula, if any do."""
    some = codable(screen.space)
    some = some[fits] if (fits := screen.fitting(capacity)[some]).any() else some
    found = []
    for name in SPECS if len(some) else ():
        seconds = np.empty(len(some))
        for data in np.unique(screen.space.column("data")[some]).tolist():
            here = screen.space.column("data")[some] == data
            seconds[here] = _seconds(screen, costs, name, some[here], data)
        best = int(seconds.argmin())
        found.append((float(seconds[best]), f"{screen.space.call(int(some[best])).removesuffix(')')},codec={name})"))
    return tuple(text for _, text in sorted(found)[:most])


def _seconds(screen: Screen, costs: Costs, name: str, some: Ints, data: int) -> Reals:
    """By formula, of points of so many replicas. What may not be added as it is goes to everybody whole."""
    (codec,) = read_codecs(name)
    words = sum(p.tensor.elements() for p in costs.graph.trainable)
    summed = bool(spec_of(codec).sums) or codec.where == "hop"
    wider = WORD * words / coded_size(codec, words, WORD) * (1 if summed else 2 / data)
    ahead, back = costs.codec(codec)
    speed = min(device.pace for device in costs.cluster.devices)
    over = (ahead.of(words) + back.of(words) * (1 if summed else data)) / speed
    return screen.priced(Space(screen.space.rows[some]), wider) + over


def floor_of(space: Space, floors: Floors) -> Seconds:
    """What no point that takes a codec takes less than, whatever it sends."""
    some = codable(space)
    return float(floors.computing(Space(space.rows[some])).min()) if len(some) else np.inf
