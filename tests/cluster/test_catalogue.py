"""What ships by name: machines and the parts that they are made of."""

from __future__ import annotations

from dataclasses import replace
from importlib.resources import files
from math import isfinite

import pytest

from partita.cluster.cluster import Cluster, Group, Link
from partita.cluster.parts import part_of, parts
from partita.cluster.shipped import catalogue_names
from partita.cluster.text import load_cluster, read_cluster, shipped_device
from partita.cluster.writing import write_cluster
from partita.cost.datasheet import datasheet_costs
from partita.cost.fabric import fabric_of
from partita.errors import ClusterError
from partita.simulator.simulate import simulate
from tests.programs import program_by
from tests.small import two_layers

PLANNED = [name for name in catalogue_names() if not name.startswith("lab-")]
TWO = """
schema = 1
[network]
link = { bandwidth = "10 Gbit/s" }
members = [{ device = "a100-pcie", count = 2 }]
"""
# The names that nvidia-smi has for cards.
CARDS = {
    "Tesla K80": "k80", "Tesla P100-SXM2-16GB": "p100-sxm2", "Tesla P100-PCIE-16GB": "p100-pcie", "Tesla P40": "p40",
    "NVIDIA TITAN X (Pascal)": "titanx-pascal", "NVIDIA GeForce GTX 1080 Ti": "gtx1080ti",
    "Tesla V100-SXM2-32GB": "v100-sxm2", "Tesla V100-SXM2-16GB": "v100-sxm2-16gb", "Tesla T4": "t4",
    "NVIDIA A100-SXM4-80GB": "a100-sxm", "NVIDIA A100-SXM4-40GB": "a100-sxm-40gb", "NVIDIA A100 80GB PCIe": "a100-pcie",
    "NVIDIA A10G": "a10g", "NVIDIA A10": "a10", "NVIDIA A40": "a40", "NVIDIA A30": "",
    "NVIDIA GeForce RTX 3090": "rtx3090", "NVIDIA RTX A6000": "a6000",
    "NVIDIA GeForce RTX 4090": "rtx4090", "NVIDIA L4": "l4", "NVIDIA L40S": "l40s", "NVIDIA H100 80GB HBM3": "h100-sxm",
    "NVIDIA H100 PCIe": "h100-pcie", "NVIDIA H200": "h200-sxm", "NVIDIA B200": "b200-sxm",
    "NVIDIA GeForce RTX 5090": "rtx5090", "Tesla V100-PCIE-32GB": "v100-pcie", "Tesla V100-PCIE-16GB": "v100-pcie-16gb",
    "NVIDIA GeForce RTX 2080 Ti": "rtx2080ti", "Quadro RTX 6000": "rtx6000", "Quadro RTX 8000": "rtx8000",
    "NVIDIA RTX 6000 Ada Generation": "rtx6000-ada", "NVIDIA H100 NVL": "h100-nvl", "NVIDIA GB200": "gb200",
    "NVIDIA GH200 480GB": "gh200",
}  # fmt: skip


def step(cluster: Cluster) -> float:
    graph = replace(two_layers(), global_batch=2 * cluster.size)
    program = program_by("ddp", graph, cluster)
    return simulate(program, datasheet_costs(graph, cluster, (1, 2))).step_seconds


@pytest.mark.parametrize("name", [*catalogue_names(), *(f"{name}-x2" for name in PLANNED)])
def test_every_machine_plans(name: str) -> None:
    cluster = load_cluster(name)
    assert 0 < step(cluster) < 1
    if name.endswith("-x2"):
        one, two = (load_cluster(each).size for each in (name.removesuffix("-x2"), name))
        assert two == 2 * one


