"""What no plan that divides a step by samples, stages and state can hold less than, on the fullest device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from partita.cluster.cluster import Cluster
from partita.graph.cuts import liveness
from partita.graph.graph import Graph
from partita.graph.kinds import kinds_of
from partita.units import Bytes


@dataclass(frozen=True)
class MemoryBound:
    """`state` bytes of parameters, gradients and optimizer on each of `devices` at best, `each` a trained parameter in
    all and `frozen` of the other parameters; `widest` what the operator of most memory, called `target`, reads and
    makes for one sample, on the device that has it."""

    state: Bytes
    each: float
    devices: int
    widest: Bytes
    target: str
    frozen: Bytes = 0

    @property
    def bytes(self) -> Bytes:
        """What the fullest device holds at the least."""
        return max(self.state, self.widest)


def memory_bound_of(graph: Graph, cluster: Cluster) -> MemoryBound:
    """The bound of a step: its state divided evenly over all devices, and the operator that takes most for one sample,
    whatever is computed again or goes on elsewhere."""
    trained = graph.trained_bytes
    elements = graph.trained_elements
    gradients = trained if cluster.size > 1 else 0
    whole = trained + gradients + graph.optimizer.state_bytes(elements)
    frozen = graph.frozen_bytes
    widest, target = max(_widths(graph), default=(0, ""))
    return MemoryBound((whole + frozen) // cluster.size, whole / max(elements, 1), cluster.size, widest, target, frozen)


def _widths(graph: Graph) -> Iterator[tuple[Bytes, str]]:
    """Bytes that the first operator of each kind reads and makes for one sample, but for parameters and what shares
    memory; and its target."""
    lives, one = liveness(graph), 1 if graph.symbolic else graph.batch
    place = {ref: number for number, ref in enumerate(lives.values)}
    for name in kinds_of(graph).names:
        operator = graph.operators[graph.index[name]]
        roots = {lives.roots[place[ref]] for ref in (*operator.reads(), *operator.results()) if ref in place} - {-1}
        yield sum(graph.tensor(lives.values[root]).size(one) for root in roots), operator.target
