"""What a search that leaves the task's precision alone says of half precision: the best plan, simulated in it."""

from __future__ import annotations

from typing import Final

from partita.cluster.cluster import Device
from partita.cost.costs import Costs
from partita.cost.datasheet import datasheet_costs
from partita.errors import InputError
from partita.graph.precision import wide_of
from partita.graph.tensor import DTYPE_OF
from partita.lowering.lower import last_program
from partita.lowering.samples import sizes_of
from partita.plan.memory import Precision
from partita.recipes.catalogue import call
from partita.searches.best_first import SMALL
from partita.searches.search import Search
from partita.simulator.simulate import step_seconds
from partita.units import show_seconds

QUICKER: Final = 2.0  # times the rate that devices have for the task's own precision


def half_precision(found: Search, costs: Costs) -> str:
    """What the first plan of a search would take in bf16, in a sentence, where the task's precision is another one and
    all devices are accelerators that are several times as quick in bf16; else nothing."""
    graph, cluster, first = costs.graph, costs.cluster, found.candidates[0]
    own = next((name for name, dtype in DTYPE_OF.items() if dtype == wide_of(graph)), "")
    asked = first.plan.memory.precision is not Precision.TASK or costs.source == "measured"
    if not own or asked or not all(_quicker(device, own) for device in cluster.devices):
        return ""
    text, says = in_bf16(first.plan.name), f"computed in {own} as the task is"
    if first.instructions > SMALL:
        return f"{says}; precision=bf16 was not simulated, for the plan is long; simulate --plan '{text}' does"
    try:
        program = last_program(graph, plan := call(text, graph, cluster), cluster)
    except InputError:
        return ""
    sheet = datasheet_costs(graph, cluster, tuple(sizes_of(plan, graph)), precisions=(DTYPE_OF["bf16"],))
    short, took = step_seconds(program, sheet), first.timeline.step_seconds
    return (
        f"{says}; with precision=bf16, which is {program.semantics}, {first.plan.name} would take "
        f"{show_seconds(short)} a step, not {show_seconds(took)}"
    )


def in_bf16(name: str) -> str:
    """A recipe call with precision=bf16."""
    return name.removesuffix(")") + ("," if "(" in name else "(") + "precision=bf16)"


def _quicker(device: Device, own: str) -> bool:
    rates = dict(device.flops)
    return device.backend == "cuda" and rates.get("bf16", 0.0) >= QUICKER * rates.get(own, 0.0) > 0.0
