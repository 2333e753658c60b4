"""What a search that leaves the task's precision alone says of TF32 and half precision: the best plan simulated so."""

from __future__ import annotations

from typing import Final

from partita.cluster.cluster import Cluster
from partita.cost.costs import Costs
from partita.cost.datasheet import datasheet_costs
from partita.errors import InputError
from partita.graph.graph import Graph
from partita.graph.precision import wide_of
from partita.graph.tensor import PRECISION_OF
from partita.lowering.lower import last_program
from partita.lowering.precision import FORMATS
from partita.lowering.samples import sizes_of
from partita.plan.memory import Precision
from partita.recipes.catalogue import call
from partita.recipes.reading import with_knob
from partita.searches.best_first import SMALL
from partita.searches.search import Search
from partita.simulator.simulate import step_seconds
from partita.units import Seconds, show_seconds

QUICKER: Final = 2.0  # times the rate that devices have for the task's own precision
LESS: Final = 0.99  # of a step's seconds: what is less shows in three digits


def half_precision(found: Search, costs: Costs) -> str:
    """What the first plan of a search would take in TF32 and in bf16, if that is less, in a sentence, where the task's
    precision is another one and all devices are accelerators that are several times as quick in them; else nothing."""
    graph, cluster, first = costs.graph, costs.cluster, found.candidates[0]
    quick = quicker(graph, cluster)
    if not quick or first.plan.memory.precision is not Precision.TASK or costs.source == "measured":
        return ""
    says = f"computed in {PRECISION_OF[wide_of(graph)]} as the task is"
    if first.instructions > SMALL:
        text, names = rounded(first.plan.name, quick[-1]), " and ".join(f"precision={one}" for one in quick)
        return f"{says}; {names} not simulated, for the plan is long; simulate --plan '{text}' does"
    took = {one: done for one in quick if (done := _simulated(rounded(first.plan.name, one), costs, one))}
    own = first.timeline.step_seconds
    less = {one: seconds for one, (seconds, _) in took.items() if seconds < own * LESS}
    if not less:
        return f"{says}; a step would take no less in {' or '.join(took)}" if took else ""
    best = min(less, key=lambda one: less[one])
    parts = " and ".join(f"{show_seconds(seconds)} in {one}" for one, seconds in less.items())
    words = f"a step would take {parts}, which is {took[best][1]}, not {show_seconds(own)}"
    return f"{says}; {words}: precision={best} asks for it"


def _simulated(text: str, costs: Costs, precision: Precision) -> tuple[Seconds, str] | None:
    """What a step of a call in a precision takes, and its class; None where it cannot be carried out."""
    graph, cluster = costs.graph, costs.cluster
    try:
        program = last_program(graph, plan := call(text, graph, cluster), cluster)
    except InputError:
        return None
    sheet = datasheet_costs(graph, cluster, tuple(sizes_of(plan, graph)), precisions=(FORMATS[precision],))
    return step_seconds(program, sheet), program.semantics


def quicker(graph: Graph, cluster: Cluster) -> tuple[Precision, ...]:
    """Those of TF32, for a task in fp32, and bf16 in which all devices are accelerators that are several times as quick
    as in the task's precision."""
    own = PRECISION_OF.get(wide_of(graph), "")
    rates = [dict(device.flops) for device in cluster.devices if device.backend == "cuda"]
    formats = (Precision.TF32, Precision.BF16) if own == "fp32" else (Precision.BF16,) if own else ()
    known = formats if len(rates) == cluster.size else ()
    return tuple(each for each in known if all(r.get(each, 0.0) >= QUICKER * r.get(own, 0.0) > 0.0 for r in rates))


def rounded(name: str, precision: Precision) -> str:
    """A recipe call in another precision."""
    return with_knob(name, f"precision={precision}")
