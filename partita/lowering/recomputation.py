"""Which forward operators a plan computes again in backward: those that it names, or those that its rule finds."""

from __future__ import annotations

from partita.errors import PlanError
from partita.graph.blocks import block_starts
from partita.graph.graph import Graph
from partita.graph.recompute import recomputed
from partita.graph.recompute_rules import cheap, whole_blocks
from partita.plan.memory import Recompute
from partita.plan.plan import Plan


def computed_again(graph: Graph, plan: Plan) -> frozenset[str]:
    """Names of operators. Backward of the last block begins as soon as its forward ends where there are no stages, so
    `full` leaves that block alone. Raises PlanError for a name that is no forward operator or module."""
    memory, last = plan.memory, bool(plan.stages)
    if memory.recomputed:
        return frozenset(name for wanted in memory.recomputed for name in _named(graph, plan, wanted))
    return again_by_rule(graph, memory.recompute, last=last)


def with_again(graph: Graph, plan: Plan) -> Graph:
    """The step in which backward computes those again; by a rule, once for all plans."""
    if plan.memory.recomputed:
        return recomputed(graph, computed_again(graph, plan)).graph
    return step_by_rule(graph, plan.memory.recompute, last=bool(plan.stages))


def step_by_rule(graph: Graph, rule: Recompute, *, last: bool) -> Graph:
    """The step in which backward computes again what a rule finds."""
    names = again_by_rule(graph, rule, last=last)
    return graph.once(("step", names, graph.global_batch), lambda: recomputed(graph, names).graph) if names else graph


def again_by_rule(graph: Graph, rule: Recompute, *, last: bool) -> frozenset[str]:
    """What a rule computes again, found once; `last` says whether `full` does so with the last block too."""
    if rule is Recompute.FULL:
        return graph.once(("again", rule, last), lambda: whole_blocks(graph, block_starts(graph), last=last))
    if rule is Recompute.SELECTIVE:
        return graph.once(("again", rule), lambda: cheap(graph, block_starts(graph)))
    return frozenset()


def _named(graph: Graph, plan: Plan, wanted: str) -> list[str]:
    if graph.index.get(wanted, graph.forward_length) < graph.forward_length:
        return [wanted]
    forward = graph.operators[: graph.forward_length]
    inside = [o.name for o in forward if o.module == wanted or o.module.startswith(wanted + ".")]
    if not inside:
        raise PlanError(
            f"{plan.name} computes {wanted!r} again, which is no forward operator or module of {graph.name}; "
            "give a name that `partita capture` writes"
        )
    return inside
