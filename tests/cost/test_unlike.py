"""Clusters of unlike cards: what each takes, whichever comes first."""

from __future__ import annotations

from dataclasses import replace

import pytest

from partita import api
from partita.cluster.cluster import Cluster
from partita.cluster.text import read_cluster
from partita.cost.datasheet import datasheet_costs
from partita.cost.sheets import least, sheet_of
from partita.cost.unlike import levelled
from partita.graph.batch import of_minibatch
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
    assert first == pytest.approx(second, rel=1e-9)
    assert fast < first
    assert first == pytest.approx(slow, rel=0.25)


GENERATIONS = ("h100-sxm", "a100-sxm", "v100-sxm2", "t4")


def joined(*members: str) -> Cluster:
    each = ", ".join(f"{{ device = '{name}' }}" for name in members)
    return read_cluster(f"{HOST}members = [{each}]\n", "joined.toml")


HOST = """
schema = 1
[device.host]
cores = 16
flops = { fp32 = "1 TFLOP/s" }
memory_bandwidth = "100 GB/s"
[network]
link = { bandwidth = "100 Gbit/s", latency = "2 us" }
"""


@pytest.mark.parametrize("plan", ["ddp", "zero1", "zero3", "ddp(codec=q8)"])
@pytest.mark.parametrize("cards", [GENERATIONS, ("h100-sxm", "host", "t4", "host")])
def test_no_answer_depends_on_who_comes_first(plan: str, cards: tuple[str, ...]) -> None:
    graph = two_layers(4_000_000)
    orders = [cards, cards[::-1], (*cards[2:], *cards[:2])]
    found = [api.simulate(graph, plan, joined(*order)).step_seconds for order in orders]
    close = 1e-2 if "codec" in plan else 1e-9  # places in a schedule of messages are not quite alike
    assert found == pytest.approx([found[0]] * 3, rel=close)


def test_updates_copies_and_gaps_go_by_each_cards_own_sheet() -> None:
    graph = two_layers(4_000_000)
    cluster = levelled(graph, joined(*GENERATIONS))
    costs = datasheet_costs(graph, cluster, (1,))
    for rank, card in enumerate(GENERATIONS):
        alone = datasheet_costs(graph, joined(card), (1,))
        own = costs.own(rank)
        assert own.operators == alone.operators
        assert (own.copy, own.add, own.update, own.instruction) == (
            alone.copy, alone.add, alone.update, alone.instruction
        )  # fmt: skip
        assert own.speed(rank) == 1.0


def test_cards_that_differ_in_power_alone_are_unlike() -> None:
    """The clock of tensor cores goes by it."""
    card = Cluster.load("a100-dgx").devices[0]
    assert sheet_of(card) != sheet_of(replace(card, power=card.power / 2))
    assert sheet_of(card) == sheet_of(replace(card, price=1.0, memory=1))


def test_no_device_takes_less_than_the_least_of_all() -> None:
    graph = api.graph_of("digits-cnn")
    cluster = levelled(graph, joined(*GENERATIONS))
    costs = datasheet_costs(graph, cluster, (4, 16))
    low, stop = least(costs), len(graph.operators)
    for rank, device in enumerate(cluster.devices):
        own = costs.own(rank)
        for batch in (4, 16):
            for start in range(0, stop, 7):
                floor = low.segment(start, min(start + 7, stop), batch) / device.speed
                assert floor <= own.segment(start, min(start + 7, stop), batch) * (1 + 1e-9)
        for name in ("copy", "add", "update", "load"):
            floor = getattr(low, name).of(1e6, 3.0) / device.speed
            assert floor <= getattr(own, name).of(1e6, 3.0) * (1 + 1e-9)


@pytest.mark.parametrize("plan", ["ddp", "zero1", "gpipe(stages=2)"])
def test_a_faster_network_is_no_slower_and_more_samples_no_quicker(plan: str) -> None:
    graph, cluster = api.graph_of("digits-cnn"), joined(*GENERATIONS[:2])
    wide = cluster.rewired(lambda link: replace(link, bandwidth=10 * link.bandwidth, latency=link.latency / 10))
    step = api.simulate(graph, plan, cluster).step_seconds
    assert api.simulate(graph, plan, wide).step_seconds <= step * (1 + 1e-9)
    assert api.simulate(of_minibatch(graph, 2 * graph.minibatch), plan, cluster).step_seconds >= step * (1 - 1e-9)


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
