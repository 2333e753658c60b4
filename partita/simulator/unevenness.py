"""Rounds of one and the same work that take unequally long, where ranks go at their own pace.

even      w0 |--|--|--|--|        every worker finds the server free: each reads what two others have changed since
          w1  |--|--|--|--|
uneven    w0 |--|---|--|-|        they overtake each other now and then, and wait at ports for each other
          w1  |-|--|---|--|

In lockstep the slowest of a round counts, which costs that are means have in them already.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from partita.arrays import Reals
from partita.cost.costs import Costs
from partita.simulator.expand import Layout

SEED: Final = 0


def uneven(layout: Layout, costs: Costs, seconds: Reals) -> Reals:
    """Core-seconds by which the computing of each activity, which takes so many `seconds`, is longer (or shorter) than
    the mean: one factor a round and rank, log-normal, with `costs.unevenness` as deviation, the same ones every time.
    """
    draws, found = np.random.default_rng(SEED), np.zeros(len(seconds))
    for role in layout.program.roles:
        at = layout.at(role)
        computes = at[:, list(role.computing)]
        spread = costs.unevenness
        factors = draws.lognormal(-(spread**2) / 2, spread, (at.shape[0], 1, at.shape[2]))
        found[computes] = seconds[computes] * (factors - 1)
    return found
