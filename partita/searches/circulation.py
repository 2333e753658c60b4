"""How often a minibatch's bytes go round at the least, whatever is kept from pass to pass: of all gradients or weights.

shard         once a round                     with every microbatch
none          sums there and back: 2
optimizer     sums there, weights back: 2
gradients     weights back: 1                  sums there: 1
parameters                                     weights there and sums back: 2

`estimates` counts what Programs send, which is more: divided weights are gathered for forward and again for backward,
so that bytes go round 3 times. A bound counts one gather, for weights may stay from pass to pass.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from partita.arrays import Ints, Reals
from partita.plan.memory import Shard
from partita.plan.schedule import Order
from partita.searches.pipes import ORDERS
from partita.searches.space import SHARDS, Space

PARAMETERS, GRADIENTS, OPTIMIZER = Shard.PARAMETERS, Shard.GRADIENTS, Shard.OPTIMIZER
LEAST_ONCE: Final = {Shard.NONE: 2, OPTIMIZER: 2, GRADIENTS: 1, PARAMETERS: 0}
LEAST_EVERY: Final = {Shard.NONE: 0, OPTIMIZER: 0, GRADIENTS: 1, PARAMETERS: 2}


def rounds_of_bytes(space: Space) -> Reals:
    """How often a minibatch's bytes go round, point by point."""
    shard = space.column("shard")
    return _times(LEAST_ONCE, shard) + space.column("microbatches") * _every_pass(space, shard)


def _every_pass(space: Space, shard: Ints) -> Reals:
    """How often a microbatch's do; where W computes again, weights may stay from its B on, and all the while others
    come."""
    off = np.array([order is Order.ZERO_BUBBLE for order in ORDERS])[space.column("schedule")]
    stay = off & (space.column("recompute") > 0) & (shard == SHARDS.index(PARAMETERS))
    found: Reals = _times(LEAST_EVERY, shard) - stay
    return found


def _times(often: dict[Shard, int], shard: Ints) -> Reals:
    """A number for each of some kinds of division, by their places in SHARDS."""
    return np.array([float(often[kind]) for kind in SHARDS])[shard]
