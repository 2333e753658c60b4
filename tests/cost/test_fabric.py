"""Collectives on links from data sheets: laws, published constants, and that the clock says the same."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.cluster.cluster import Cluster, Device, Group, Link
from partita.cluster.text import load_cluster
from partita.cost.datasheet import datasheet_costs
from partita.cost.fabric import (
    CALL,
    LAUNCH,
    NVLS_HOP,
    RING,
    RING_HOP,
    SIZES,
    STUMBLES,
    TREE,
    TREE_HOP,
    Fabric,
    Protocol,
    candidates,
    fabric_of,
    fastest,
    of_hosts,
    ring,
    wired,
)
from partita.cost.wiring import PASSES, Circle, circle_of
from partita.program.instruction import Collective, Instruction
from partita.program.layout import Bucket
from partita.program.program import Lane, Program, Role
from partita.program.space import Kind
from partita.simulator.simulate import simulate
from tests.small import two_layers

CLUSTERS = [load_cluster(name) for name in ("a100-dgx", "h200-dgx-x4")]
(A100, H200), (PLAIN, SUMMING) = map(fabric_of, CLUSTERS), map(wired, CLUSTERS)
KINDS = st.sampled_from([Kind.ALL_REDUCE, Kind.REDUCE_SCATTER, Kind.ALL_GATHER, Kind.BROADCAST])
TRUTH = Path(__file__).parents[3] / "shared" / "truth" / "nccl_tuning_latencies.csv"
KEPT = {  # that NCCL has had since
    ("base", "-", "Ring", "Simple"), *(("hw_per_hop", "NVLink", "Ring", protocol) for protocol in ("LL128", "Simple")),
    *(("hw_per_hop", "PCI", "Ring", protocol) for protocol in ("LL", "LL128", "Simple")),
    *(("hw_per_hop", "PCI", "Tree", protocol) for protocol in ("LL", "LL128")),
    *(("hw_per_hop", "NET", way, protocol) for way in ("Ring", "Tree") for protocol in ("LL", "LL128")),
}  # fmt: skip


def seconds(fabric: Fabric, kind: Kind, ranks: int, machines: int, size: float) -> float:
    return float(fastest(fabric, kind, ranks, machines, np.array([size], np.float64))[0][0])


def test_published_constants() -> None:
    """NVIDIA/nccl 2.28, src/graph/tuning.cc and topo.h."""
    assert (RING, TREE, NVLS_HOP) == ((6.6, 14.0, 8.4), (6.8, 14.0, 8.4), 25.0)
    assert RING_HOP == {"nvlink": (0.6, 1.9, 3.4), "pcie": (1.0, 2.5, 5.7), "network": (2.7, 4.0, 14.0)}
    assert TREE_HOP == {"nvlink": (0.6, 1.25, 4.0), "pcie": (1.0, 1.9, 4.0), "network": (5.0, 8.5, 14.0)}
    assert STUMBLES.shape == (3, 24)
    assert STUMBLES.min(axis=1).tolist() == [0.4, 0.6, 0.5]
    assert A100.near == pytest.approx(12 * 20e9)
    sums = {name: fabric_of(load_cluster(f"{name}-dgx")).sums for name in ("v100", "a100", "h100", "h200", "b200")
            if name != "v100"}  # fmt: skip
    assert sums == {"a100": 0.0, "h100": 0.85, "h200": 0.85, "b200": 0.74}


@pytest.mark.skipif(not TRUTH.exists(), reason="the published tables are not here")
def test_what_has_not_changed_since_the_first_table() -> None:
    """The table is of NCCL 2.8; most of a ring's figures are still those."""
    links, found = {"NVLink": "nvlink", "PCI": "pcie", "NET": "network"}, 0
    for row in csv.DictReader(TRUTH.open()):
        key = row["kind"], row["link"], row["algorithm"], row["protocol"]
        if key in KEPT:
            protocol = ["LL", "LL128", "Simple"].index(row["protocol"])
            hops = {"Ring": RING_HOP, "Tree": TREE_HOP}[row["algorithm"]]
            ours = RING[protocol] if row["kind"] == "base" else hops[links[row["link"]]][protocol]
            assert ours == float(row["latency_us"]), key
            found += 1
    assert found == len(KEPT)


