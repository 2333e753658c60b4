"""Bounds of a grid's points wherever they are cut: what is cheap to work out for millions of them."""

from __future__ import annotations

from itertools import product

import numpy as np

from partita.arrays import Reals
from partita.plan.memory import Recompute
from partita.plan.schedule import Order
from partita.searches.circulation import rounds_of_bytes
from partita.searches.link_speeds import with_burst
from partita.searches.space import RECOMPUTES, Space
from partita.searches.stage_costs import StageCosts


def rough_bounds(space: Space, places: StageCosts) -> tuple[Reals, Reals]:
    """Seconds and bytes below which no point of a space is, as if the model could be cut at will.

    On p places that wait for each other, m microbatches of w seconds take w / (1 - (1 - 1/m)^p) at the least: what
    lies before a place, and m times its own, is longest where it is shortest if it is as long everywhere. Blocks
    count from the first on behind which all cuts are linked: with fewer places it would be more.
    """
    data, pipe, m = (space.column(name).astype(np.float64) for name in ("data", "pipe", "microbatches"))
    shard = space.column("shard")
    put_off, round_ = space.ordered(Order.ZERO_BUBBLE), space.ordered(Order.INTERLEAVED)
    price, chained, urgent = _priced(space, places)
    even, chained = price * m / pipe, np.where(put_off, urgent, chained)
    total = np.where((pipe > 1) & ~round_, np.maximum(chained / (1 - (1 - 1 / m) ** pipe), even), even)
    sent = (data - 1) / data * places.state.own.sum() / pipe * rounds_of_bytes(space)
    counts, at = np.unique(data, return_inverse=True)
    light = np.array([places.link_speeds.least_part(int(n)) for n in counts])[at]
    links = places.link_speeds
    sent = with_burst(sent * np.where(shard == 0, light, 1.0) / links.widest, links.saved)
    seconds: Reals = np.max([total / places.peaks.max(), even / places.speeds.max(), sent], axis=0)
    return seconds, places.state.size.sum() * places.state_factors(data, pipe, shard) / pipe


def _priced(space: Space, places: StageCosts) -> tuple[Reals, ...]:
    """Core-seconds of a microbatch, those of linked blocks, and those without what may be put off; a sample at its
    cheapest price for as many at once or more (they get no dearer in company)."""
    sizes, at = np.unique(
        places.batch // (space.column("data") * space.column("microbatches")), return_inverse=True
    )  # fmt: skip
    staged, rule = (space.column("pipe") > 1).astype(np.int64), space.column("recompute")
    priced = sizes.tolist() if places.graph.symbolic else [places.graph.batch]
    place = np.searchsorted(priced, sizes).clip(max=len(priced) - 1)
    found = np.zeros((3, 2, len(RECOMPUTES), len(sizes)))
    loose = np.flatnonzero(~places.sections(Recompute.NONE, staged=True).linked)
    first = int(loose[-1]) + 1 if len(loose) else 0
    for step, again in product((False, True), range(len(RECOMPUTES))):
        each = [_of_blocks(places, RECOMPUTES[again], step, size, first) for size in priced]
        least = np.minimum.accumulate(each[::-1], axis=0)[::-1]
        found[:, int(step), again] = (sizes[:, None] * least[place]).T
    return tuple(table[staged, rule, at.ravel()] for table in found)


def _of_blocks(places: StageCosts, rule: Recompute, staged: bool, size: int, first: int) -> tuple[float, ...]:
    """Core-seconds a sample, those from block `first` on, and those of them that another block waits for."""
    sections, costs = places.sections(rule, staged=staged), places.costs(size)
    forward, backward = sections.seconds(costs, size)
    both, urgent = forward + backward, forward + sections.seconds_of(sections.input_gradient, costs, size)
    return both.sum() / size, both[first:].sum() / size, urgent[first:].sum() / size
