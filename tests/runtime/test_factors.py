"""Dense layers by their factors: the same weights, fewer bytes where the closed forms say so."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from partita.checkpoints.holding import copies_of
from partita.cluster.cluster import Cluster
from partita.errors import LoweringError, PlanError
from partita.graph.graph import Graph
from partita.graph.products import products, samples_of
from partita.graph.recompute import AGAIN
from partita.lowering.factors import factors_of
from partita.lowering.lower import last_program
from partita.oracles.check import checked, difference
from partita.plan.memory import Memory, Recompute
from partita.plan.mesh import Mesh
from partita.plan.plan import Plan
from partita.plan.sync import Payload, Servers, Sync
from partita.plan.text import read_plan, write_plan
from partita.plan.wire import Wire
from partita.program.instruction import Send
from partita.program.program import Program
from partita.program.space import Space
from partita.recipes.catalogue import call
from partita.runs.assembly import train_in_process
from partita.runtime.workload import Workload
from partita.simulator.simulate import simulate
from partita.task import Task
from partita.wire.factors import broadcast_elements, broadcast_pays, push_pays, server_elements
from tests.captures import capture
from tests.priced import batches_of, priced
from tests.small import cluster_of, layers, perceptron

PLANS = (("sfb", 3), ("poseidon(slice_bytes=200)", 3))
SLOW = (
    ("sfb(microbatches=2,layers='2.weight',bucket_bytes=200)", 3), ("adam(servers=2,bucket_bytes=200)", 4),
    ("adam(own=false)", 3),
)  # fmt: skip
WIRE = Wire(bucket_bytes=0, first_bucket_bytes=0)


def wide() -> Task:
    """Layers of which some are worth sending as factors."""
    return replace(
        perceptron(),
        name="wide",
        model=lambda: nn.Sequential(nn.Linear(6, 40), nn.ReLU(), nn.Linear(40, 48), nn.ReLU(), nn.Linear(48, 3)),
    )


@pytest.fixture(scope="module")
def graph() -> Graph:
    return capture(wide(), precision="fp64")


@pytest.mark.parametrize(("plan", "size"), [*PLANS, *(pytest.param(*one, marks=pytest.mark.slow) for one in SLOW)])
def test_weights_are_those_of_one_process(plan: str, size: int) -> None:
    """FM-01, FM-02, FM-03: to 1e-9 in fp64, of a model of which some layers travel as factors and some do not."""
    machines = cluster_of(size)
    found = checked(wide(), lambda graph: call(plan, graph, machines), machines, order=size)
    assert found["semantics"] == "exact"
    assert found["max_difference"] <= 1e-9


def test_a_factor_may_be_a_value_that_is_computed_again(graph: Graph) -> None:
    """ME-07 beside FM-02: activations that forward does not keep, and the same weights."""
    machines = cluster_of(3)
    again = Memory(recompute=Recompute.AUTO, recomputed=("1", "3"))

    def planned(graph: Graph) -> Plan:
        return replace(call("sfb", graph, machines), memory=again)

    assert any(AGAIN in ref.name for _, ref in factors_of(graph, planned(graph)).step.sends)
    assert not any(AGAIN in ref.name for _, ref in factors_of(graph, call("sfb", graph, machines)).step.sends)
    assert checked(wide(), planned, machines)["max_difference"] <= 1e-9


def lowered(graph: Graph, plan: Plan | str, machines: Cluster) -> Program:
    made = call(plan, graph, machines) if isinstance(plan, str) else plan
    return last_program(graph, made, machines)


def factored(program: Program) -> set[str]:
    """The parameters whose factors travel."""
    return {stage.gradients[0][0] for stage in program.stages}


@pytest.mark.parametrize("plan", ["sfb", "adam", "poseidon"])
def test_some_layers_travel_as_factors(plan: str, graph: Graph) -> None:
    """As soon as backward has made them, not when it ends."""
    program = lowered(graph, plan, cluster_of(3))
    assert "2.weight" in factored(program)
    sends = [i for i in program.role_of[1].instructions if isinstance(i.act, Send) and i.act.space is Space.VALUE]
    assert sends
    assert all(i.after[0].name.startswith("B") for i in sends)


def test_replicas_stay_alike_to_the_bit(graph: Graph) -> None:
    """FM-02: all sum in the order of the ranks, their own part included."""
    machines = cluster_of(4)
    plan = call("sfb", graph, machines)
    states, _ = train_in_process(Workload(wide(), graph, precision="fp64"), plan, machines, 4, order=7, slow={2: 0.1})
    assert all(difference(state.leaves, states[0].leaves) == 0.0 for state in states.values())
    copies = copies_of(last_program(graph, plan, machines))
    assert all(one.weights and one.state for one in copies.values())  # so that a checkpoint has them once


def wire_of(graph: Graph, plan: Plan, machines: Cluster) -> tuple[int, ...]:
    program = lowered(graph, plan, machines)
    return simulate(program, priced(graph, machines, batches_of(program))).wire_sent


def planned(workers: int, base: Sync, *named: Sync) -> Plan:
    return Plan("mixed", Mesh((("data", workers),)), sync=(*named, base))


@given(st.integers(2, 4), st.sampled_from([4, 8, 20]))
@settings(max_examples=5, deadline=None)
def test_messages_have_the_bytes_of_the_closed_forms(workers: int, samples: int) -> None:
    """FM-01: a worker sends 4 K (M + N) up; FM-02: as much to each other one; FM-03: in sum what the formulas say."""
    graph, item = layers(3, batch=samples * workers), 4
    one = products(graph)["p1"]
    assert (samples_of(graph, one, samples), one.rows, one.columns) == (samples, 4, 4)
    place = cluster_of(workers + 1)
    own, up = (Sync(parameters=p, through=Servers(), payload=payload, wire=WIRE) for p, payload in (
        ("*", Payload.GRADIENT), ("p1", Payload.FACTOR),
    ))  # fmt: skip
    plain, sent = (wire_of(graph, planned(workers, own, *more), place)[:workers] for more in ((), (up,)))
    assert {b - a for a, b in zip(plain, sent, strict=True)} == {item * (samples * (4 + 4) - 4 * 4)}
    place, all_ = cluster_of(workers), Sync(parameters="p1", payload=Payload.FACTOR, wire=WIRE)
    factors = workers * item * broadcast_elements(4, 4, samples, workers) / 2
    for base, otherwise in (
        (Sync(wire=WIRE), 2 * (workers - 1) * item * 16),
        (
            Sync(through=Servers(workers, own=False), wire=WIRE),
            workers * item * server_elements(4, 4, workers, workers) / 2,
        ),
    ):
        with_, without = (sum(wire_of(graph, planned(workers, base, *more), place)) for more in ((all_,), ()))
        assert with_ - without == pytest.approx(factors - otherwise)


@given(st.integers(1, 64), st.integers(1, 64), st.integers(1, 64), st.integers(2, 9), st.integers(1, 9))
def test_the_choice_is_the_smaller_number(rows: int, columns: int, samples: int, workers: int, servers: int) -> None:
    """FM-03: 2 K (P1 - 1) (M + N) <= 2 M N (P1 + P2 - 2) / P2, without a division; FM-01: factors up are fewer exactly
    below M N / (M + N)."""
    factors, gradients = samples * (workers - 1) * (rows + columns), rows * columns * (workers + servers - 2)
    assert broadcast_elements(rows, columns, samples, workers) == 2 * factors
    assert server_elements(rows, columns, workers, servers) == pytest.approx(2 * gradients / servers)
    assert broadcast_pays(rows, columns, samples, workers, servers) == (factors * servers <= gradients)
    assert push_pays(rows, columns, samples) == (samples < Fraction(rows * columns, rows + columns))


@pytest.mark.parametrize("batch", [6, 24, 240])
def test_the_planner_turns_where_the_counts_do(batch: int, graph: Graph) -> None:
    """FM-01, FM-03: layer by layer, and no more bytes in all than either way for all layers."""
    graph = replace(graph, global_batch=batch)
    machines, known = cluster_of(3), products(graph)
    chosen, pushed = (factored(lowered(graph, plan, machines)) for plan in ("poseidon", "adam"))
    for name, one in known.items():
        third, half = (samples_of(graph, one, batch // parts) for parts in (3, 2))
        assert (name in chosen) == broadcast_pays(one.rows, one.columns, third, 3, 3)
        assert (name in pushed) == push_pays(one.rows, one.columns, half)
    shared, every = Sync(through=Servers(3, own=False), wire=WIRE), Sync(payload=Payload.FACTOR, wire=WIRE)
    totals = [sum(wire_of(graph, planned(3, shared, *more), machines)) for more in ((), (every,))]
    assert sum(wire_of(graph, call("poseidon(slice_bytes=0)", graph, machines), machines)) <= min(totals)


def test_a_plan_of_factors_survives_its_text(graph: Graph) -> None:
    plan = call("poseidon", graph, cluster_of(3))
    assert read_plan(write_plan(plan)) == plan
    assert [sync.payload for sync in plan.sync] == [Payload.FACTOR] * (len(plan.sync) - 1) + [Payload.GRADIENT]


def test_what_is_no_product_is_refused(graph: Graph) -> None:
    machines = cluster_of(3)
    with pytest.raises(PlanError, match=r"factors of '9.weight', which is no dense layer's weight; there are 4.weight"):
        lowered(graph, "sfb(layers='9.weight')", machines)
    with pytest.raises(LoweringError, match="factors with stages, or with a memory of their own"):
        lowered(graph, "sfb(shard=optimizer)", machines)
    with pytest.raises(LoweringError, match="factors of bounded or weighted gradients"):
        lowered(replace(graph, clip_norm=1.0), "sfb", machines)