@given(KINDS, st.integers(2, 8), st.integers(1, 6), st.floats(1, 36), st.floats(0.01, 3), st.booleans())
def test_more_bytes_take_longer(kind: Kind, each: int, nodes: int, power: float, more: float, sums: bool) -> None:
    fabric = H200 if sums else A100
    times = [seconds(fabric, kind, each * nodes, nodes, 2**exponent) for exponent in (power, power + more)]
    assert times[0] <= times[1]


@given(KINDS, st.integers(2, 7), st.integers(1, 6), st.floats(1, 36))
def test_more_ranks_take_longer(kind: Kind, each: int, nodes: int, power: float) -> None:
    """A ring's; where a switch sums, more ranks share what it sends to each."""
    at = 2.0**power
    alone = seconds(A100, kind, each * nodes, nodes, at)
    assert alone <= seconds(A100, kind, (each + 1) * nodes, nodes, at) * (1 + 1e-12)
    if nodes > 1:
        assert alone <= seconds(A100, kind, each * (nodes + 1), nodes + 1, at) * (1 + 1e-12)


@given(KINDS, st.integers(2, 8), st.integers(1, 4))
def test_large_ones_tend_to_the_bandwidth(kind: Kind, each: int, nodes: int) -> None:
    """A ring's bytes over its slowest link, but for what copying the last chunk takes."""
    ranks, size = each * nodes, 2.0**45
    passes = {Kind.BROADCAST: ranks / (ranks - 1)}.get(kind, PASSES.get(kind, 2))
    bound = passes * (ranks - 1) / ranks * size / A100.rate(ranks, nodes)
    landing = 0.0 if kind is Kind.BROADCAST else size / ranks / A100.landing
    found = seconds(A100, kind, ranks, nodes, size)
    assert bound * (1 - 1e-12) <= found <= (bound + landing) * (1 + 1e-3)


@given(KINDS, st.integers(2, 8), st.integers(1, 4), st.integers(0, len(SIZES) - 1), st.booleans())
def test_the_choice_is_the_fastest_and_the_curve_says_so(
    kind: Kind, each: int, nodes: int, entry: int, sums: bool
) -> None:
    """And the waiting of a wiring, with bytes over ports, is that."""
    fabric, ranks, size = H200 if sums else A100, each * nodes, SIZES[[entry]]
    least = min(float(time[0]) for time, _ in candidates(fabric, kind, ranks, nodes, size))
    waits, part = (SUMMING if sums else PLAIN).waits(size, Circle(ranks, nodes), kind)
    moved = PASSES.get(kind, 2) * (ranks - 1) / ranks * size[0] / fabric.ports(nodes)
    assert float(waits[0]) + max(CALL, float(part[0]) * moved) == pytest.approx(least)
    assert least == seconds(fabric, kind, ranks, nodes, float(size[0])) >= LAUNCH


def test_switches_that_sum_pay_from_five_on() -> None:
    """As measured on 8 GiB: on four H200 a ring is as fast, from five on it is not."""
    plain, size = replace(H200, sums=0.0), 2.0**33
    gains = [
        seconds(plain, Kind.ALL_REDUCE, p, 1, size) / seconds(H200, Kind.ALL_REDUCE, p, 1, size) for p in (3, 5, 8)
    ]
    assert gains[0] == 1 < gains[1] < gains[2] < 1.5


def test_quick_protocols_are_for_small_messages_and_meshes_for_all() -> None:
    times = [[ring(A100, Kind.ALL_REDUCE, 8, 1, p, np.array([size]))[0] for p in Protocol] for size in (1e4, 4e6, 1e9)]
    assert [int(np.argmin(each)) for each in times] == [Protocol.LL, Protocol.LL128, Protocol.SIMPLE]
    mesh = fabric_of(load_cluster("v100-dgx1"))
    assert [mesh.rate(p, 1) / mesh.near * 6 for p in range(2, 9)] == pytest.approx([1, 2, 4, 2, 3, 4, 6])


def test_a_wire_without_nvlink_has_no_flags_of_120_bytes() -> None:
    boxes = fabric_of(load_cluster("a100-pcie-10gbe-x2"))
    assert boxes.kind == "pcie"
    assert len(list(candidates(boxes, Kind.ALL_GATHER, 4, 1, SIZES))) == 2


