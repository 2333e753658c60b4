"""Nodes of several accelerators on a narrow network: the formula against the clock, and what more nodes may not do."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from partita.api import search
from partita.cluster.cluster import Cluster, Group, Link
from partita.cost.datasheet import datasheet_costs
from partita.recipes.catalogue import call
from partita.searches.auto import auto
from partita.searches.shortlist import Listed, shortlist_of
from tests.searches.accelerators import deep, machines
from tests.searches.test_auto import clocked, grid_of
from tests.searches.test_lower_bounds import tied


def nodes(count: int, between: float) -> Cluster:
    """Nodes of four, each with one port."""
    node = machines(4, 1e7).root
    return Cluster(f"nodes-{count}", Group("root", (node,) * count, (Link(between, 1e-5),) * count))


def test_messages_of_replicas_share_the_port_of_their_node() -> None:
    """And a weight that the first and the last stage have is summed up between them, behind all passes: by formula as
    by the clock, whether stages lie side by side on a node or each on its own."""
    graph, cluster = tied(deep(16)), nodes(4, 3e5)
    space, estimates = grid_of(graph, cluster)
    data, pipe = space.column("data"), space.column("pipe")
    drawn = np.flatnonzero((pipe > 1) & ((data * pipe == 4) | (data == 4)) & (space.column("shard") < 2))
    ratio = [estimates.seconds[i] / clocked(graph, cluster, space.call(i))[0] for i in drawn[::15].tolist()]
    assert len(ratio) > 20
    assert min(ratio) > 0.8
    assert np.median(np.abs(np.log(ratio))) < np.log(1.15)


def test_gathers_of_all_weights_take_their_lane() -> None:
    """Of divided weights and one microbatch: three times all bytes, however many buckets hide them."""
    graph, cluster = deep(16), machines(8, 1e4)
    space, estimates = grid_of(graph, cluster)
    divided = (space.column("shard") == 3) & (space.column("pipe") == 1) & (space.column("microbatches") == 1)
    drawn = np.flatnonzero(divided & (space.column("data") > 2))
    few = replace(space.some(drawn), buckets=np.full(len(drawn), graph.trained_bytes // 8))
    for i, seconds in enumerate(estimates.step_seconds(few, 1.0).tolist()):
        assert seconds > 0.8 * clocked(graph, cluster, few.call(i))[0]


@pytest.mark.parametrize(
    ("counts", "between"),
    [((1, 5, 8), 3e5), ((6, 7), 1e5), pytest.param((1, 2, 3, 4, 5, 6, 7, 8), 1e6, marks=pytest.mark.slow)],
)
def test_more_nodes_do_not_make_the_best_plan_worse(counts: tuple[int, ...], between: float) -> None:
    """What is best on a few of them is still there where there are more, equal ones."""
    graph, steps = tied(deep(16)), list[float]()
    for count in counts:
        found = search(graph, nodes(count, between), source="datasheet")
        steps.append(min(one.timeline.step_seconds for one in found.candidates if one.fits))
    assert all(more <= fewer * (1 + 1e-9) for fewer, more in pairwise(steps))


def test_of_each_family_the_best_by_formula_is_clocked_where_it_may_be_better() -> None:
    """Where the formula underrates all pipes, and these take all the room there is for clocking, the others are not
    left out."""
    graph, cluster = tied(deep(16)), nodes(6, 3e5)
    shortlist = shortlist_of(graph, cluster)
    estimates, piped = shortlist.estimates, shortlist.estimates.space.column("pipe") > 1
    misled = replace(estimates, seconds=np.where(piped, estimates.seconds / 8, estimates.seconds))
    slow = tuple(call(f"gpipe(stages=2,data=4,microbatches={m})", graph, cluster) for m in (2, 4))
    costs = datasheet_costs(graph, cluster, (1, 2, 4))
    wrong = replace(shortlist, estimates=misled, listed=tuple(Listed(plan, 1e-3, 0.0) for plan in slow), points=())
    best = auto(wrong, costs).candidates[0]
    right = auto(shortlist, datasheet_costs(graph, cluster, (1, 2, 4, 8, 16))).candidates[0]
    assert right.plan.name.startswith("ddp(data=4")
    assert best.timeline.step_seconds == pytest.approx(right.timeline.step_seconds)
