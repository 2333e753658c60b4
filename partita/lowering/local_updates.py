"""Plans whose workers step alone and agree on weights: which agreement, and what of it cannot be carried out yet."""

from __future__ import annotations

from collections.abc import Iterator

from partita.cluster.cluster import Cluster
from partita.lowering.averages import averaged
from partita.lowering.elastic import centred, momentum_of
from partita.lowering.exchanges import exchanged
from partita.lowering.pairs import paired, pairs_up
from partita.lowering.samples import Draft
from partita.lowering.shared import races, racing
from partita.plan.plan import Plan, waits_for_all
from partita.plan.rule import momentum_ahead
from partita.plan.sync import AllReduce, Gossip, Neighbours, Payload, Servers, Sync, unread
from partita.program.program import Program


def steps_alone(plan: Plan) -> bool:
    """Whether workers of the plan step alone, with more or less of each other's weights in theirs."""
    if plan.mesh.size == 1 or not plan.sync:
        return False
    sync = plan.sync[0]
    centred = sync.payload in (Payload.ELASTIC, Payload.DUAL) and waits_for_all(plan)
    alike = (Payload.GRADIENT, Payload.FACTOR)
    return centred or races(sync) or (sync.payload not in alike and not isinstance(sync.through, Servers))


def local_updates(draft: Draft, cluster: Cluster, steps: int) -> Program:
    """The round of such a plan; with `steps`, a last one of so few."""
    sync = draft.sync
    if races(sync):
        return racing(draft)
    if pairs_up(sync):
        return paired(draft, steps)
    if isinstance(sync.through, Neighbours | Gossip):
        return exchanged(draft, steps, cluster)
    if sync.payload in (Payload.ELASTIC, Payload.DUAL):
        return centred(draft, steps)
    return averaged(draft, steps or sync.frequency.period or 1)


def local_gaps(sync: Sync) -> Iterator[tuple[bool, str]]:
    """(whether the agreement asks for it, what) of all that these cannot do."""
    through, consistency, frequency, payload = sync.through, sync.consistency, sync.frequency, sync.payload
    near = isinstance(through, Neighbours | Gossip)
    yield not isinstance(through, AllReduce) and not near, f"agreement on {payload} through {type(through).__name__}"
    yield near and payload is not Payload.PARAMETER, f"agreement on {payload} through {type(through).__name__}"
    yield near and sync.wire.collective != "backend", f"the collective {sync.wire.collective!r} between neighbours"
    yield payload is Payload.FACTOR, f"agreement on {payload}"
    yield bool(consistency.staleness or consistency.need) and not pairs_up(sync), "stale or partial agreement"
    yield (
        consistency.lag > 0 and payload is not Payload.DELTA,
        f"lag {consistency.lag} where no gradients or deltas are all-reduced",
    )
    once = frequency.period == 0 and (near or payload not in (Payload.PARAMETER, Payload.DELTA))
    yield once, "agreement once at the end (period 0)"
    yield frequency.fragments > 1 and payload is not Payload.DELTA, "agreement in fragments"
    ignored = unread(sync.outer, payload)
    yield bool(ignored), f"the outer {ignored[0]} with payload={payload}" if ignored else ""


def corrections_gap(plan: Plan) -> bool:
    """Whether the plan changes the rule in a way that no pass brings about: Nesterov's momentum goes with a centre,
    a worker's own ahead of a codec."""
    elastic = steps_alone(plan) and plan.sync[0].payload is Payload.ELASTIC
    known = elastic and momentum_of(plan.update) > 0
    return len(plan.update.corrections) > int(known or momentum_ahead(plan.update)[0] > 0)
