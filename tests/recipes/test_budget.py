"""`recompute=auto`: a budget is kept to, and at least cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations

import pytest

from partita.cost.memory import peak_memory
from partita.errors import PlanError
from partita.graph.graph import Graph
from partita.graph.recompute import AGAIN, recomputable
from partita.lowering.lower import last_program, lower_phase
from partita.plan.memory import Memory, Recompute
from partita.plan.plan import Plan
from partita.program.program import Program
from partita.recipes.budget import passing, settled
from partita.recipes.catalogue import call
from tests.priced import priced
from tests.programs import program_by
from tests.small import cluster_of, layers

BATCH = 256


def again(program: Program, graph: Graph, price: Mapping[str, float]) -> float:
    """Seconds of the operators that are computed again."""
    steps = program.stages or (program.graph_of(-1, graph),)
    names = (o.name for step in steps for o in step.operators if o.name.endswith(AGAIN))
    return sum(price[name.removesuffix(AGAIN)] for name in names)


def planned(names: tuple[str, ...]) -> Plan:
    return Plan("named", memory=Memory(recompute=Recompute.AUTO if names else Recompute.NONE, recomputed=names))


@pytest.mark.parametrize(("count", "growth", "prices"), [(2, 0, 1), (4, 0, 1), (3, 5, 4), (4, 1, 4), (5, 3, 4)])
def test_no_choice_costs_less(count: int, growth: int, prices: int) -> None:
    """ME-07's choice for a budget against all subsets of a chain's operators, of equal ones at one price, and of
    growing ones at several."""
    graph, machines = layers(count, batch=BATCH, growth=growth), cluster_of(1)
    costs = priced(graph, machines, (BATCH,))
    costs = replace(costs, operators={name: 1e-3 * (1 + i % prices) for i, name in enumerate(costs.operators)})
    price, names = costs.prices(BATCH), sorted(recomputable(graph))
    every = []
    for k in range(len(names) + 1):
        for some in combinations(names, k):
            program = lower_phase(graph, planned(some), machines)
            every.append((passing(program, graph, 0), again(program, graph, price)))
    top = every[0][0]
    for percent in (100, 95, 90, 80, 70, 60, 50, 40):
        limit = int(percent / 100 * top)
        least = min((cost for peak, cost in every if peak <= limit), default=None)
        asked = Plan("asked", memory=Memory(recompute=Recompute.AUTO, budget=percent / 100))
        if least is None:
            with pytest.raises(PlanError, match="found no way below"):
                settled(asked, graph, machines, costs)
            continue
        program = lower_phase(graph, settled(asked, graph, machines, costs), machines)
        assert passing(program, graph, 0) <= limit
        assert again(program, graph, price) == pytest.approx(least)


def test_a_short_step_is_also_looked_at_operator_by_operator() -> None:
    """Where all blocks of several operators are too large for the limit."""
    graph, machines = layers(4, batch=BATCH, growth=8), cluster_of(1)
    costs = priced(graph, machines, (BATCH,))
    costs = replace(costs, operators={name: 1e-3 * (1 + i % 4) for i, name in enumerate(costs.operators)})
    whole = passing(lower_phase(graph, planned(()), machines), graph, 0)
    plan = settled(Plan("asked", memory=Memory(recompute=Recompute.AUTO, budget=0.7)), graph, machines, costs)
    assert passing(lower_phase(graph, plan, machines), graph, 0) <= 0.7 * whole


@pytest.mark.parametrize("text", ["ddp", "gpipe(stages=2)", "interleaved(stages=2,chunks=2)", "one_f_one_b(stages=3)"])
def test_every_rank_keeps_to_the_budget(text: str) -> None:
    graph, machines = layers(20, batch=BATCH), cluster_of(3)
    bare = program_by(text, graph, machines)
    knobs = "recompute=auto,budget=0.9)"
    plan = call(text.replace(")", f",{knobs}") if ")" in text else f"{text}({knobs}", graph, machines)
    program = last_program(graph, plan, machines)
    most = max(passing(bare, graph, rank) for rank in range(bare.size))
    assert max(passing(program, graph, rank) for rank in range(program.size)) <= 0.9 * most
    assert plan.memory.recomputed


def test_without_a_budget_the_devices_say_what_there_is() -> None:
    graph, machines = layers(20, batch=BATCH), cluster_of(1)
    with pytest.raises(PlanError, match="does not say how much memory"):
        call("single(recompute=auto)", graph, machines)
    peak = peak_memory(program_by("single", graph, machines), graph, 0)
    for memory, needed in ((peak, False), (peak * 9 // 10, True)):
        devices = tuple(replace(device, memory=memory) for device in machines.root.members)  # type: ignore[arg-type]
        small = replace(machines, root=replace(machines.root, members=devices))
        plan = call("single(recompute=auto)", graph, small)
        assert bool(plan.memory.recomputed) is needed
        assert peak_memory(last_program(graph, plan, small), graph, 0) <= memory


def test_a_budget_may_be_bytes() -> None:
    graph, machines = layers(20, batch=BATCH), cluster_of(1)
    bare = passing(program_by("single", graph, machines), graph, 0)
    plan = call(f"single(recompute=auto,budget={bare * 8 // 10})", graph, machines)
    assert passing(last_program(graph, plan, machines), graph, 0) <= bare * 8 // 10
