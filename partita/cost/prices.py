"""What the acts of one program need, each price found once for all acts that have it: microbatches do the same again
and again."""

from __future__ import annotations

from collections.abc import Hashable

from partita.cost.costs import Costs, Demand
from partita.cost.wiring import ALONE, circle_of
from partita.program.instruction import Act, Collective, Compute, Load, Pack, Receive, Send
from partita.program.program import Program


class Prices:
    """The demands of acts of a program on these costs; lives for one call."""

    def __init__(self, costs: Costs, program: Program) -> None:
        self.costs, self.program = costs, program
        self.known: dict[Hashable, Demand] = {}

    def of(self, act: Act) -> Demand:
        """What an act needs of each rank, of a collective in its first group. Raises CostError as `Costs.demand`."""
        key = _priced_by(act)
        if key not in self.known:
            among = circle_of(act.groups[0], self.costs.cluster) if isinstance(act, Collective) else ALONE
            self.known[key] = self.costs.demand(self.program, act, among)
        return self.known[key]


def _priced_by(act: Act) -> Hashable:
    """What an act's price depends on, without its place in the round, and whom it goes to."""
    kind = type(act)
    if isinstance(act, Compute):
        return kind, act.segment
    if isinstance(act, Load):
        return kind, act.count, act.fetch
    if isinstance(act, Pack):
        return kind, act.bucket, act.add
    return (kind, act.bucket, act.space) if isinstance(act, Send | Receive) else act
