"""Predictions of a plan, without running it: its Timeline, its step over bandwidths, whether it fits."""

from __future__ import annotations

from collections.abc import Sequence

from partita.api.checking import check_bandwidths, check_costs, check_graph, check_task, cluster_given
from partita.api.loading import timed_task
from partita.api.planning import plan_of
from partita.cluster.cluster import Cluster
from partita.cost.costs import Costs
from partita.cost.unlike import levelled
from partita.errors import PartitaError
from partita.graph.graph import Graph
from partita.lab.costing import costs_of
from partita.lowering.lower import last_program, lower
from partita.plan.plan import Plan
from partita.report.notebook import Shown, ShownFit, shown, shown_fit
from partita.searches.fit import fit as fit_to
from partita.searches.space import usual
from partita.searches.sweep import Sweep
from partita.searches.sweep import sweep as sweep_over
from partita.simulator.simulate import simulate as simulate_program
from partita.task import Task
from partita.telling import Tell, quiet
from partita.units import BytesPerSecond


def simulate(
    graph: Graph, plan: str | Plan, cluster: Cluster | str, *, task: Task | str = "", costs: Costs | None = None,
    tell: Tell = quiet,
) -> Shown:  # fmt: skip
    """The predicted Timeline of a plan in its steady state, which notebooks draw. Costs are those of `costs_of`, unless
    given."""
    check_graph(graph)
    cluster = levelled(graph, cluster_given(cluster))
    check_costs(costs, graph, cluster)
    check_task(task or "")
    loaded = task if costs else timed_task(task, cluster)
    made = plan_of(plan, graph, cluster, task=loaded, costs=costs, tell=tell)
    known = costs or costs_of(graph, cluster, [made], task=loaded, tell=tell)
    tell(f"simulating {made.name}")
    return shown(simulate_program(last_program(graph, made, cluster), known))


def sweep(plan: Plan, costs: Costs, bandwidths: Sequence[BytesPerSecond], *, tell: Tell = quiet) -> Sweep:
    """The plan's predicted step at each bandwidth, in bytes a second, of the cluster's narrowest link; other links keep
    their ratio to it."""
    check_bandwidths(bandwidths)
    tell(f"simulating {plan.name} at {len(bandwidths)} bandwidths")
    return sweep_over(plan, costs, tuple(bandwidths))


def fit(graph: Graph, cluster: Cluster | str, plan: str | Plan = "", *, tell: Tell = quiet) -> ShownFit:
    """Whether a plan (without one, data parallelism over all devices) fits the devices' memory, by how much, and what
    would make it fit. Raises ClusterError where the cluster does not say how much memory there is."""
    check_graph(graph)
    cluster = levelled(graph, cluster_given(cluster))
    try:
        made = plan_of(plan or usual(graph), graph, cluster, tell=tell)
        lower(graph, made, cluster)
    except PartitaError:
        if plan:
            raise
        made = None
    tell("predicting memory")
    return shown_fit(fit_to(graph, cluster, made), cluster)
