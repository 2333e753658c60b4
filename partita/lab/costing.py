"""Costs of plans on a cluster: measured by workers in a lab if this machine can stand for the cluster, otherwise from
data sheets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from partita.cluster.cluster import Cluster
from partita.cost.costs import Costs
from partita.cost.datasheet import datasheet_costs
from partita.cost.measurable import unmeasurable
from partita.errors import OptionError
from partita.graph.graph import Graph
from partita.lowering.precision import short_dtype
from partita.lowering.samples import sizes_of
from partita.plan.plan import COMPILED, Plan
from partita.task import Task

Tell = Callable[[str], None]
SOURCES: Final = ("", "measured", "datasheet")


def quiet(sentence: str) -> None:
    """A `tell` that tells nobody."""


def batches_of(graph: Graph, plans: Sequence[Plan]) -> tuple[int, ...]:
    """Every batch size that the plans' segments run with."""
    return tuple(sorted({size for plan in plans for size in sizes_of(plan, graph)}))


def precisions_of(plans: Sequence[Plan]) -> tuple[str, ...]:
    """The short dtypes in which the plans, and the phases before them, compute."""
    phases = [one for plan in plans for one in (plan, *(phase.plan for phase in plan.before))]
    return tuple(sorted({short_dtype(one.memory) for one in phases} - {""}))


def costs_of(
    graph: Graph, cluster: Cluster, plans: Sequence[Plan], *, task: Task | str = "", source: str = "",
    like: Costs | None = None, tell: Tell = quiet,
) -> Costs:  # fmt: skip
    """Costs that cover what the plans do: measured, if this machine can stand for the cluster and workers can load
    `task`; otherwise from data sheets, and `because` says why. `source` 'measured' or 'datasheet' insists on one of
    them. Data sheets are taken as those of a cluster where the costs `like` were measured.

    Raises OptionError if costs are to be measured and cannot be.
    """
    if source not in SOURCES:
        raise OptionError(f"--costs is {source!r}; allowed are {' and '.join(SOURCES[1:])}")
    because = "--costs asks for it" if source == "datasheet" else unmeasurable(task, cluster)
    if because and source == "measured":
        raise OptionError(f"costs cannot be measured: {because}; leave --costs measured out")
    if not because:
        found = measured_costs(task, graph, cluster, plans, insist=source == "measured", tell=tell)
        if isinstance(found, Costs):
            return found
        because = found
    sizes, precisions = batches_of(graph, plans), precisions_of(plans)
    compiled = any(COMPILED in plan.kernels for plan in plans)
    return datasheet_costs(graph, cluster, sizes, because=because, precisions=precisions, compiled=compiled, like=like)


def measured_costs(
    task: Task | str, graph: Graph, cluster: Cluster, plans: Sequence[Plan], *, insist: bool, tell: Tell
) -> Costs | str:
    """Costs by micro-benchmarks. If the lab cannot emulate the devices' quotas, the sentence that says so instead,
    unless `insist`."""
    from partita.lab.rehearsal import Rehearsal

    with Rehearsal(task, graph, cluster, tell=tell) as rehearsal:
        if rehearsal.distorted and not insist:
            return rehearsal.distorted
        return rehearsal.probe(plans)
