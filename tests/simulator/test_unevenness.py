"""Workers that are not equally quick in every round overtake each other, as far as their plan lets them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from partita.cost.datasheet import datasheet_costs
from partita.lowering.lower import last_program
from partita.lowering.samples import sizes_of
from partita.program.ledger import staleness_of
from partita.recipes.catalogue import call
from partita.simulator.activities import resources_of
from partita.simulator.clock import advance
from partita.simulator.simulate import clocked, setting_of, simulate
from partita.simulator.unevenness import PARTS, uneven, unevenly_shared
from tests.activities import Activity, activities_of
from tests.small import cluster_of, two_layers


@pytest.mark.parametrize(("text", "spreads"), [("ps_async", True), ("ddp", False), ("ps_sync", False)])
def test_only_who_goes_at_its_own_pace_is_uneven(text: str, spreads: bool) -> None:
    graph, cluster = two_layers(), cluster_of(4)
    plan = call(text, graph, cluster)
    program, even = last_program(graph, plan, cluster), datasheet_costs(graph, cluster, sizes_of(plan, graph))
    found = simulate(program, replace(even, unevenness=0.3))
    assert (found.step_seconds != simulate(program, even).step_seconds) == spreads
    assert found == simulate(program, replace(even, unevenness=0.3))
    assert (len(staleness_of(found.ledger)) > 1) == spreads


@pytest.mark.parametrize("spread", [0.1, 0.4])
def test_what_rounds_take_has_that_deviation_and_the_same_mean(spread: float) -> None:
    graph, cluster = two_layers(), cluster_of(4)
    plan = call("ps_async", graph, cluster)
    costs = replace(datasheet_costs(graph, cluster, sizes_of(plan, graph)), unevenness=spread)
    program = last_program(graph, plan, cluster)
    layout = clocked(program, costs, rounds=400, setting=setting_of(program, costs)).layout
    more = uneven(layout, costs, np.ones(layout.rounds * layout.count))
    workers = next(role for role in program.roles if role.keeps == "model")
    place = [i.name for i in workers.instructions].index("F")
    factors = 1 + more[layout.at(workers)[:, place]]
    assert factors.mean() == pytest.approx(1.0, abs=0.02)
    assert np.log(factors).std() == pytest.approx(spread, abs=0.015)
    sends = [i.name.startswith("S") for i in workers.instructions]
    assert not more[layout.at(workers)[:, sends]].any()


def test_messages_get_uneven_parts_of_a_port_that_they_share_and_all_of_one_that_is_theirs() -> None:
    """Ten of ten bytes each on a port of 10 bytes a second, and one on another: the last of the ten ends after 10 s."""
    work = [Activity(demands=((1, 10.0),))] * 10 + [Activity(demands=((2, 10.0),))]
    even, resources = activities_of(work), resources_of(((1.0, 1.0, 0.0), (10.0, 10.0, 0.0), (10.0, 10.0, 0.0)))
    ends, uneven_ends = (advance(each, resources)[1] for each in (even, unevenly_shared(even, range(1, 3))))
    assert ends[:10] == pytest.approx(10.0)
    assert len(set(uneven_ends[:10].round(6))) == 10
    assert uneven_ends[:10].max() == pytest.approx(10.0)
    assert uneven_ends[10] == pytest.approx(ends[10]) == pytest.approx(1.0)
    many = activities_of([Activity(demands=((1, 10.0),))] * 2000)
    parts = np.log(unevenly_shared(many, range(1, 3)).demand_times)
    assert parts.std() == pytest.approx(PARTS, rel=0.05)


def test_processors_are_shared_evenly_by_who_shares_a_port_unevenly() -> None:
    both = activities_of([Activity(demands=((0, 1.0), (1, 10.0)))] * 50)
    found = unevenly_shared(both, range(1, 3))
    assert set(found.demand_times[both.demand_resource == 0].tolist()) == {1.0}
    assert len(set(found.demand_times[both.demand_resource == 1].tolist())) == 50
    np.testing.assert_allclose(found.demand_amount * found.demand_times, both.demand_amount)
