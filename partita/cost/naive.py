"""Two predictions of a step without simulation, which a simulated one has to beat."""

from __future__ import annotations

from partita.cost.costs import Costs
from partita.cost.demand import demand_of
from partita.cost.rings import collective_bytes
from partita.program.instruction import Collective, Compute, Receive, Send, Update
from partita.program.program import Program
from partita.units import Seconds


def naive(program: Program, costs: Costs) -> dict[str, Seconds]:
    """Seconds of a step on the busiest rank: `sum` is computing plus communication at the measured bandwidth, `max` the
    larger of computing and communication at the nominal bandwidth."""
    computing, talking, bare = 0.0, 0.0, 0.0
    costs = costs.among(program.size)
    for role in program.roles:
        for rank in role.ranks:
            own = costs.own(rank)
            work = sum(
                demand_of(own, program, i.act).core for i in role.instructions if isinstance(i.act, Compute | Update)
            )
            bandwidth = min(port.link.bandwidth for port in costs.cluster.climbs[rank])
            payload = min(costs.payload(port) for port in costs.cluster.climbs[rank])
            moved = max(_bytes(program, rank))
            computing = max(computing, work / own.pace(rank) / program.steps)
            talking = max(talking, moved / payload / program.steps)
            bare = max(bare, moved / bandwidth / program.steps)
    return {"sum": computing + talking, "max": max(computing, bare)}


def _bytes(program: Program, rank: int) -> tuple[float, float]:
    """Payload bytes of a rank in a round: (sent, received)."""
    sent = received = 0.0
    for i in program.role_of[rank].instructions:
        if isinstance(i.act, Send):
            sent += program.payload(i.act)
        elif isinstance(i.act, Receive):
            received += program.payload(i.act)
        elif isinstance(i.act, Collective):
            group = next(g for g in i.act.groups if rank in g)
            parts = collective_bytes(program, i.act, len(group))
            sent += parts[group.index(rank)]
            received += parts[group.index(rank) - 1]
    return sent, received
