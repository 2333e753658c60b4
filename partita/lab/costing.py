"""Costs of plans on a cluster: measured by workers in a lab if this machine can stand for the cluster, otherwise from
data sheets."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING

from partita.cluster.cluster import Cluster
from partita.cost.costs import Costs
from partita.cost.datasheet import datasheet_costs
from partita.cost.measurable import check_measurable, check_named, unmeasurable
from partita.cost.unlike import levelled
from partita.graph.graph import Graph
from partita.lab.fork_client import load_ahead
from partita.lab.processor import processor_here
from partita.lowering.lower import check_lowered
from partita.lowering.precision import format_asked
from partita.lowering.samples import sizes_of
from partita.plan.plan import COMPILED, Plan
from partita.task import Task
from partita.telling import Tell, quiet

if TYPE_CHECKING:
    from partita.lab.rehearsal import Rehearsal


def batches_of(graph: Graph, plans: Sequence[Plan]) -> tuple[int, ...]:
    """Every batch size that the plans' segments run with."""
    return tuple(sorted({size for plan in plans for size in sizes_of(plan, graph)}))


def precisions_of(plans: Sequence[Plan]) -> tuple[str, ...]:
    """The short dtypes, or TF32, in which the plans, and the phases before them, compute."""
    phases = [one for plan in plans for one in (plan, *(phase.plan for phase in plan.before))]
    return tuple(sorted({format_asked(one.memory) for one in phases} - {""}))


class Costing:
    """Costs that cover what plans do, of one list of plans after the other: measured, if this machine can stand for the
    cluster and workers can load `task`; otherwise from data sheets, and `because` says why. `source` 'measured' or
    'datasheet' insists on one of them. A context manager: workers start when costs are first measured, and stay.

    Raises OptionError if costs are to be measured and cannot be.
    """

    def __init__(
        self, graph: Graph, cluster: Cluster, *, task: Task | str = "", source: str = "", tell: Tell = quiet
    ) -> None:
        check_named(source)
        self.graph, self.cluster = graph, levelled(graph, cluster)
        self.task, self.source, self.tell = task, source, tell
        self.because = "data sheets were asked for" if source == "datasheet" else unmeasurable(task, cluster)
        if source == "measured":
            check_measurable(self.because)
        if not self.because:
            load_ahead()
        self._workers = ExitStack()
        self._rehearsal: Rehearsal | None = None

    def __enter__(self) -> Costing:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._workers.__exit__(kind, error, trace)

    def of(self, plans: Sequence[Plan], schedules: Collection[str] = ()) -> Costs:
        """Costs of these plans, and of all-reduces by each of these algorithms, where they can be measured."""
        if not self.because:
            found = self.measured(plans, schedules)
            if isinstance(found, Costs):
                return found
            self.because = found
        return self.by_sheet(plans)

    def by_sheet(self, plans: Sequence[Plan], measured: Costs | None = None) -> Costs:
        """Costs of these plans by data sheets, calibrated where some of the cluster's costs are `measured`."""
        sizes, precisions = batches_of(self.graph, plans), precisions_of(plans)
        compiled = any(COMPILED in plan.kernels for plan in plans)
        found = datasheet_costs(
            self.graph, self.cluster, sizes, because=self.because, precisions=precisions, compiled=compiled,
            measured=measured,
        )  # fmt: skip
        here = all(device.hosted for device in self.cluster.devices)
        return replace(found, processor=processor_here()) if here else found

    def measured(self, plans: Sequence[Plan], schedules: Collection[str] = ()) -> Costs | str:
        """Costs by micro-benchmarks, as `of` has them. If the lab cannot emulate the devices' quotas, the sentence that
        says so instead, unless `source` insists."""
        if self._rehearsal is None:
            from partita.lab.rehearsal import Rehearsal

            rehearsal = Rehearsal(self.task, self.graph, self.cluster, tell=self.tell)
            self._workers.enter_context(rehearsal)
            if (why := rehearsal.distorted) and self.source != "measured":
                self._workers.close()
                return why
            self._rehearsal = rehearsal
        return self._rehearsal.probe(plans, schedules=schedules)


def costs_of(
    graph: Graph, cluster: Cluster, plans: Sequence[Plan], *, task: Task | str = "", source: str = "",
    tell: Tell = quiet,
) -> Costs:  # fmt: skip
    """Costs that cover what the plans do, as `Costing` has them. A plan that cannot be lowered is refused before
    anything is measured."""
    for plan in plans:
        check_lowered(graph, plan, cluster)
    with Costing(graph, cluster, task=task, source=source, tell=tell) as costing:
        return costing.of(plans)
