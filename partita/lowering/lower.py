"""Plan -> Program: what each rank computes, then what agreement adds to it, then the updates; `verify` judges.

samples      who takes which part of the minibatch         -> roles with Load, F, B
agreement    one of: nothing, all-reduce, servers, average -> Pack, Collective | Send, Receive, Combine | Scale
updates      Clip, Update after what completes a bucket
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from partita.cluster.cluster import Cluster
from partita.errors import LoweringError
from partita.graph.graph import Graph
from partita.lowering.agreement import all_reduced, alone, averaged
from partita.lowering.samples import Draft, draft
from partita.lowering.servers import served
from partita.plan.check import check
from partita.plan.plan import Plan
from partita.plan.sync import AllReduce, Servers, Sync, What
from partita.program.program import Program
from partita.program.verify import verify


@dataclass(frozen=True, slots=True)
class Stretch:
    """A Program and how many steps of the run it covers (0: all that are left)."""

    steps: int
    program: Program


def lower(graph: Graph, plan: Plan, cluster: Cluster) -> tuple[Stretch, ...]:
    """The Programs of the plan's phases, in order; the last one has no end.

    Raises PlanError for a plan that contradicts itself, the graph or the cluster, LoweringError for a legal one that
    this version cannot carry out.
    """
    check(plan, graph, cluster)
    phases = [(phase.steps, phase.plan) for phase in plan.before] + [(0, plan)]
    return tuple(Stretch(steps, lower_phase(graph, part)) for steps, part in phases)


def lower_phase(graph: Graph, plan: Plan) -> Program:
    """The Program of one phase."""
    refuse(graph, plan)
    started = draft(graph, plan)
    return verify(_agreement(plan)(started, plan))


def _agreement(plan: Plan) -> Callable[[Draft, Plan], Program]:
    if plan.mesh.size == 1 or not plan.sync:
        return alone
    sync = plan.sync[0]
    if isinstance(sync.through, Servers):
        return served
    return averaged if sync.what is What.PARAMETER else all_reduced


def refuse(graph: Graph, plan: Plan) -> None:
    """Raises LoweringError naming the first part of the plan that cannot be carried out yet."""
    nothing = Sync()
    sync = plan.sync[0] if plan.sync else nothing
    others = [axis for axis, length in plan.mesh.axes if axis != "data" and length > 1]
    cases: tuple[tuple[bool, str], ...] = (
        (bool(plan.stages), "pipeline stages"),
        (bool(others), f"the mesh axis {others[0]!r}" if others else ""),
        (len(plan.sync) > 1, "more than one agreement"),
        (any(split.dim != "sample" for split in plan.splits), "splits of other dimensions than samples"),
        (not isinstance(sync.through, AllReduce | Servers), f"agreement through {type(sync.through).__name__}"),
        (sync.what not in (What.GRADIENT, What.PARAMETER), f"agreement on {sync.what}"),
        (bool(sync.tight.staleness or sync.tight.need), "stale or partial agreement"),
        (sync.often.period == 0, "agreement once at the end (period 0)"),
        (bool(sync.wire.codecs), "codecs"),
        (sync.wire.collective != "backend", f"the collective {sync.wire.collective!r}"),
        (sync.wire.order != nothing.wire.order or sync.wire.credit_bytes > 0, f"message order {sync.wire.order}"),
        (sync.outer != nothing.outer, "outer optimizers"),
        (plan.memory != type(plan.memory)(), "memory plans"),
        (plan.update != type(plan.update)(), "corrections of the update rule"),
        (bool(plan.kernels), "kernel choices"),
        (graph.weight is not None and plan.mesh.size * plan.schedule.microbatches > 1, "weighted losses in parts"),
    )
    for given, what in cases:
        if given:
            raise LoweringError(
                f"{plan.name} asks for {what}, which this version cannot carry out yet; "
                "`partita recipes` lists what runs"
            )


__all__ = ["Draft", "Stretch", "lower", "lower_phase"]
