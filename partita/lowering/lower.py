"""Plan -> Program: what each rank computes, then what agreement adds to it, then the updates; `verify` judges.

recomputation  what backward computes again of forward       -> another step, whose segments are run
samples        who takes which part of the minibatch         -> roles with Load, F, B
agreement      one of: nothing, all-reduce, servers, average -> Pack, Collective | Send, Receive, Combine | Scale, Mix
updates        Clip, Update after what completes a bucket
final round    where replicas still differ after the last one: what brings them together
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from partita.cluster.cluster import Cluster
from partita.errors import LoweringError
from partita.graph.graph import Graph
from partita.lowering.agreement import all_reduced, unsynchronised
from partita.lowering.async_servers import loose_gaps, waits_for_all
from partita.lowering.chain import chain_gaps
from partita.lowering.coding import ahead_gap, check_streams, coded_twice, own_gradient_gaps, server_gaps, weight_gap
from partita.lowering.coupled import check_coupled
from partita.lowering.factors import Factors, base_of, factor_gaps, factors_of
from partita.lowering.final_round import final_round
from partita.lowering.half_sums import half_sums
from partita.lowering.local_updates import corrections_gap, local_gaps, local_updates, steps_alone
from partita.lowering.ordering import ordered, ordering_gaps
from partita.lowering.owners import check_servers
from partita.lowering.phases import check_phases
from partita.lowering.precision import check_captured, in_precision, mastered, precision_gaps
from partita.lowering.recomputation import with_again
from partita.lowering.samples import Draft, draft, with_factors
from partita.lowering.schedules import ROWS
from partita.lowering.servers import served
from partita.lowering.shards import sharded, unsliced
from partita.lowering.shared import races, racing_gaps
from partita.lowering.stages import staged
from partita.lowering.statistics import deferred, statistics_gaps
from partita.lowering.tiers import fans_out
from partita.plan.check import check
from partita.plan.memory import Shard
from partita.plan.mesh import Split
from partita.plan.plan import COMPILED, DEFERRED, Plan, agreement_of, alone
from partita.plan.rule import ruled
from partita.plan.schedule import Schedule, Versions
from partita.plan.sync import AllReduce, Frequency, Outer, Payload, Servers, Sync
from partita.program.program import Program
from partita.program.verify import verify
from partita.wire.algorithms import BACKEND, all_reduce
from partita.wire.codec import SPECS


@dataclass(frozen=True, slots=True)
class LoweredPhase:
    """A Program and how many steps of the run it covers (0: all that are left); `end`, if there is one, is the round
    of no minibatch that brings its replicas together after them."""

    steps: int
    program: Program
    plan: Plan
    end: Program | None = None


def lower(graph: Graph, plan: Plan, cluster: Cluster, *, clocked: bool = False) -> tuple[LoweredPhase, ...]:
    """The Programs of the plan's phases, in order; the last one has no end. Whether that one ever finishes is left to
    the event clock where it is `clocked` next.

    Raises PlanError for a plan that contradicts itself, the graph or the cluster, LoweringError for a legal one that
    this version cannot carry out.
    """
    check(plan, graph, cluster)
    phases = [(phase.steps, phase.plan) for phase in plan.before] + [(0, plan)]
    programs = [lower_phase(graph, part, cluster, clocked=clocked and part is plan) for _, part in phases]
    check_phases(graph, [(part, program) for (_, part), program in zip(phases, programs, strict=True)])
    return tuple(
        LoweredPhase(steps, program, part, _at_end(graph, part))
        for (steps, part), program in zip(phases, programs, strict=True)
    )


def last_program(graph: Graph, plan: Plan, cluster: Cluster, *, clocked: bool = False) -> Program:
    """The Program that a run of the plan comes to and stays in: that of its last phase, after those in `plan.before`.

    Raises what `lower` does, for any of the phases.
    """
    return lower(graph, plan, cluster, clocked=clocked)[-1].program


def lower_phase(graph: Graph, plan: Plan, cluster: Cluster, steps: int = 0, *, clocked: bool = False) -> Program:
    """The Program of one phase; with `steps`, of a last round of so few."""
    refuse(graph, plan)
    ruling, factors = ruled(graph, plan.update), factors_of(ruled(graph, plan.update), plan)
    plan = unsliced(base_of(plan))
    step = in_precision(ruling, plan.memory)
    replicated = _replicated(step, plan, cluster, steps, factors)
    program = deferred(step, plan, sharded(replicated, step, plan.memory))
    done = verify(half_sums(mastered(program, ruling, plan.memory), cluster), clocked=clocked)
    return replace(done, update=plan.update, compiled=COMPILED in plan.kernels)


def _replicated(graph: Graph, plan: Plan, cluster: Cluster, steps: int, factors: Factors) -> Program:
    if plan.stages:
        return _staged(graph, plan)
    step = factors.step if factors.layers else with_again(graph, plan)
    program = _agreed(step, plan, cluster, steps, factors)
    return program if step is graph else replace(program, whole=step)


def _staged(graph: Graph, plan: Plan) -> Program:
    """The stages of a plan before any state is divided. The last ones are known to the graph: a search goes on to plans
    that divide theirs in another way."""
    alike, size = replace(plan, name="", memory=replace(plan.memory, shard=Shard.NONE)), graph.minibatch
    kept: tuple[Plan, int, Program] | None = graph.known.get(_staged)
    if kept is None or kept[:2] != (alike, size):
        graph.known[_staged] = kept = alike, size, staged(graph, alike)
    return replace(kept[2], name=plan.name)


def _agreed(graph: Graph, plan: Plan, cluster: Cluster, steps: int, factors: Factors) -> Program:
    if steps_alone(plan):
        return local_updates(draft(graph, plan), cluster, steps)
    if steps and not waits_for_all(plan):
        last = Frequency(1, fetch=steps) if plan.sync[0].frequency.period == 1 else Frequency(steps)
        plan = replace(plan, sync=(replace(plan.sync[0], frequency=last),))
    agreement = _agreement(plan)
    drawn = draft(graph, plan, cut=agreement in (all_reduced, served), factors=factors)
    program = agreement(drawn)
    check_servers(plan, program)
    return ordered(with_factors(program, drawn), drawn, cluster)


def _agreement(plan: Plan) -> Callable[[Draft], Program]:
    if not plan.sync or (alone(plan) and waits_for_all(plan)):
        return unsynchronised
    return served if isinstance(plan.sync[0].through, Servers) else all_reduced


def _at_end(graph: Graph, plan: Plan) -> Program | None:
    end = None if plan.stages else final_round(draft(ruled(graph, plan.update), base_of(plan)))
    return end and verify(replace(end, update=plan.update))


def check_lowered(graph: Graph, plan: Plan, cluster: Cluster) -> None:
    """Raises, without lowering it if it has one phase, what `lower` raises for a plan."""
    check(plan, graph, cluster)
    refuse(graph, plan)
    if plan.before:
        lower(graph, plan, cluster)


def refuse(graph: Graph, plan: Plan) -> None:
    """Raises LoweringError naming the first part of the plan that cannot be carried out yet."""
    check_coupled(graph, plan)
    factored, plan = tuple(factor_gaps(graph, plan)), base_of(plan)
    sync, loose = agreement_of(plan), not waits_for_all(plan)
    ways = {sync.wire.collective, *(algorithm for _, algorithm in sync.wire.by_size)} - {BACKEND}
    for algorithm in sorted(ways):
        all_reduce(algorithm, plan.mesh.length("data"))
    check_streams(plan)
    check_captured(graph, plan)
    known = ("data", "pipe") if plan.stages else ("data",)
    others = [axis for axis, length in plan.mesh.axes if axis not in known and length > 1]
    cases: tuple[tuple[bool, str], ...] = (
        (bool(others), f"the mesh axis {others[0]!r}" if others else ""),
        *factored,
        (any(split.dim != "sample" for split in plan.splits), "splits of other dimensions than samples"),
        (plan.splits != (Split(),), "samples divided for some operators or ranks only"),
        *_gaps(graph, plan),
        *(_pipeline_gaps(plan) if plan.stages else _order_gaps(plan)),
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


def _shard_gaps(plan: Plan) -> Iterator[tuple[bool, str]]:
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


def _order_gaps(plan: Plan) -> Iterator[tuple[bool, str]]:
    yield replace(plan.schedule, microbatches=1) != Schedule(), "the order of passes of a pipeline, without stages"


def _pipeline_gaps(plan: Plan) -> Iterator[tuple[bool, str]]:
    """(whether the plan asks for it, what) of all of a plan with stages that cannot be lowered."""
    schedule, sync = plan.schedule, agreement_of(plan)
    yield schedule.order not in ROWS, f"stages in the order {schedule.order}"
    yield not schedule.flush or schedule.versions is not Versions.LATEST, "pipelines without a flush every step"
    yield schedule.in_flight > 0 or schedule.update_every > 0, "pipelines with their own number of passes in flight"
    yield not isinstance(sync.through, AllReduce) or sync.payload is not Payload.GRADIENT, "stages without all-reduce"
    yield sync.consistency.lag > 0, "late gradients between stages"
    several = plan.mesh.length("data") > 1 or any(len(stage.ranks) > 1 for stage in plan.stages)
    yield not plan.sync and several, "replicas of stages that never agree"
    yield from own_gradient_gaps(plan)
    scheduled = sync.wire.collective != BACKEND or sync.wire.by_size != ()
    yield scheduled, f"the collective {sync.wire.collective!r} between stages"


def _gaps(graph: Graph, plan: Plan) -> Iterator[tuple[bool, str]]:
    """(whether the agreement asks for it, what) of all that no pass brings about yet."""
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
    yield wire.collective != BACKEND and serves, f"the collective {wire.collective!r} through servers"
    yield from ordering_gaps(plan)


def _step_gaps(sync: Sync) -> Iterator[tuple[bool, str]]:
    """(whether the plan asks for it, what) of all of an agreement on every step's gradients that cannot be lowered."""
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