@pytest.mark.parametrize("kind", [Kind.ALL_REDUCE, Kind.REDUCE_SCATTER, Kind.ALL_GATHER])
@pytest.mark.parametrize("ranks", [2, 8, 32])
@pytest.mark.parametrize("elements", [2**12, 2**20, 2**28])
def test_the_clock_takes_as_long(kind: Kind, ranks: int, elements: int) -> None:
    """CO-01 on data sheets: a collective alone, of all algorithms the fastest."""
    machines = load_cluster("h200-dgx-x4")
    bucket = Bucket("b0", "float32", elements, ())
    act = Collective(kind, bucket.name, (tuple(range(ranks)),))
    role = Role("all", tuple(range(ranks)), (Instruction("A", act, "compute"),), (Lane("compute"),))
    costs = datasheet_costs(two_layers(), machines, ())
    found = simulate(Program("alone", (role,), (), (bucket,), 1), costs).step_seconds
    assert found == pytest.approx(seconds(H200, kind, ranks, max(ranks // 8, 1), 4 * elements), rel=1e-3)


def test_groups_within_a_machine_take_less_than_across() -> None:
    """Two of the same size, one on one machine and one with a rank on each of several."""
    costs = datasheet_costs(two_layers(), load_cluster("h200-dgx-x8"), ())
    near, far = (costs.wiring.waiting(2**20, circle) for circle in (Circle(8, 1), Circle(8, 8)))
    assert near < far


def unequal(sums: float = 0.85) -> Cluster:
    """Two nodes of four cards on wide links, two on a narrow and long one, and a card by itself."""
    card = Device("card", "cuda", flops=(("fp32", 2e13),), memory_bandwidth=1e12, multiprocessors=100)
    wide = Group("wide", (card,) * 4, (Link(4e11, 1e-6),) * 4, sums)
    others = replace(wide, name="old", ports=(Link(1e10, 1e-5),) * 4, sums=0.0)
    far = Link(5e10, 2e-6), Link(5e10, 2e-6), Link(1e6, 1e-2), Link(1e6, 1e-2), Link(1e7, 1e-3)
    last = replace(card, speed=0.1, multiprocessors=10)
    return Cluster(
        "unequal", Group("root", (wide, replace(wide, name="b"), others, replace(others, name="d"), last), far)
    )


@pytest.mark.parametrize("ranks", [(0, 1, 2, 3), (0, 1, 4, 5), tuple(range(8))])
def test_links_and_devices_that_a_group_does_not_use_are_no_matter(ranks: tuple[int, ...]) -> None:
    """On either clock and for each kind, the group has the curve that it has where there is nothing else."""
    whole, size = unequal(), np.array([2.0**10, 2.0**20, 2.0**30])
    alone = replace(whole, root=replace(whole.root, members=whole.root.members[:2], ports=whole.root.ports[:2]))
    for of in (wired, lambda cluster: of_hosts(wired(cluster))):
        for kind in Kind:
            found, own = (of(cluster).curves.of(kind, circle_of(ranks, cluster)) for cluster in (whole, alone))
            assert found == own
    slow = wired(whole).waits(size, circle_of((8, 12), whole))[0]
    assert (slow > 10 * wired(whole).waits(size, circle_of((0, 4), whole))[0]).all()


def test_processors_keep_their_chains() -> None:
    devices = (Device(cores=1.0),) * 3
    machines = Cluster("three", Group("root", devices, (Link(1e9, 1e-5),) * 3))
    costs = datasheet_costs(two_layers(), machines, ())
    assert costs.wiring.waiting(2**20, Circle(3, 3, 2e-5)) == pytest.approx(4 * (100e-6 + 2e-5))


@pytest.mark.parametrize(("name", "part"), [("a100-dgx", 16 / 108), ("h200-dgx-x4", 16 / 132)])
def test_bytes_that_flow_take_multiprocessors(name: str, part: float) -> None:
    """As long as they flow, on the device and not on its host; a small collective takes no more than its call."""
    cluster = load_cluster(name)
    wiring, circle = wired(cluster), Circle(8, 1)
    fabric = fabric_of(cluster)
    flowing = 7 / 8 * 2.0**30 / fabric.ports(1)
    assert wiring.reducing(2**30, circle, Kind.ALL_GATHER) == pytest.approx(part * flowing)
    assert wiring.reducing(64, circle, Kind.ALL_GATHER) == CALL
    host = datasheet_costs(two_layers(), cluster, (4,)).launching
    assert host is not None
    assert host.wiring.reducing(2**30, circle, Kind.ALL_GATHER) == CALL
