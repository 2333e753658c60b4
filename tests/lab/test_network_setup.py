from __future__ import annotations

from dataclasses import replace

import pytest

from partita.cluster.cluster import Link
from partita.cluster.text import load_cluster
from partita.errors import ClusterError
from partita.lab.network_setup import address, shape, wire_up

PATHS = tuple(f"/net/{i}" for i in range(5))


def test_a_nodes_uplink_is_shared_by_its_devices() -> None:
    wiring = wire_up(load_cluster("lab-2x2"), PATHS, netem=False)
    assert "link add d3 type veth peer name eth0 netns /net/4" in wiring.ip[0]
    assert "link set d3 addrgenmode none master b2 up" in wiring.ip[0]
    assert "link set u2 addrgenmode none master b0 up" in wiring.ip[0]
    rates = {line.split()[3]: line.split()[line.split().index("rate") + 1] for line in wiring.tc[0]}
    assert rates == {
        "d0": "10000000000bit", "d1": "10000000000bit", "u1": "1000000000bit", "c1": "1000000000bit",
        "d2": "10000000000bit", "d3": "10000000000bit", "u2": "1000000000bit", "c2": "1000000000bit",
    }  # fmt: skip
    assert wiring.ip[4] == (
        "link set lo up", "link set eth0 addrgenmode none up", "addr add 10.77.0.4/16 dev eth0",
    )  # fmt: skip
    assert len(wiring.tc[4]) == 1


@pytest.mark.parametrize(
    ("link", "brought", "packets"),
    [(Link(1.25e8), 250_000, 173), (Link(1.25e7), 65536, 46), (Link(1.25e7, burst=9000), 9000, 7)],
)
def test_the_bucket_holds_two_milliseconds_with_their_headers(link: Link, brought: int, packets: int) -> None:
    words = shape("eth0", link, netem=False)[0].split()
    burst = int(words[words.index("burst") + 1][:-1])
    assert brought + packets * 66 <= burst <= brought + (packets + 1) * 66


def test_latency_is_emulated_where_the_kernel_can() -> None:
    assert len(shape("eth0", Link(1e9, latency=1e-3), netem=False)) == 1
    assert "netem delay 1000.000us" in shape("eth0", Link(1e9, latency=1e-3), netem=True)[1]
    assert len(shape("eth0", Link(1e9, latency=0.0), netem=True)) == 1


def test_addresses_are_all_different() -> None:
    assert len({address(rank) for rank in range(4096)}) == 4096
    assert address(255) == "10.77.1.0"


def test_a_lab_has_its_limits() -> None:
    cluster = load_cluster("h100-dgx-x1024")
    with pytest.raises(ClusterError, match="8192 devices; a lab holds 4096 at most"):
        wire_up(replace(cluster, emulated=True), PATHS, netem=False)


def test_even_the_fastest_port_has_a_queue_that_tc_takes() -> None:
    words = shape("eth0", Link(4e12), netem=False)[0].split()
    assert int(words[words.index("limit") + 1][:-1]) < 2**32
    assert int(words[words.index("burst") + 1][:-1]) < 2**32
