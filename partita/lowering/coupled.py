"""Optimizers that step a tensor otherwise alone than among others, such as by a norm over all: all they are given must
be together.

data parallelism      one bucket, whatever the plan says of their size        [ w1 b1 w2 b2 ] -> step
sharded state         the same, at one owner
stages, factors       refused: each place would step its own tensors          [ w1 b1 ] -> step   [ w2 b2 ] -> step
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from partita.errors import LoweringError
from partita.graph.graph import Graph
from partita.plan.plan import Plan
from partita.plan.rule import ruled
from partita.plan.sync import Payload
from partita.plan.wire import Wire


def one_bucket(graph: Graph, wire: Wire) -> Wire:
    """What travels together where the optimizer's tensors depend on each other: all; else as the wire has it."""
    if graph.optimizer.alone:
        return wire
    return replace(wire, bucket_bytes=sum(p.tensor.size() for p in graph.trainable) + 1, first_bucket_bytes=0)


def check_coupled(graph: Graph, plan: Plan) -> None:
    """Raises LoweringError where a plan would step tensors apart that the optimizer steps together."""
    if ruled(graph, plan.update).optimizer.alone:
        return
    for apart, what in _apart(graph, plan):
        if apart:
            raise LoweringError(
                f"{plan.name} cannot be carried out for {graph.name}, whose optimizer {graph.optimizer.name} may step "
                f"tensors otherwise alone than together (by a norm over all of them, say), and {what} would step them "
                "apart; bound norms by Task.clip_norm instead, or use a plan without it"
            )


def _apart(graph: Graph, plan: Plan) -> Iterator[tuple[bool, str]]:
    yield bool(plan.stages), "its stages"
    yield any(sync.payload is Payload.FACTOR for sync in plan.sync), "layers that send factors"
    yield len({p.tensor.dtype for p in graph.trainable}) > 1, "weights of several dtypes"
