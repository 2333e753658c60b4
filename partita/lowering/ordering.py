"""Which ready message goes first, where the lanes of lockstep servers choose: a pass over their finished Program.

backward makes   b0 b1 b2 b3         push     S0 S3 S2 S1        the most urgent of what is packed
forward needs    b3 b2 b1 b0         from w   whichever comes    a server has asked for all, so no order can be wrong
                                     serve    C0 U0 C3 U3 ..     of what is complete, the most urgent
                                     to w     D0 D3 ..
                                     pull     whichever comes, once backward has read the old one for the last time

priority            by the layers' order in forward (P3)
credit              so too, and pushes of all servers in one lane with so many bytes in flight (ByteScheduler); where
                    gradients are all-reduced, ranks agree on what goes next (`negotiation`)
tic, tac            pushes as they come, answers by what forward's operators wait for (TicTac)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from partita.cluster.cluster import Cluster
from partita.cost.datasheet import operator_seconds
from partita.graph.graph import Graph
from partita.lowering.layout import readers_of
from partita.lowering.negotiation import negotiated, negotiates
from partita.lowering.readers import reads_of
from partita.lowering.samples import Draft
from partita.lowering.tictac import Needs, tac, tic
from partita.plan.memory import Shard
from partita.plan.plan import Plan, agreement_of, alone, waits_for_all
from partita.plan.sync import AllReduce, Payload, Servers, Sync
from partita.plan.wire import Priority
from partita.program.instruction import After, Clip, Instruction, Receive
from partita.program.layout import Bucket
from partita.program.program import Lane, Policy, Program, Role
from partita.program.space import Space
from partita.units import Bytes, BytesPerSecond
from partita.wire.algorithms import BACKEND

SENDING: Final = ("push", "serve", "to")
ARRIVING: Final = ("from", "pull", "apply")


def ordered(program: Program, draft: Draft, cluster: Cluster) -> Program:
    """The program with lanes that choose by the plan's order, if it has one of its own."""
    wire, through = draft.sync.wire, draft.sync.through
    chooses = isinstance(through, Servers) and wire.order is not Priority.FIFO
    if alone(draft.plan) or not (chooses or negotiates(draft.sync)):
        return program
    places = dict(zip((b.name for b in draft.buckets), urgency(draft, cluster), strict=True))
    if not chooses:
        return negotiated(program, draft, places)
    first = ("serve", "to") if wire.order in (Priority.TIC, Priority.TAC) else SENDING
    roles = tuple(_chosen(program, draft.graph, role, places, first) for role in program.roles)
    return replace(program, roles=tuple(_pooled(role, wire.credit_bytes) for role in roles))


def ordering_gaps(plan: Plan) -> Iterator[tuple[bool, str]]:
    """(whether the agreement asks for it, what) of orders that no lanes bring about yet."""
    sync = Sync() if alone(plan) else agreement_of(plan)
    wire, through, summed = sync.wire, sync.through, sync.payload is Payload.GRADIENT and waits_for_all(plan)
    served = isinstance(through, Servers) and through.levels * through.replicas == 1 and summed
    ahead = isinstance(through, AllReduce) and summed and wire.order in (Priority.PRIORITY, Priority.CREDIT)
    yield wire.order is not Priority.FIFO and not (served or ahead), f"message order {wire.order}"
    yield wire.credit_bytes > 0 and wire.order is not Priority.CREDIT, "a credit without the order of one"
    yield wire.negotiate and not (isinstance(through, AllReduce) and summed), "negotiation where nothing is all-reduced"
    by_itself = wire.negotiate and wire.collective == BACKEND
    yield by_itself, "the backend's own sums (not collective=ring) in an order that ranks agree on"
    other = plan.stages or wire.codecs or plan.memory.shard is not Shard.NONE
    yield negotiates(sync) and bool(other), "negotiated sums with stages, codecs or sharded state"


