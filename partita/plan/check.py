"""Checks a plan for contradictions with itself, the graph or the cluster; each has its own sentence."""

from __future__ import annotations

from math import frexp
from typing import Final

from partita.cluster.cluster import Cluster
from partita.errors import PlanError
from partita.graph.graph import Graph
from partita.graph.homes import stage_starts
from partita.plan.formats import check_formats
from partita.plan.idle import check_idle
from partita.plan.memory import Precision
from partita.plan.parts import check_parts
from partita.plan.plan import Plan, Rule, own_servers, ranks_of
from partita.plan.rule import momentum_ahead
from partita.plan.schedule import Order
from partita.plan.sync import DIRECTIONS, Gossip, Payload, Servers, SharedMemory, Sync
from partita.plan.wire import PLACES, Wire

MOST_LAG: Final = 1000
MOST_PERIOD: Final = 10_000
MOST_LEVELS: Final = 8
SETTINGS: Final[dict[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {  # settings that each needs, and may have
    "delay": (("strength",), ("decay",)), "staleness": ((), ()), "momentum": (("factor",), ("nesterov",)),
    "nesterov": (("momentum",), ()),
}  # fmt: skip


def check(plan: Plan, graph: Graph, cluster: Cluster) -> None:
    """Raises PlanError, which says what was given and the nearest thing that is allowed."""
    _mesh(plan, cluster)
    check_parts(plan, graph)
    for sync in plan.sync:
        _sync(plan, sync)
    _update(plan)
    _memory(plan)
    _stages(plan, graph)
    _machine(plan, cluster)
    check_formats(plan, cluster)
    check_idle(plan, cluster)
    for phase in plan.before:
        if phase.steps < 1:
            raise PlanError(f"{plan.name}: a phase lasts {phase.steps} steps; give it 1 or more, or leave it out")
        if phase.plan.before:
            raise PlanError(f"{plan.name}: the phase {phase.plan.name} has phases before it; put them into one list")
        check(phase.plan, graph, cluster)


def _mesh(plan: Plan, cluster: Cluster) -> None:
    for sync in plan.sync:
        if isinstance(sync.through, Servers) and sync.through.levels > MOST_LEVELS:
            raise PlanError(f"{plan.name}: {sync.through.levels} levels of servers; {MOST_LEVELS} at most are allowed")
        if sync.over != "data":
            raise PlanError(f"{plan.name} agrees over the mesh axis {sync.over!r}; replicas agree over 'data'")
    asked = ranks_of(plan)
    if asked > cluster.size:
        axes = " x ".join(f"{name} {length}" for name, length in plan.mesh.axes) or "1 rank"
        raise PlanError(
            f"{plan.name} needs {asked} devices ({axes}, servers {own_servers(plan)}) and {cluster.name} has "
            f"{cluster.size}; lower a degree or take a larger cluster"
        )
    for name, length in plan.mesh.axes:
        if length < 1:
            serve = _serving(plan)
            raise PlanError(f"{plan.name}: mesh axis {name!r} has length {length}; 1 or more is allowed{serve}")
    names = [name for name, _ in plan.mesh.axes]
    if len(set(names)) < len(names):
        raise PlanError(f"{plan.name} names its mesh axes {names}; give each axis a name of its own")
    known = {*names, "data"}
    for axis in [split.axis for split in plan.splits] + [plan.memory.over]:
        if axis not in known:
            raise PlanError(
                f"{plan.name} speaks of mesh axis {axis!r}, which its mesh does not have; it has {sorted(known)}"
            )


def _serving(plan: Plan) -> str:
    """Which devices are left to no worker, and what to do: there may be as few servers as there can be already."""
    serving, through = own_servers(plan), [sync.through for sync in plan.sync if isinstance(sync.through, Servers)]
    fewer = "ask for fewer servers, or " if serving > max((t.levels for t in through), default=0) else ""
    serve = "1 device serves" if serving == 1 else f"{serving} devices serve"
    return f", and {serve}: {fewer}take a cluster of {serving + 1} devices or more" if serving else ""


def _memory(plan: Plan) -> None:
    memory = plan.memory
    if memory.ahead < 1:
        raise PlanError(f"{plan.name}: weights are gathered {memory.ahead} buckets ahead; 1 or more are allowed")
    if memory.keep < 0:
        raise PlanError(f"{plan.name}: keep={memory.keep}; 0 or more buckets are allowed")
    if memory.budget < 0 or memory.loss_scale < 0:
        raise PlanError(
            f"{plan.name}: budget {memory.budget:g}, loss_scale {memory.loss_scale:g}; 0 or more are allowed"
        )
    if (memory.loss_scale and frexp(memory.loss_scale)[0] != 0.5) or memory.scale_window < 0:
        raise PlanError(
            f"{plan.name}: loss_scale {memory.loss_scale:g}, scale_window {memory.scale_window}; give a power of two, "
            "by which numbers divide exactly, and 0 steps or more"
        )
    if memory.sums not in (Precision.TASK, Precision.FP32):
        raise PlanError(f"{plan.name} sums gradients in {memory.sums}; use sums=fp32, or leave it out")


def _stages(plan: Plan, graph: Graph) -> None:
    if plan.schedule.order is not Order.SEQUENTIAL and len(plan.stages) < 2 and plan.mesh.length("pipe") < 2:
        raise PlanError(
            f"{plan.name} has the pipeline schedule {plan.schedule.order} and one stage; add stages or a pipe axis"
        )
    if not plan.stages:
        return
    asked, pipe, chunks = len(plan.stages), plan.mesh.length("pipe"), plan.schedule.chunks
    if chunks < 1 or asked != pipe * chunks:
        raise PlanError(
            f"{plan.name} has {asked} stages and its mesh {pipe} places along the pipe x {chunks} chunks = "
            f"{pipe * chunks}; give one stage for each"
        )
    if chunks > 1 and plan.schedule.order is not Order.INTERLEAVED:
        raise PlanError(f"{plan.name} has {chunks} chunks a rank in the order {plan.schedule.order}; use interleaved")
    _replicas(plan)
    try:
        stage_starts(graph, [stage.first for stage in plan.stages])
    except PlanError as error:
        raise PlanError(f"{plan.name}: {error}") from None


def _replicas(plan: Plan) -> None:
    given = [stage.ranks for stage in plan.stages]
    placed = sorted(rank for ranks in given for rank in ranks)
    if not placed:
        return
    if not all(given) or placed != list(range(len(placed))):
        raise PlanError(
            f"{plan.name} puts its stages on the ranks {given}; give each stage ranks of its own, 0, 1, ... in all, or "
            "none of them any"
        )
    if plan.mesh.length("data") > 1 or plan.schedule.chunks > 1:
        raise PlanError(
            f"{plan.name} gives its stages ranks and has {plan.mesh.length('data')} replicas on its mesh, "
            f"{plan.schedule.chunks} chunks a rank; leave out the ranks, or use 1 of both"
        )
    most = max(map(len, given))
    if plan.schedule.microbatches < most:
        raise PlanError(
            f"{plan.name} deals {plan.schedule.microbatches} microbatches out to {most} replicas of a stage; use "
            f"{most} microbatches or more"
        )


def _sync(plan: Plan, sync: Sync) -> None:
    through = sync.through
    _pace(plan, sync)
    if isinstance(through, Gossip):
        _gossip(plan, through)
    if isinstance(through, Servers):
        _servers(plan, through)
    if isinstance(through, SharedMemory) and sync.payload is not Payload.GRADIENT:
        raise PlanError(f"{plan.name}: shared memory takes gradients, not {sync.payload}; use payload=gradient")
    _outer(plan, sync)
    _wire(plan, sync.wire)


def _pace(plan: Plan, sync: Sync) -> None:
    """How often replicas agree, and how far apart they may go meanwhile."""
    consistency, frequency = sync.consistency, sync.frequency
    if consistency.lag < 0 or consistency.staleness < -1 or consistency.need < 0:
        raise PlanError(
            f"{plan.name}: lag {consistency.lag}, staleness {consistency.staleness}, need {consistency.need}; "
            "none may be negative (staleness -1: no bound)"
        )
    if consistency.lag > MOST_LAG or frequency.period > MOST_PERIOD:
        raise PlanError(
            f"{plan.name}: lag {consistency.lag}, period {frequency.period}; up to {MOST_LAG} gradients in flight and "
            f"{MOST_PERIOD} steps of a period are allowed"
        )
    if consistency.need > plan.mesh.size:
        raise PlanError(f"{plan.name} needs {consistency.need} of {plan.mesh.size} workers; use that many or fewer")
    if consistency.late not in ("drop", "keep"):
        raise PlanError(f"{plan.name}: late contributions are {consistency.late!r}; drop and keep are allowed")
    if frequency.period < 0 or min(frequency.fragments, frequency.fetch) < 1:
        raise PlanError(
            f"{plan.name}: period {frequency.period}, {frequency.fragments} fragments, fetch {frequency.fetch}; "
            "1 or more are allowed, and period 0 for once at the end"
        )
    if (
        sync.payload is Payload.DELTA
        and frequency.period
        and max(consistency.lag, frequency.fragments) > frequency.period
    ):
        raise PlanError(
            f"{plan.name}: {frequency.fragments} fragments and lag {consistency.lag} in a period of {frequency.period} "
            f"steps; at most {frequency.period} fragments and a lag of {frequency.period} are allowed"
        )


def _outer(plan: Plan, sync: Sync) -> None:
    outer = sync.outer
    if min(outer.rate, outer.momentum, outer.penalty) < 0 or not 0 <= outer.keep <= 1:
        raise PlanError(
            f"{plan.name}: outer rate {outer.rate:g}, momentum {outer.momentum:g}, penalty {outer.penalty:g}, keep "
            f"{outer.keep:g}; none may be negative, and keep is 1 at most, the share of a worker's own weights"
        )
    if sync.payload is Payload.ELASTIC and outer.rate > 1:
        raise PlanError(
            f"{plan.name}: a moving rate of {outer.rate:g} carries workers beyond the centre; use rate=1 or less, "
            "or 0 for 0.9 over the number of workers"
        )
    if sync.payload is Payload.DUAL and outer.penalty <= 0:
        raise PlanError(f"{plan.name}: a penalty of {outer.penalty}; multipliers need one above 0")


def _wire(plan: Plan, wire: Wire) -> None:
    if min(wire.bucket_bytes, wire.first_bucket_bytes, wire.slice_bytes, wire.credit_bytes) < 0:
        raise PlanError(
            f"{plan.name}: bucket_bytes {wire.bucket_bytes} (the first {wire.first_bucket_bytes}), slice_bytes "
            f"{wire.slice_bytes}, credit_bytes {wire.credit_bytes}; 0 or more are allowed"
        )
    for codec in wire.codecs:
        if codec.where not in PLACES:
            raise PlanError(f"{plan.name} applies {codec.name} at {codec.where!r}; {', '.join(PLACES)} are allowed")


def _update(plan: Plan) -> None:
    update = plan.update
    if update.warmup < 0 or not update.scale > 0 or not update.trust > 0:
        raise PlanError(
            f"{plan.name}: warmup {update.warmup}, scale {update.scale}, trust {update.trust}; warmup is 0 or more "
            "steps, the others are above 0"
        )
    for one in update.corrections:
        needed, other = SETTINGS.get(one.name, ((), ()))
        given = [name for name, _ in one.settings]
        if one.name not in SETTINGS or not {*needed} <= {*given} <= {*needed, *other}:
            known = "; ".join(f"{name}: {', '.join((*a, *b)) or 'no settings'}" for name, (a, b) in SETTINGS.items())
            raise PlanError(f"{plan.name}: the correction {one.name!r} with {given}; allowed are {known}")
        if any(value < 0 for _, value in one.settings):
            raise PlanError(f"{plan.name}: a setting of {one.name!r} is below 0; give 0 or more")
        if (decay := dict(one.settings).get("decay", 0.0)) > 1:
            raise PlanError(f"{plan.name}: a running mean with a decay of {decay:g}; 0 to 1 are allowed, such as 0.95")
    if momentum_ahead(update)[0] and update.rule is not Rule.TASK:
        raise PlanError(
            f"{plan.name} applies the task's momentum before its codec, and rule={update.rule} has one of its own; "
            "leave the rule out, or use another codec, such as topk"
        )
    if update.local_state not in ("keep", "reset"):
        raise PlanError(f"{plan.name}: a local state that is {update.local_state!r}; keep and reset are allowed")


def _servers(plan: Plan, servers: Servers) -> None:
    if servers.count < 1:
        raise PlanError(f"{plan.name}: {servers.count} servers; 1 or more are allowed")
    if servers.count > max(plan.mesh.size, servers.count * servers.own):
        raise PlanError(
            f"{plan.name}: {servers.count} servers cannot share {plan.mesh.size} workers' devices; "
            "use fewer or own=true"
        )
    if servers.at and (servers.own or sorted({*servers.at} & {*range(plan.mesh.size)}) != sorted(servers.at)):
        raise PlanError(
            f"{plan.name} puts servers at the ranks {list(servers.at)} of {plan.mesh.size} workers, own="
            f"{str(servers.own).lower()}; name ranks of workers, each once, with own=false"
        )
    if servers.at and len(servers.at) != servers.count:
        raise PlanError(f"{plan.name} has {servers.count} servers at {len(servers.at)} ranks; name one for each")
    if min(servers.replicas, servers.levels) < 1:
        raise PlanError(
            f"{plan.name}: {servers.replicas} replicas of a server, {servers.levels} levels; 1 or more are allowed"
        )
    if servers.levels > 1 and not 1 <= servers.fan <= plan.mesh.size:
        raise PlanError(
            f"{plan.name}: {servers.fan} servers under each, over {plan.mesh.size} workers; 1 to as many as there are "
            "workers are allowed"
        )


def _machine(plan: Plan, cluster: Cluster) -> None:
    shared = [sync.through for sync in plan.sync if isinstance(sync.through, SharedMemory)]
    if not shared:
        return
    ranks, devices = range(plan.mesh.size), cluster.devices
    if len({cluster.machines[rank] for rank in ranks}) > 1 or any(devices[rank].backend != "cpu" for rank in ranks):
        raise PlanError(
            f"{plan.name} shares the memory of {plan.mesh.size} workers, and those of {cluster.name} are no processors "
            f"of one machine; use a cluster such as local:{plan.mesh.size}, or ps_async"
        )
    if shared[0].dtype not in ("", "bfloat16"):
        raise PlanError(f"{plan.name} shares weights in {shared[0].dtype!r}; bfloat16 is allowed, or their own dtype")


def _gossip(plan: Plan, gossip: Gossip) -> None:
    if gossip.direction not in DIRECTIONS:
        known = ", ".join(DIRECTIONS)
        raise PlanError(f"{plan.name}: gossip in the direction {gossip.direction!r}; allowed are {known}")
    if min(gossip.partners, gossip.draws) < 1:
        raise PlanError(f"{plan.name}: {gossip.partners} partners, {gossip.draws} draws; 1 or more are allowed")
    most = 1 if gossip.direction == "pair" else max(plan.mesh.size - 1, 1)
    if gossip.partners > most:
        pairs = " that average in pairs" if gossip.direction == "pair" else ""
        raise PlanError(f"{plan.name}: {gossip.partners} partners of {plan.mesh.size} workers{pairs}; {most} at most")
