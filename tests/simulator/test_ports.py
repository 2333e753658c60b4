"""Which ports a message passes, and the latency of its way, against the cluster's own walk through its tree."""

from __future__ import annotations

from dataclasses import replace
from itertools import count, permutations

import numpy as np
import pytest

from partita.cluster.cluster import Cluster, Device, Group, Link
from partita.cost.wiring import Wiring
from partita.simulator.ports import Ports


def uneven_tree() -> Cluster:
    """Two racks, one of a node of two and a device by itself, one of a device; every port has another bandwidth and
    latency, and one serves both ways together."""
    node = Group("node", (Device(cores=1.0),) * 2, (Link(1e8, 0.0),) * 2)
    left = Group("left", (node, Device(cores=1.0)), (Link(1e8, 0.0), Link(1e8, 0.0, 0, duplex=False)))
    right = Group("right", (Device(cores=1.0),), (Link(1e8, 0.0),))
    numbers = count(1)
    return Cluster("uneven", Group("root", (left, right, Device(cores=1.0)), (Link(1e8, 0.0),) * 3)).rewired(
        lambda link: replace(link, bandwidth=link.bandwidth * (n := next(numbers)), latency=n * 1e-3)
    )


@pytest.mark.parametrize(("source", "target"), list(permutations(range(5), 2)))
def test_a_message_passes_the_ports_of_its_route(source: int, target: int) -> None:
    cluster = uneven_tree()
    ports = Ports(cluster, Wiring(start=0.0, efficiency=1.0))
    message, resource, latency = ports.routes(np.array([source]), np.array([target]))
    assert latency == pytest.approx([cluster.way(source, target)])
    assert message.tolist() == [0] * len(resource)
    _, up, down = ports.table
    climbed, descended = cluster.route(source, target)
    wanted = [*(up[port.path] for port in climbed), *(down[port.path] for port in descended)]
    assert sorted(resource.tolist()) == sorted(wanted)
    rates = sorted(port.link.bandwidth for port in (*climbed, *descended))
    assert sorted(ports.resources.rate[resource].tolist()) == pytest.approx(rates)
    both_ways = {up[path] for path in up if up[path] == down[path]}
    assert both_ways == {up[0, 1]}
