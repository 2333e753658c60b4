"""What all pipelines have in common: the number of stages, their devices, and where the model is cut."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise, product
from typing import Final

from partita.cluster.cluster import Cluster
from partita.cost.costs import Costs
from partita.errors import PlanError
from partita.graph.graph import Graph
from partita.lowering.schedules import put_off, under_way
from partita.plan.mesh import Mesh, Stage
from partita.plan.plan import Plan
from partita.plan.schedule import Order, Schedule
from partita.plan.sync import Sync
from partita.plan.wire import Wire
from partita.recipes.balance import Blocks, block_partition, blocks_of, by_memory, by_time
from partita.recipes.coded import coded
from partita.recipes.replicas import Layers, replicated_stages
from partita.units import Bytes
from partita.wire.codec import read_codecs

Cutting = Callable[[Graph, Blocks, Sequence[float], Sequence[float], Schedule], tuple[int, ...]]


def pipeline(
    graph: Graph, cluster: Cluster, costs: Costs | None, name: str, order: Order, *, stages: int, data: int,
    microbatches: int, chunks: int = 1, bucket_bytes: Bytes, balance: str = "time", codec: str = "none",
    collective: str = "backend",
) -> Plan:  # fmt: skip
    """`stages` places along the pipe, each with `chunks` stages and `data` replicas (`stages` 0: as many as devices and
    blocks allow). `balance` says by what the model is cut: time, memory or blocks (torchgpipe's rule); replicas
    (PipeDream's) also chooses how many stages there are and how many devices each gets. The replicas of a
    stage sum up gradients by `codec` and by the algorithm `collective`.

    Raises PlanError for numbers that make no pipeline on this cluster, and for a model that cannot be cut.
    """
    if balance not in BALANCES:
        raise PlanError(f"{name}: balance={balance!r}; allowed are {', '.join(BALANCES)}")
    if data < 1 or chunks < 1 or microbatches < 1:
        raise PlanError(f"{name}: data={data}, chunks={chunks}, microbatches={microbatches}; give 1 or more of each")
    if graph.rung == "opaque":
        raise PlanError(
            f"{name} cuts a model into stages, and {graph.name} is one operator, of which only samples can be divided, "
            f"since it cannot be traced ({graph.blind.rstrip('.')}); use a plan without stages, such as ddp"
        )
    batch = graph.minibatch
    blocks = blocks_of(graph, cluster, costs, max(batch // (data * microbatches), 1))
    wire = Wire.even(bucket_bytes, codecs=read_codecs(codec), collective=collective)
    if balance == "replicas":
        if stages or data > 1 or chunks > 1:
            raise PlanError(f"{name}: balance=replicas chooses stages and replicas; leave out stages, data and chunks")
        base = Plan(name, schedule=Schedule(order, microbatches), sync=(Sync(wire=wire),))
        return coded(_replicated(cluster, blocks, base), graph)
    places = stages or min(cluster.size // data, len(blocks.firsts) // chunks)
    if places < 2:
        raise PlanError(
            f"{name}: {cluster.size} devices in {data} replicas, {len(blocks.firsts)} blocks in {chunks} chunks make "
            f"{places} place(s) along the pipe; 2 or more are needed, so ask for fewer replicas or chunks, or use ddp"
        )
    if places * data > cluster.size:
        raise PlanError(f"{name} needs {places} x {data} devices and {cluster.name} has {cluster.size}; ask for fewer")
    ranks = [[place * data + replica for replica in range(data)] for place in range(places)] * chunks
    speeds = [min(cluster.devices[rank].pace for rank in place) for place in ranks]
    widths = [bandwidth_between(cluster, one[0], other[0]) for one, other in pairwise(ranks)]
    schedule = Schedule(order, microbatches, chunks)
    starts = CUTTINGS[balance](graph, blocks, speeds, widths, schedule)
    made = Plan(
        name, Mesh((("pipe", places), ("data", data))),
        stages=tuple(Stage(blocks.firsts[start] if start else "") for start in starts),
        schedule=schedule,
        sync=(Sync(wire=wire),),
    )  # fmt: skip
    return coded(made, graph)


def _replicated(cluster: Cluster, blocks: Blocks, plan: Plan) -> Plan:
    """The plan with PipeDream's stages (PP-05), as if all devices were the slowest and all links the narrowest; a
    microbatch bears its part of the minibatch's one agreement. Where one stage on all devices is best, without any."""
    devices, m = range(cluster.size), plan.schedule.microbatches
    slowest = min(device.pace for device in cluster.devices)
    width = min((bandwidth_between(cluster, one, other) for one, other in pairwise(devices)), default=float("inf"))
    seconds, crossing = [second / slowest for second in blocks.seconds], [*blocks.crossing[1:], 0]
    _, found = replicated_stages(Layers(seconds, crossing, [size // m for size in blocks.state]), len(devices), width)
    if len(found) == 1:
        return replace(plan, mesh=Mesh((("data", len(devices)),)), schedule=Schedule())
    stops = list(accumulate(stage.replicas for stage in found))
    stages = tuple(
        Stage(blocks.firsts[stage.start] if stage.start else "", tuple(range(stop - stage.replicas, stop)))
        for stage, stop in zip(found, stops, strict=True)
    )
    return replace(plan, mesh=Mesh((("pipe", len(stages)),)), stages=stages)


def bandwidth_between(cluster: Cluster, source: int, target: int) -> float:
    """Bytes a second of the narrowest link between two ranks."""
    if source == target:
        return float("inf")
    climb, descent = cluster.route(source, target)
    return min(port.link.bandwidth for port in (*climb, *descent))


def _memory(
    graph: Graph, blocks: Blocks, speeds: Sequence[float], widths: Sequence[float], schedule: Schedule
) -> tuple[int, ...]:
    """Of weights, gradients and what the optimizer keeps, of the microbatches under way when a place's first backward
    pass begins, and of those whose W then waits."""
    chunks, places = schedule.chunks, len(speeds) // schedule.chunks
    each = [under_way(schedule.order, places, rank, schedule.microbatches, chunks) for rank in range(places)]
    in_flight = [each[rank][chunk] for chunk, rank in product(range(chunks), range(places))]
    waiting = [put_off(schedule.order, places, rank, schedule.microbatches) for rank in range(places)] * chunks
    return by_memory(blocks, in_flight, 2 + graph.state_factor, waiting)


CUTTINGS: dict[str, Cutting] = {
    "time": lambda graph, blocks, speeds, widths, schedule: by_time(blocks, speeds, widths),
    "memory": _memory,
    "blocks": lambda graph, blocks, speeds, widths, schedule: block_partition(blocks.seconds, len(speeds)),
}
BALANCES: Final = (*CUTTINGS, "replicas")
