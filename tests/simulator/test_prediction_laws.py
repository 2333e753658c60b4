"""Laws of whole predictions by data sheets, whatever the cluster: of what is not used, of names, of units, of links."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.cluster.cluster import Cluster, Device, Group, Link
from partita.cost.datasheet import datasheet_costs
from partita.simulator.simulate import simulate
from tests.priced import batches_of
from tests.programs import program_by
from tests.small import layers

PLANS = ("ddp", "zero1", "zero3", "gpipe(microbatches=2)", "ddp(collective='tree')", "ps_sharded")
CARD = Device("card", "cuda", flops=(("fp32", 1e9),), memory_bandwidth=1e8, multiprocessors=20)
CORE = Device("core", cores=1.0, flops=(("fp32", 1e9),), memory_bandwidth=1e8)
GRAPH = layers(6)


@st.composite
def clusters(draw) -> Cluster:
    """Two or three machines of two equal devices each, with links of any speed."""
    device = draw(st.sampled_from([CARD, CORE]))
    near, far = (Link(10 ** draw(st.floats(4, 11)), 10 ** draw(st.floats(-7, -2))) for _ in range(2))
    count = draw(st.integers(2, 3))
    nodes = tuple(Group(f"n{i}", (device,) * 2, (near,) * 2) for i in range(count))
    return Cluster("drawn", Group("root", nodes, (far,) * count))


def step(plan: str, cluster: Cluster, on: Cluster | None = None) -> float:
    """Seconds of the plan that is made for a cluster, there or `on` another one."""
    program, there = program_by(plan, GRAPH, cluster), on or cluster
    return simulate(program, datasheet_costs(GRAPH, there, batches_of(program))).step_seconds


@given(clusters(), st.sampled_from(PLANS), st.floats(3, 11), st.floats(-7, 0), st.floats(0.01, 100))
@settings(max_examples=25, deadline=None)
def test_a_device_more_that_nobody_uses_changes_nothing(cluster, plan, width, latency, speed) -> None:
    """However slow it or its link is."""
    root, last = cluster.root, replace(cluster.devices[0], speed=speed)
    more = replace(
        cluster,
        root=replace(root, members=(*root.members, last), ports=(*root.ports, Link(10**width, 10**latency))),
    )
    assert step(plan, cluster, more) == step(plan, cluster)


@given(clusters(), st.sampled_from(PLANS), st.floats(1, 1000))
@settings(max_examples=25, deadline=None)
def test_wider_and_shorter_links_are_not_slower(cluster, plan, factor) -> None:
    """In lockstep, by more than what an order of messages may lose where others come first (Graham's anomalies)."""
    better = cluster.rewired(lambda link: Link(link.bandwidth * factor, link.latency / factor))
    assert step(plan, cluster, better) <= step(plan, cluster) * 1.02


@pytest.mark.parametrize("plan", PLANS)
def test_names_of_machines_are_no_matter(plan: str) -> None:
    nodes = tuple(Group(name, (CARD,) * 2, (Link(1e9, 1e-6),) * 2) for name in "zxy")
    found = [step(plan, Cluster("named", Group("root", some, (Link(1e8, 1e-5),) * 3))) for some in (nodes, nodes[::-1])]
    assert found[0] == found[1]