def urgency(draft: Draft, cluster: Cluster) -> tuple[int, ...]:
    """A number for each bucket: the lower, the sooner its message should go."""
    order, buckets, graph = draft.sync.wire.order, draft.buckets, draft.graph
    at = readers_of(graph, buckets)
    forward = sorted(range(len(buckets)), key=lambda i: (at[i], i))
    if order not in (Priority.TIC, Priority.TAC):
        return tuple(forward.index(i) for i in range(len(buckets)))
    needs = needs_of(graph, [buckets[i] for i in forward], cluster, max(segment.batch for segment in draft.segments))
    speed = bandwidth_of(cluster)
    places = (
        tic(needs, len(forward)) if order is Priority.TIC else tac(needs, [buckets[i].size / speed for i in forward])
    )
    return tuple(places[forward.index(i)] for i in range(len(buckets)))


def bandwidth_of(cluster: Cluster) -> BytesPerSecond:
    """What the slowest port on the way to the first device lets through."""
    return min(port.link.bandwidth for port in cluster.climbs[0])


def needs_of(graph: Graph, buckets: list[Bucket], cluster: Cluster, batch: int) -> Needs:
    """Seconds of forward's operators by the buckets that they wait for, from data sheets."""
    holds: dict[str, frozenset[int]] = {}
    for i, bucket in enumerate(buckets):
        for piece in bucket.pieces:
            holds[piece.parameter] = holds.get(piece.parameter, frozenset()) | {i}
    found: dict[frozenset[int], float] = {}
    device = cluster.devices[0]
    for operator in graph.operators[: graph.forward_length]:
        needs = frozenset[int]().union(*(holds.get(ref.name, frozenset()) for ref in operator.reads()))
        holds[operator.name] = needs
        found[needs] = found.get(needs, 0.0) + operator_seconds(device, operator, graph, batch)
    return {needs: seconds for needs, seconds in found.items() if needs}


def _chosen(program: Program, graph: Graph, role: Role, places: Mapping[str, int], first: tuple[str, ...]) -> Role:
    """A role whose lanes of messages choose. What a lane's order said of one bucket, `after` says now."""
    bounded = {i.lane for i in role.instructions if isinstance(i.act, Clip)}
    policy = {lane.name: _policy(lane.name, bounded) for lane in role.lanes}
    readers = reads_of(program, graph, role, program.trained) if role.keeps == "model" else {}
    before: dict[tuple[str, str], str] = {}
    body = []
    for one in role.instructions:
        bucket = _bucket(program, one)
        if bucket and policy[one.lane] is not Policy.ORDER:
            own = before.get((one.lane, bucket))
            before[one.lane, bucket] = one.name
            waits = tuple(map(After, filter(None, [own])))
            if isinstance(one.act, Receive) and one.act.space is Space.PARAMETER and readers.get(bucket):
                one = replace(one, after=(After(readers[bucket][-1]),))
            place = places.get(bucket, -1) if one.lane.startswith(first) else 0
            one = replace(one, after=tuple(dict.fromkeys((*one.after, *waits))), priority=place)
        body.append(one)
    return replace(
        role, instructions=tuple(body), lanes=tuple(Lane(lane.name, policy[lane.name]) for lane in role.lanes)
    )


def _pooled(role: Role, credit: Bytes) -> Role:
    """With a credit, a worker's pushes to all servers in one lane that has it; a server takes as much of each."""
    if not credit:
        return role
    body = [replace(i, lane="push") if i.lane.startswith("push") else i for i in role.instructions]
    lanes = [
        replace(lane, credit=credit) if lane.name.startswith("from") else lane
        for lane in role.lanes
        if not lane.name.startswith("push")
    ]
    own = (Lane("push", Policy.PRIORITY, credit),) if len(lanes) < len(role.lanes) else ()
    return replace(role, instructions=tuple(body), lanes=(*lanes, *own))


def _policy(lane: str, bounded: set[str]) -> Policy:
    if lane in bounded or not lane.startswith((*SENDING, *ARRIVING)):
        return Policy.ORDER
    return Policy.PRIORITY if lane.startswith(SENDING) else Policy.ARRIVAL


def _bucket(program: Program, one: Instruction) -> str:
    """The bucket that an instruction is about, also where it moves a coding of it."""
    name = getattr(one.act, "bucket", "")
    return program.coding[name].bucket if name in program.coding else name
