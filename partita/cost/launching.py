"""Two clocks of an accelerator: what its stream takes, and what launching all that takes of its host."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from partita.cluster.cluster import Cluster
from partita.cost.costs import Costs
from partita.cost.demand import demand_of
from partita.cost.fabric import of_hosts
from partita.program.instruction import Act, Compute, Pack, Update
from partita.program.program import Program, Role


def sides(program: Program, costs: Costs) -> tuple[Costs, ...]:
    """The costs by which a program is to be clocked: the stream's, and those of launching, on the same cluster, where
    some rank's work takes longer to launch than to do. Whichever is slower is never waited for."""
    costs = costs.among(program.size)
    host = costs.launching
    if host is None or not any(_launched(program, role, costs, host) for role in program.roles):
        return (costs,)
    return costs, replace(host, cluster=hosts_of(costs.cluster), wiring=of_hosts(costs.wiring))


def hosts_of(cluster: Cluster) -> Cluster:
    """The cluster as those have it who launch: they are alike, however fast the card that they launch on."""
    if all(device.speed == device.handling == 1.0 for device in cluster.devices):
        return cluster
    return cluster.changed(lambda device: replace(device, speed=1.0, stated=0.0))


def slower(costs: Costs, batch: int) -> Costs:
    """The side on which a step of `batch` samples takes longer: no step takes less than it says, on either side."""
    host, stop = costs.launching, len(costs.graph.operators)
    return host if host and host.segment(0, stop, batch) > costs.segment(0, stop, batch) else costs


def joined(costs: Costs, more: Costs) -> Costs:
    """The costs, and prices of operators that only `more` has."""
    host = costs.launching
    if host and more.launching:
        host = joined(host, more.launching)
    sheets = tuple(joined(one, also) for one, also in zip(costs.sheets, more.sheets, strict=True))
    operators = {**more.operators, **costs.operators}
    return replace(costs, operators=operators, launching=host, sheets=sheets, _sums={})


def _launched(program: Program, role: Role, costs: Costs, host: Costs) -> bool:
    """Whether a round of a role takes longer to launch than to compute, messages apart."""
    counts = Counter(act.segment for act in role.acts(Compute))
    acts: list[tuple[Act, int]] = [(Compute(name, ""), count) for name, count in counts.items()]
    acts += [(i.act, 1) for i in role.instructions if isinstance(i.act, Pack | Update)]
    speed = dict[int, float]()
    for rank in role.ranks:
        sheet = costs.sheet[rank] if costs.sheets else 0
        speed[sheet] = max(speed.get(sheet, 0.0), costs.own(rank).speed(rank))
    for sheet, fastest in speed.items():
        sides = (host.sheets or (host,))[sheet if host.sheets else 0], (costs.sheets or (costs,))[sheet]
        launched, done = (sum(n * demand_of(each, program, act).core for act, n in acts) for each in sides)
        if launched > done / fastest:
            return True
    return False
