"""Whether a plan fits the devices' memory, by how much and how surely, and the change that costs least where not."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from partita.cluster.cluster import Cluster
from partita.errors import ClusterError, PlanError
from partita.graph.graph import Graph
from partita.plan.plan import Plan
from partita.searches.auto import Field, field_of
from partita.searches.peaks import peaks_of
from partita.units import Bytes

# The largest miss of predicted live bytes against torch's allocator on models without convolutions, over all recipes
# that run on four devices (`tests/cost/test_memory.py` holds predictions to it). What a device needs besides tensors
# (a CUDA context, what the allocator keeps for later) is not in it.
ERROR: Final = 0.05
HALVINGS: Final = 2


@dataclass(frozen=True)
class Fit:
    """`used` is the peak of each rank, `parts` what it is for on the fullest device, `margin` what is left there (less
    than 0: what is missing) and `error` by how much either may be off; `change` says what to do about it, if anything
    helps, and `slower` how many times as long a step then takes as the fastest plan's would, were memory no matter."""

    plan: Plan
    used: tuple[Bytes, ...]
    parts: dict[str, Bytes] = field(default_factory=dict)
    margin: Bytes = 0
    error: Bytes = 0
    change: str = ""
    slower: float = 0.0

    @property
    def fits(self) -> bool:
        """Whether it fits even if the prediction is off by its error."""
        return self.margin >= self.error

    @property
    def unsure(self) -> bool:
        return -self.error < self.margin < self.error


def fit_of(plan: Plan, graph: Graph, cluster: Cluster) -> Fit:
    """The fit of a plan. Raises ClusterError where a device does not say how much memory it has."""
    if not all(device.memory for device in cluster.devices):
        raise ClusterError(f"{cluster.name} does not say how much memory its devices have; add memory to each device")
    found = peaks_of(plan, graph, cluster)
    left = [device.memory - peak for device, peak in zip(cluster.devices, found.used, strict=False)]
    fullest = left.index(min(left))
    error = max(round(ERROR * found.used[fullest]), found.most[fullest] - found.used[fullest])
    return Fit(plan, found.used, found.parts[fullest], left[fullest], error)


def usual(graph: Graph, cluster: Cluster) -> str:
    """The plan that is asked about where none is named: data parallelism over all devices, its gradients in at most
    about 64 messages."""
    size = sum(p.tensor.size() for p in graph.trainable) // 64
    return f"ddp(bucket_bytes={size})" if size > 4 * 2**20 else "ddp"


def fit(graph: Graph, cluster: Cluster, plan: Plan | None) -> Fit:
    """The fit of a plan (None: of the fastest one, were memory no matter), and of what to change where it does not:
    among all points of the grid of `auto` the fastest that fits; where none does, with half the minibatch, and so on.

    Raises ClusterError as `fit_of` does.
    """
    asked = fit_of(plan, graph, cluster) if plan else None
    if asked and asked.fits:
        return asked
    found = _fitting(field_of(graph, cluster, tight=True), graph, cluster)
    asked = asked or found[1]
    batch = graph.global_batch or graph.batch
    for halving in range(HALVINGS + 1):
        smaller = replace(graph, global_batch=batch >> halving)
        if halving and not (graph.symbolic and batch >> halving):
            break
        try:
            best, _, slower = (
                found if not halving else _fitting(field_of(smaller, cluster, tight=True), smaller, cluster)
            )
        except PlanError:
            continue
        if best is not None:
            batches = f"train with a minibatch of {batch >> halving} and " if halving else ""
            return replace(asked, change=f"{batches}use --plan '{best.plan.name}'", slower=slower)
    return asked


def _fitting(found: Field, graph: Graph, cluster: Cluster) -> tuple[Fit | None, Fit, float]:
    """The first plan that fits, if any, the first one, and what the former loses by formula."""
    first: Fit | None = None
    for plan, seconds in zip(found.plans, found.seconds, strict=True):
        each = fit_of(plan, graph, cluster)
        first = first or each
        if each.fits:
            return each, first, seconds / found.fastest
    if first is None:
        raise PlanError(f"no plan of the grid applies to {graph.name} on {cluster.name}")
    return None, first, 0.0
