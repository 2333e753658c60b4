"""The algorithm that `collective=auto` stands for is the fastest that is predicted, for each size of message."""

from __future__ import annotations

from dataclasses import replace

import pytest

from partita.cluster.cluster import Cluster, Device, Group, Link
from partita.cost.costs import Costs
from partita.lowering.lower import last_program
from partita.plan.plan import Plan
from partita.plan.text import read_plan, write_plan
from partita.plan.wire import Codec
from partita.program.instruction import Collective
from partita.recipes.catalogue import call
from partita.recipes.fastest import ALIKE, candidates, choice, timed
from partita.simulator.simulate import simulate
from partita.wire.algorithms import BACKEND, STREAMS
from tests.priced import priced, whole_cores
from tests.small import two_layers

BATCHES = (1, 2, 4)


def costs_on(machines: Cluster, latency: float) -> Costs:
    return priced(two_layers(), machines, BATCHES, latency=latency)


def text(size: int) -> str:
    return f"ddp(collective=auto,bucket_bytes={size},first_bucket_bytes=40,order=fifo)"


def algorithms(plan: Plan, costs: Costs) -> dict[int, str]:
    """Bytes -> the algorithm of its bucket."""
    program = last_program(costs.graph, plan, costs.cluster)
    acts = program.acts(Collective)
    return {program.payload(act): act.algorithm for act in acts}


@pytest.mark.parametrize("latency", [0.0, 1e-4, 1e-2])
@pytest.mark.parametrize("ranks", [2, 4])
def test_no_other_schedule_is_predicted_to_be_faster(ranks: int, latency: float) -> None:
    costs = costs_on(whole_cores(ranks, 1e5), latency)
    plan = call(text(100), costs.graph, costs.cluster, costs)
    chosen = algorithms(plan, costs)
    assert len(chosen) > 1
    for size, algorithm in chosen.items():
        seconds = {name: second for second, name in timed(size, ranks, None, costs)}
        near = [name for name, second in seconds.items() if second <= ALIKE * min(seconds.values())]
        assert algorithm == near[0]


def test_of_schedules_that_are_alike_the_first_is_taken_and_no_lead_is_given_away() -> None:
    """The backend's own comes first; rounding errors between equal schedules decide nothing."""
    assert choice([(1.0, BACKEND), (1.0 - 1e-12, "ring"), (0.97, "tree")]) == BACKEND
    assert choice([(1.0, BACKEND), (0.9, "ring"), (0.9 - 1e-12, "tree")]) == "ring"


def test_small_messages_double_and_large_ones_go_round() -> None:
    """CO-04, CO-05: few steps where latency rules, few bytes where bandwidth does; the plan says both."""
    costs = costs_on(whole_cores(4, 1e5), 3e-4)
    plan = call(text(48), costs.graph, costs.cluster, costs)
    small, large = (choice(timed(size, 4, None, costs)) for size in (4, 10**6))
    assert small == "doubling" != large
    assert plan.sync[0].wire.collective != "auto"
    assert read_plan(write_plan(plan)) == plan


def test_what_schedules_were_timed_to_take_decides() -> None:
    """Among fewer ranks, for codecs and where one was not timed the clock does."""
    costs = costs_on(whole_cores(4, 1e5), 3e-4)
    rows = dict.fromkeys(candidates(4), ((2**10, 0.002), (2**14, 0.008))) | {"tree": ((2**10, 1e-3), (2**14, 2e-2))}
    known = replace(costs, wiring=replace(costs.wiring, schedules=tuple(rows.items())))
    assert [choice(timed(size, 4, None, known)) for size in (4, 2**10, 2**14)] == ["tree", "tree", BACKEND]
    between = {name: seconds for seconds, name in timed(2**12, 4, None, known)}
    assert (between["tree"], between["ring"]) == pytest.approx((1.05e-2, 5e-3))
    beyond = {name: seconds for seconds, name in timed(2**16, 4, None, known)}
    assert (beyond["tree"], beyond["ring"]) == pytest.approx((8e-2, 3.2e-2))
    for size, ranks, codec in ((2**10, 2, None), (2**10, 4, Codec("q8"))):
        assert list(timed(size, ranks, codec, known)) == list(timed(size, ranks, codec, costs))
    some = replace(known, wiring=replace(known.wiring, schedules=known.wiring.schedules[1:]))
    assert list(timed(4, 4, None, some)) == list(timed(4, 4, None, costs))


def test_the_whole_plan_is_no_slower_than_with_any_one_schedule() -> None:
    costs = costs_on(whole_cores(4, 1e5), 1e-4)

    def seconds(collective: str) -> float:
        plan = call(f"ddp(collective={collective})", costs.graph, costs.cluster, costs)
        return simulate(last_program(costs.graph, plan, costs.cluster), costs).step_seconds

    others = [seconds(name) for name in candidates(4)]
    assert seconds("auto") <= min(others) * ALIKE < max(others)


def test_nodes_and_codecs_have_candidates_of_their_own() -> None:
    """CO-07: the nodes of a cluster; a codec of every hop needs a schedule."""
    assert "hierarchical(2)" in candidates(4)
    assert BACKEND not in candidates(4, coded=True)
    node = Group("node", (Device(cores=1.0),) * 2, (Link(1e7, 0.0),) * 2)
    costs = costs_on(Cluster("nodes", Group("root", (node, node), (Link(1e5, 0.0),) * 2)), 1e-5)
    seconds = {name: second for second, name in timed(10**5, 4, None, costs)}
    assert seconds["hierarchical(2)"] < seconds["doubling"]
    plan = call("ddp(collective=auto,codec=q8)", costs.graph, costs.cluster, costs)
    assert BACKEND not in algorithms(plan, costs).values()
    assert plan.sync[0].wire.codecs == (Codec("q8", "hop"),)


@pytest.mark.parametrize("ratio", [0.03, 0.4])
@pytest.mark.parametrize("latency", [0.0, 1e-2])
def test_entries_go_by_what_makes_the_step_shortest(ratio: float, latency: float) -> None:
    """CO-09: codings that all get, or one of the sums of entries."""
    costs, codec = costs_on(whole_cores(4, 1e5), latency), f"codec=topk(ratio={ratio})"

    def seconds(collective: str) -> float:
        plan = call(f"ddp({codec},collective={collective})", costs.graph, costs.cluster, costs)
        return simulate(last_program(costs.graph, plan, costs.cluster), costs).step_seconds

    steps = {name: seconds(name) for name in (BACKEND, *STREAMS)}
    assert seconds("auto") == min(steps.values()) < max(steps.values())
    chosen = call(f"ddp({codec},collective=auto)", costs.graph, costs.cluster, costs).sync[0].wire.collective
    assert (chosen in STREAMS) == (min(steps[name] for name in STREAMS) < steps[BACKEND])


@pytest.mark.parametrize("text", ["ddp(collective=auto)", "ddp(collective=auto,segments=compiled)"])
def test_without_costs_data_sheets_choose(text: str) -> None:
    graph, machines = two_layers(), whole_cores(4, 1e9)
    plan = call(text, graph, machines)
    assert plan.sync[0].wire.collective in candidates(4)


@pytest.mark.parametrize("knobs", ["codec=topk", "codec=dgc,ramp=2,microbatches=2", "codec=topk,segments=compiled"])
def test_without_costs_data_sheets_choose_for_chosen_entries(knobs: str) -> None:
    plan = call(f"ddp(collective=auto,{knobs})", two_layers(), whole_cores(4, 1e9))
    for one in (plan, *(phase.plan for phase in plan.before)):
        assert one.sync[0].wire.collective in (BACKEND, *STREAMS)
