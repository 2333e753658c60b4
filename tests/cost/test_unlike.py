"""Clusters of unlike cards: what each takes, whichever comes first."""

from __future__ import annotations

import pytest

from partita import api
from partita.cluster.cluster import Cluster
from partita.cluster.text import read_cluster
from partita.cost.unlike import levelled
from partita.recipes.catalogue import call
from tests.captures import capture
from tests.small import cluster_of, perceptron, two_layers

MIXED = """
schema = 1
name = "mixed"
[network]
link = {{ bandwidth = "100 Gbit/s", latency = "2 us" }}
members = [{{ device = "{}", count = 2 }}, {{ device = "{}", count = 2 }}]
"""


def mixed(one: str, other: str) -> Cluster:
    return read_cluster(MIXED.format(one, other), "mixed.toml")


def test_devices_that_are_alike_stay_as_they_are() -> None:
    graph = capture(perceptron())
    for cluster in (cluster_of(3), Cluster.load("lab-4-slow1"), mixed("h100-sxm", "h100-sxm")):
        assert levelled(graph, cluster) is cluster


def test_a_slower_card_has_a_lower_speed_and_what_is_levelled_stays() -> None:
    graph = api.graph_of("vgg16-32")
    there, back = levelled(graph, mixed("h100-sxm", "t4")), levelled(graph, mixed("t4", "h100-sxm"))
    speeds = [device.speed for device in there.devices]
    assert speeds[:2] == [1.0, 1.0]
    assert speeds[2] == speeds[3] < 0.5
    assert back.devices[3].speed == pytest.approx(1 / speeds[3])
    assert there.devices[3].memory == mixed("h100-sxm", "t4").devices[3].memory
    assert levelled(graph, there) is there


def test_the_order_of_cards_does_not_matter_and_the_slow_ones_count() -> None:
    graph = api.graph_of("vgg16-32")
    places = [("h100-sxm", "t4"), ("t4", "h100-sxm"), ("t4", "t4"), ("h100-sxm", "h100-sxm")]
    first, second, slow, fast = (api.simulate(graph, "ddp", mixed(*place)).step_seconds for place in places)
    assert first == pytest.approx(second, rel=0.25)  # how sums land goes by the sheet of the first
    assert fast < first
    assert first == pytest.approx(slow, rel=0.25)


def test_stages_on_slow_cards_get_less() -> None:
    graph, cluster = api.graph_of("vgg16-32"), mixed("h100-sxm", "t4")
    uneven = call("gpipe(stages=4)", graph, levelled(graph, cluster))
    assert uneven.stages != call("gpipe(stages=4)", graph, mixed("h100-sxm", "h100-sxm")).stages
    assert api.plan_of("gpipe(stages=4)", graph, cluster).stages == uneven.stages


CORES = """
schema = 1
[device.half]
cores = 0.5
flops = { fp32 = "50 GFLOP/s" }
memory_bandwidth = "10 GB/s"
[device.core]
cores = 1
flops = { fp32 = "50 GFLOP/s" }
memory_bandwidth = "10 GB/s"
[device.host]
cores = 32
flops = { fp32 = "3 TFLOP/s" }
memory_bandwidth = "200 GB/s"
[network]
link = { bandwidth = "1 Gbit/s", latency = "100 us" }
"""


def cores(*kinds: str) -> Cluster:
    members = ", ".join(f"{{ device = '{kind}' }}" for kind in kinds)
    return read_cluster(f"{CORES}members = [{members}]\n", "cores.toml")


@pytest.mark.parametrize("kinds", [("half", "core", "host"), ("host", "half", "core")])
def test_quotas_are_levelled_once(kinds: tuple[str, ...]) -> None:
    """A half core's sheet is of the half: it computes as much in a second as a core of such a sheet."""
    graph = two_layers(100_000)
    there = levelled(graph, cores(*kinds))
    pace = {kind: device.pace for kind, device in zip(kinds, there.devices, strict=True)}
    assert pace["half"] == pytest.approx(pace["core"], rel=0.05)  # calls are of the whole core
    assert levelled(graph, there) is there


@pytest.mark.parametrize("plan", ["ddp", "ddp(collective='tree')", "zero1"])
def test_what_messages_take_does_not_go_by_the_sheet_of_the_first(plan: str) -> None:
    """A call takes any device as long: it is not sixty times as long on a core that comes behind a large host, nor a
    sixtieth on a host behind a core."""
    graph = capture(perceptron())
    orders = (("host", "core", "core"), ("core", "core", "host"), ("core", "host", "core"))
    found = [api.simulate(graph, plan, cores(*kinds)).step_seconds for kinds in orders]
    assert found == pytest.approx([found[0]] * 3, rel=0.1)
