"""What of a legal plan no pass brings about yet: pairs of whether the plan asks for it, and what, in words.

The `..._gaps` of one way to agree stand with it; here are those of the others, and `refuse`, which asks all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from partita.errors import LoweringError
from partita.graph.graph import Graph
from partita.lowering.async_servers import loose_gaps
from partita.lowering.chain import chain_gaps
from partita.lowering.coding_gaps import (
    ahead_gap,
    check_streams,
    check_sums,
    coded_twice,
    own_gradient_gaps,
    server_gaps,
    weight_gap,
)
from partita.lowering.coupled import check_coupled
from partita.lowering.factors import base_of, factor_gaps
from partita.lowering.local_updates import corrections_gap, local_gaps, steps_alone
from partita.lowering.mixing_matrices import check_graph
from partita.lowering.ordering import ordering_gaps
from partita.lowering.precision import check_captured, precision_gaps
from partita.lowering.schedules import ROWS
from partita.lowering.shared import races, racing_gaps
from partita.lowering.statistics import statistics_gaps
from partita.lowering.tiers import fans_out
from partita.plan.memory import Shard
from partita.plan.mesh import Split
from partita.plan.plan import COMPILED, DEFERRED, Plan, agreement_of, alone, replicas_of, waits_for_all
from partita.plan.schedule import Schedule, Versions
from partita.plan.sync import AllReduce, Outer, Payload, Servers, Sync
from partita.wire.algorithms import BACKEND
from partita.wire.codec import SPECS


def refuse(graph: Graph, plan: Plan) -> None:
    """Raises LoweringError naming the first part of the plan that cannot be carried out yet."""
    check_coupled(graph, plan)
    factored, plan = tuple(factor_gaps(graph, plan)), base_of(plan)
    loose = not waits_for_all(plan)
    check_sums(plan)
    for one in plan.sync:
        check_graph(plan.name, one)
    check_streams(plan)
    check_captured(graph, plan)
    known = ("data", "pipe") if plan.stages else ("data",)
    others = [axis for axis, length in plan.mesh.axes if axis not in known and length > 1]
    cases: tuple[tuple[bool, str], ...] = (
        (bool(others), f"the mesh axis {others[0]!r}" if others else ""),
        *factored,
        (any(split.dim != "sample" for split in plan.splits), "splits of other dimensions than samples"),
        (plan.splits != (Split(),), "samples divided for some operators or ranks only"),
        *_agreement_gaps(graph, plan),
        *_pipeline_gaps(plan),
        *_shard_gaps(plan),
        (bool(plan.memory.offload) or plan.memory.tiles > 1, "offloading or tiles"),
        *precision_gaps(graph, plan),
        *statistics_gaps(graph, plan),
        ahead_gap(plan),
        weight_gap(graph, plan),
        (not loose and corrections_gap(plan), "corrections of the update rule"),
        (plan.update.growth != 1 or bool(plan.update.grow_at), "a batch that grows"),
        (plan.update.local_state != "keep", f"a local state that is {plan.update.local_state}"),
        (bool(set(plan.kernels) - {DEFERRED, COMPILED}), "kernel choices"),
    )
    for given, what in cases:
        if given:
            raise LoweringError(
                f"{plan.name} asks for {what}, which this version cannot carry out yet; "
                "`partita recipes` lists what runs"
            )


def _agreement_gaps(graph: Graph, plan: Plan) -> Iterator[tuple[bool, str]]:
    """Of how replicas agree."""
    sync = Sync() if alone(plan) else agreement_of(plan)
    through, wire, alike = sync.through, sync.wire, not steps_alone(plan)
    yield sync.parameters != "*", f"agreement on the parameters {sync.parameters!r} only"
    if waits_for_all(plan):
        yield from racing_gaps(graph, plan) if races(sync) else _step_gaps(sync) if alike else local_gaps(sync)
        yield sync.frequency.fetch > 1, f"weights fetched every {sync.frequency.fetch} steps"
    else:
        yield from loose_gaps(graph, plan)
    serves = isinstance(through, Servers)
    bounded = bool(graph.clip_norm) or graph.weight is not None
    yield fans_out(through) and bounded, "weighted losses or a bound on the norm of gradients under servers in levels"
    changes = sync.payload is Payload.DELTA
    plain = isinstance(through, AllReduce) and (changes or (sync.payload is Payload.GRADIENT and alike))
    pushed = plain or _sums_at_servers(plan) or (serves and not waits_for_all(plan))
    yield bool(wire.codecs) and not pushed, "codecs where no gradients or changes of weights are all-reduced"
    if wire.codecs and plain and changes:
        yield from own_gradient_gaps(plan)
    unknown = [codec.name for codec in wire.codecs if codec.name not in SPECS]
    yield bool(unknown), f"the codec {unknown[0]}" if unknown else ""
    if serves:
        yield from server_gaps(graph, plan)
        yield from chain_gaps(graph, plan)
    else:
        yield any(codec.where == "server" for codec in wire.codecs), "codecs of servers"
        yield len(wire.codecs) > 1 and not coded_twice(wire), "several codecs, one after the other"
    differs = any(codec.difference for codec in wire.codecs)
    yield differs and coded_twice(wire), "a codec of differences whose sums are encoded once more"
    yield wire.collective != BACKEND and serves, f"the collective {wire.collective!r} through servers"
    yield from ordering_gaps(plan)


def _step_gaps(sync: Sync) -> Iterator[tuple[bool, str]]:
    """Of an agreement on every step's gradients."""
    through, serves = sync.through, isinstance(sync.through, Servers)
    consistency, frequency = sync.consistency, sync.frequency
    yield not isinstance(through, AllReduce | Servers), f"agreement through {type(through).__name__}"
    yield sync.payload is not Payload.GRADIENT, f"agreement on {sync.payload}"
    plain = not isinstance(through, Servers) or (
        through.levels == 1 or (through.levels, through.count, through.own, through.replicas) == (2, 1, True, 1)
    )
    yield not plain, "servers in levels"
    yield bool(consistency.staleness or consistency.need), "stale or partial agreement"
    yield consistency.lag > 0 and serves, f"lag {consistency.lag} where no gradients are all-reduced"
    yield frequency.period == 0, "agreement once at the end (period 0)"
    yield frequency.period > 1, f"gradients agreed on every {frequency.period} steps"
    yield frequency.fragments > 1, "agreement in fragments"
    yield sync.outer != Outer(), "outer optimizers"