@pytest.mark.parametrize("name", parts())
def test_every_part_says_what_costs_need(name: str) -> None:
    device, peaks = shipped_device(name), dict(shipped_device(name).flops)
    assert device.kind == name
    assert device.backend == "cuda"
    assert min(device.memory, device.memory_bandwidth, device.multiprocessors, device.power) > 0
    # A multiprocessor has 64, 128 or (Kepler) 192 lanes, and a clock of 0.85 to 2.6 GHz.
    clocks = [peaks["fp32"] / (2 * lanes * device.multiprocessors) for lanes in (64, 128, 192)]
    assert any(0.85e9 < clock < 2.6e9 for clock in clocks)
    assert peaks["fp64"] <= peaks["fp32"] <= peaks.get("tf32", peaks["fp32"])
    assert {"bf16"} <= set(peaks) if "tf32" in peaks else "bf16" not in peaks
    assert 0 < step(Cluster("two", Group("two", (device,) * 2, (Link(1.25e9),) * 2))) < 1


def test_every_part_stands_in_a_machine_and_no_machine_repeats_one() -> None:
    folder = files("partita.cluster") / "catalogue"
    texts = [(folder / f"{name}.toml").read_text(encoding="utf-8") for name in PLANNED]
    assert not any("flops" in text for text in texts)
    used = {device.kind for name in PLANNED for device in load_cluster(name).devices}
    assert set(parts()) - used == {"a100-pcie-40gb"}


def test_a_machine_of_wires_reaches_all_its_devices() -> None:
    """DGX-1 of P100: four NVLinks of 20 GB/s a device."""
    cluster = load_cluster("p100-dgx1")
    (node,) = cluster.root.members
    assert isinstance(node, Group)
    assert {sum(row) for row in node.mesh} == {4}
    assert fabric_of(cluster).kind == "nvlink"
    assert isfinite(fabric_of(cluster).rate(8, 1))


def test_a_file_names_a_part_or_says_what_it_is_like() -> None:
    named = read_cluster(TWO, "two.toml")
    assert named.devices == (shipped_device("a100-pcie"),) * 2
    assert read_cluster(write_cluster(named), "two.toml") == named
    own = '[device.mine]\nlike = "a100-pcie"\nmemory = "40 GiB"\nprice = 2.5\n[network]'
    (mine, _) = read_cluster(
        TWO.replace("[network]", own).replace('device = "a100-pcie"', 'device = "mine"'), "t"
    ).devices
    assert (mine.kind, mine.memory, mine.price) == ("mine", 40 * 2**30, 2.5)
    assert (mine.flops, mine.multiprocessors) == (named.devices[0].flops, 108)
    slower = own.replace("price = 2.5", 'flops = { bf16 = "250 TFLOP/s" }')
    one, _ = read_cluster(
        TWO.replace("[network]", slower).replace('device = "a100-pcie"', 'device = "mine"'), "t"
    ).devices
    assert dict(one.flops) == dict(mine.flops) | {"bf16": 250e12}


def test_a_table_of_the_file_goes_before_a_part_of_its_name() -> None:
    own = '[device.a100-pcie]\nbackend = "cuda"\n[network]'
    assert read_cluster(TWO.replace("[network]", own), "t").devices[0].memory == 0


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (TWO.replace("a100-pcie", "a100-pci"), "name a part that partita knows, such as a100-pcie"),
        (TWO.replace("a100-pcie", "A100 PCI"), '[device."A100 PCI"], or name a part that partita knows, such as a100'),
        (TWO.replace("[network]", '[device.x]\nlike = "a100-pci"\n[network]'), "device 'x', like is 'a100-pci'"),
        (TWO.replace("[network]", '[device.x]\nlike = "zzz"\n[network]'), "no part that partita knows; there are k80,"),
    ],
)
def test_a_part_that_is_not_there_gets_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(ClusterError) as caught:
        read_cluster(text, "two.toml")
    assert sentence in str(caught.value)


@pytest.mark.parametrize("card", CARDS)
def test_cards_are_known_by_the_names_of_their_driver(card: str) -> None:
    assert part_of(card) == CARDS[card]


def test_a_name_that_is_not_there_is_told_how_to_ask_for_nodes() -> None:
    with pytest.raises(ClusterError, match=r"with -x4 behind it: four nodes\): did you mean 'h100-dgx'"):
        load_cluster("h100-dgx:4")
