"""Rounds of one and the same work that take unequally long, where ranks go at their own pace.

even      w0 |--|--|--|--|        every worker finds the server free: each reads what two others have changed since
          w1  |--|--|--|--|
uneven    w0 |--|---|--|-|        they overtake each other now and then, and wait at ports for each other
          w1  |-|--|---|--|

In lockstep the slowest of a round counts, which costs that are means have in them already.

Nor do messages that share a port get equal parts of it, and so come in the order in which they left: a flow's window
grows and shrinks.

even      w0 >=====|     w1 ..>=====|     w2 ....>=====|       a server takes them in turn, again and again
uneven    w0 >=======|   w1 ..>===|       w2 ....>=====|       w1 was before w0
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from partita.arrays import Reals
from partita.cost.costs import Costs
from partita.simulator.activities import Activities
from partita.simulator.expand import Layout

SEED: Final = 0
# Deviation of the logarithm of a message's part of a port: with 0.3 the staleness of servers whose link was full was
# spread as measured (two models, six devices on 1 Gbit/s), with 0.15 and 0.5 less and more.
PARTS: Final = 0.3
USERS: Final = 4.0  # as how many each counts, but for its deviation: one is the least


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


def unevenly_shared(activities: Activities, ports: range) -> Activities:
    """The activities, each of which gets a larger or smaller part than an even one of these resources where it shares
    them, the same ones every time. Alone it gets all of them as before."""
    draws, count = np.random.default_rng(SEED), activities.size
    users = np.maximum(USERS * draws.lognormal(0.0, PARTS, count), 1.0)
    user = np.repeat(np.arange(count), np.diff(activities.demand_start))
    passes = (activities.demand_resource >= ports.start) & (activities.demand_resource < ports.stop)
    many = np.where(passes, users[user], 1.0)
    return replace(
        activities, demand_amount=activities.demand_amount / many, demand_times=activities.demand_times * many
    )
