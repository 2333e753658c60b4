"""What computing takes more behind a wait.

While a rank waits, others use its caches and what maps its memory, on its machine and beside it on its host: what
computes next has to fetch its own again. The longer the wait the more, wherever the wait was from, until all is cold:
a step took 0.4 to 0.8 core-ms more behind 30 ms and 1.4 to 2 behind 100, most of it in the first two milliseconds.

computing         |BBBB|                 |FFFFffffff|BBBBBb|            f, b: fetching, most of it by who comes first
sum                    |======= A =======|

This comes after the turns of `overlap`, not in them: in the first of these, waits are far too long.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from partita.arrays import Reals
from partita.cost.prices import Prices
from partita.program.instruction import Compute
from partita.simulator.expand import Layout
from partita.simulator.transfers import speeds
from partita.units import Seconds

FETCHED: Final[Seconds] = 2e-3  # of computing, in which all but 1 / e of what there is to fetch again is fetched


def fetched(core: Reals) -> Reals:
    """The part of what there is to fetch again that is fetched in so many core-seconds of computing."""
    return -np.expm1(-core / FETCHED)


def cooled(layout: Layout, prices: Prices, start: Reals, end: Reals) -> Reals:
    """Core-seconds that each activity takes more behind a wait, from such times."""
    more, costs = np.zeros(len(start)), prices.costs
    if not costs.wiring.cooling:
        return more
    waits, amounts = np.array([(0.0, 0.0), *costs.wiring.cooling]).T
    fast = speeds(costs, layout.program)
    for role in layout.program.roles:
        places = np.flatnonzero(role.computing)
        rounds, _, kinds = (at := layout.at(role)[:, places]).shape
        core = [
            d.core * isinstance(i.act, Compute) for d, i in zip(prices.of_role(role), role.instructions, strict=True)
        ]
        share, speed = np.tile(fetched(np.array(core)[places]), rounds), fast[layout.kinds[role.name]]
        order = np.argsort(start[at.reshape(-1, kinds)], axis=0, kind="stable")
        at, share = np.take_along_axis(at.reshape(-1, kinds), order, axis=0), share[order]
        waited = np.maximum(start[at[1:]] - np.maximum.accumulate(end[at[:-1]], axis=0), 0.0)
        gained, left = np.interp(waited, waits, amounts), np.zeros(kinds)
        for mine, gain, part in zip(at[1:], gained, share[1:], strict=True):
            left = np.minimum(left + gain, amounts[-1])
            more[mine] = np.maximum(more[mine], left * part / speed)
            left = left * (1 - part)
    return more
