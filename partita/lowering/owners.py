"""Which server holds which bucket."""

from __future__ import annotations

from partita.errors import PlanError
from partita.lowering.samples import Draft
from partita.plan.plan import Plan
from partita.program.program import Program

Owners = tuple[int, ...]


def owners_of(draft: Draft, hosts: tuple[int, ...]) -> Owners:
    """The server of each bucket: the one with the fewest bytes so far; -1 of those whose factors workers share."""
    load = dict.fromkeys(hosts, 0)
    owners = []
    for i, bucket in enumerate(draft.buckets):
        if i in draft.factored and not draft.factored[i].served:
            owners.append(-1)
            continue
        host = min(load, key=lambda h: load[h])
        load[host] += bucket.size
        owners.append(host)
    return tuple(owners)


def check_servers(plan: Plan, program: Program) -> None:
    """Raises PlanError for a server on a device of its own that would hold nothing."""
    idle = sum(len(role.ranks) for role in program.roles if not role.instructions)
    if idle:
        parts = len(program.trained)
        raise PlanError(
            f"{plan.name}: {idle} of its servers would have nothing to serve, since there "
            f"{'is 1 bucket' if parts == 1 else f'are {parts} buckets'}; use fewer servers, or smaller buckets"
        )
