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

from partita.arrays import Reals
from partita.plan.memory import Shard
from partita.plan.schedule import Order
from partita.searches.space import Space, divides

PARAMETERS, GRADIENTS, OPTIMIZER = Shard.PARAMETERS, Shard.GRADIENTS, Shard.OPTIMIZER
LEAST_ONCE: Final = {Shard.NONE: 2, OPTIMIZER: 2, GRADIENTS: 1, PARAMETERS: 0}
LEAST_EVERY: Final = {Shard.NONE: 0, OPTIMIZER: 0, GRADIENTS: 1, PARAMETERS: 2}


def rounds_of_bytes(space: Space) -> Reals:
    """How often a minibatch's bytes go round, point by point."""
    return space.by_shard(LEAST_ONCE) + space.column("microbatches") * _every_pass(space)


def _every_pass(space: Space) -> Reals:
    """How often a microbatch's do; where W computes again, weights may stay from its B on, and all the while others
    come."""
    again = space.ordered(Order.ZERO_BUBBLE) & (space.column("recompute") > 0)
    found: Reals = space.by_shard(LEAST_EVERY) - (again & divides(space.column("shard"), PARAMETERS))
    return found