def _sums_at_servers(plan: Plan) -> bool:
    """Whether servers sum the gradients of all workers, step by step and each by itself."""
    sync, through = plan.sync[0], plan.sync[0].through
    apart = isinstance(through, Servers) and through.levels * through.replicas == 1
    return apart and sync.payload is Payload.GRADIENT and waits_for_all(plan)


def _pipeline_gaps(plan: Plan) -> Iterator[tuple[bool, str]]:
    """Of stages, and of their order of passes."""
    schedule, sync = plan.schedule, agreement_of(plan)
    if not plan.stages:
        yield replace(schedule, microbatches=1) != Schedule(), "the order of passes of a pipeline, without stages"
        return
    yield schedule.order not in ROWS, f"stages in the order {schedule.order}"
    yield not schedule.flush or schedule.versions is not Versions.LATEST, "pipelines without a flush every step"
    yield schedule.in_flight > 0 or schedule.update_every > 0, "pipelines with their own number of passes in flight"
    yield not isinstance(sync.through, AllReduce) or sync.payload is not Payload.GRADIENT, "stages without all-reduce"
    yield sync.consistency.lag > 0, "late gradients between stages"
    yield not plan.sync and max(replicas_of(plan)) > 1, "replicas of stages that never agree"
    yield from own_gradient_gaps(plan)


def _shard_gaps(plan: Plan) -> Iterator[tuple[bool, str]]:
    """Of state that is divided among ranks."""
    sync, over, shards = agreement_of(plan), plan.memory.over, plan.memory.shard is not Shard.NONE
    summed = bool(plan.sync) and isinstance(sync.through, AllReduce) and sync.payload is Payload.GRADIENT
    yield shards and plan.mesh.size > 1 and not summed, "sharded state where no gradients are all-reduced"
    yield shards and sync.consistency.lag > 0, "sharded state with late gradients"
    scheduled = sync.wire.collective != BACKEND or sync.wire.by_size != ()
    yield shards and scheduled, f"sharded state with the collective {sync.wire.collective!r}"
    if shards and not plan.stages:
        yield from own_gradient_gaps(plan)
    unlike = any(stage.ranks for stage in plan.stages) and plan.memory.shard is not Shard.OPTIMIZER
    yield shards and unlike, "sharded gradients of replicas that take turns"
    yield shards and over != "data", f"state sharded over the axis {over!r}"
