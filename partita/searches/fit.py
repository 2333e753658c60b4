"""Whether a plan fits the devices' memory, by how much, and which one would where it does not."""

from __future__ import annotations

from dataclasses import dataclass, replace

from partita.cluster.cluster import Cluster
from partita.cost.memory import peak_memory
from partita.errors import ClusterError
from partita.graph.graph import Graph
from partita.plan.plan import Plan
from partita.program.program import Program
from partita.searches.exhaustive import Search
from partita.units import Bytes


@dataclass(frozen=True)
class Fit:
    """`used` is the peak of each rank, `margin` what is left on the fullest device (less than 0: what is missing) and
    `change` what to do about it, if anything helps."""

    plan: Plan
    used: tuple[Bytes, ...]
    margin: Bytes
    change: str = ""

    @property
    def fits(self) -> bool:
        return self.margin >= 0


def fit_of(plan: Plan, program: Program, graph: Graph, cluster: Cluster) -> Fit:
    """The fit of a plan by its program. Raises ClusterError where a device does not say how much memory it has."""
    if not all(device.memory for device in cluster.devices):
        raise ClusterError(f"{cluster.name} does not say how much memory its devices have; add memory to each device")
    peaks = {rank: peak_memory(program, graph, role.ranks[0]) for role in program.roles for rank in role.ranks}
    used = tuple(peaks[rank] for rank in range(program.size))
    return Fit(plan, used, min(d.memory - peak for d, peak in zip(cluster.devices, used, strict=False)))


def nearest(fit: Fit, ranked: Search) -> Fit:
    """With the fastest plan that fits as the change."""
    better = next((c.plan.name for c in ranked.candidates if c.fits), "")
    return replace(fit, change=f"use --plan {better}" if better else "")
