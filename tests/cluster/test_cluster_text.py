from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.cluster.cluster import Cluster, Device, Group, Link
from partita.cluster.shipped import catalogue_names
from partita.cluster.show import show_cluster
from partita.cluster.text import load_cluster, read_cluster
from partita.cluster.writing import write_cluster
from partita.errors import ClusterError
from partita.units import parse_seconds

GIGABIT = 1.25e8
PAIRS = [[0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 1], [0, 0, 1, 0]]
MANY = [[int(i != j) for j in range(17)] for i in range(17)]
TWO_BOXES = """
schema = 1
name = "two-boxes"
[device.gpu]
backend = "cuda"
flops = { fp32 = "19.5 TFLOP/s" }
memory = "40 GiB"
[network]
link = { bandwidth = "10 Gbit/s", latency = "15 us" }
[[network.members]]
name = "box"
count = 2
link = { bandwidth = "31 GB/s" }
members = [{ device = "gpu", count = 2 }]
[[network.members]]
name = "old"
port = { bandwidth = "1 Gbit/s", duplex = false }
link = { bandwidth = "15 GB/s", latency = "0 us" }
members = [{ device = "gpu" }, { device = "gpu", port = { bandwidth = "7 GB/s" } }]
"""


def test_a_file_becomes_a_tree() -> None:
    cluster = read_cluster(TWO_BOXES, "two.toml")
    assert cluster.size == 6
    assert [member.name for member in cluster.root.members if isinstance(member, Group)] == ["box0", "box1", "old"]
    assert cluster.root.ports[2] == Link(GIGABIT, 50e-6, 0, duplex=False)
    assert cluster.climbs[5][1].link.bandwidth == 7e9
    assert cluster.devices[0].flops == (("fp32", 19.5e12),)
    assert [port.link.bandwidth for port in cluster.route(0, 5)[0]] == [31e9, 1.25e9]


def test_what_is_quicker_than_processors_is_an_accelerator_unless_it_says_otherwise() -> None:
    silent = TWO_BOXES.replace('backend = "cuda"\n', "")
    assert {d.backend for d in read_cluster(silent.replace("19.5 T", "163 T"), "t").devices} == {"cuda"}
    assert {d.backend for d in read_cluster(silent, "t").devices} == {"cpu"}
    assert {d.backend for d in read_cluster(TWO_BOXES.replace("cuda", "cpu"), "t").devices} == {"cpu"}


def test_switches_that_sum_and_meshes_are_facts_of_a_group() -> None:
    text = TWO_BOXES.replace("count = 2\nlink", "count = 2\nsums = 0.85\nmesh = [[0, 2], [2, 0]]\nlink")
    cluster = read_cluster(text, "two.toml")
    boxes = [member for member in cluster.root.members if isinstance(member, Group)]
    assert [(box.sums, box.mesh) for box in boxes] == [(0.85, ((0, 2), (2, 0)))] * 2 + [(0.0, ())]
    assert read_cluster(write_cluster(cluster), "two.toml") == cluster
    assert "box0 and 1 more alike, to rank 3, sums in its switch, a mesh" in show_cluster(cluster)


@pytest.mark.parametrize("name", [*catalogue_names(), "h100-dgx-x16", "local:3"])
def test_shipped_clusters_survive_writing(name: str) -> None:
    cluster = load_cluster(name)
    assert read_cluster(write_cluster(cluster), name) == cluster
    assert cluster.name == name
    assert show_cluster(cluster).startswith(name)


def test_the_labs_are_as_documented() -> None:
    rates = {"lab-4x1g": 1e9, "lab-4x10g": 1e10, "lab-4x100m": 1e8, "lab-5x1g": 1e9}
    for name, rate in rates.items():
        lab = load_cluster(name)
        assert lab.emulated
        assert lab.size == int(name[4])
        assert {port.link.bandwidth * 8 for climb in lab.climbs for port in climb} == {rate}
        assert {device.cores for device in lab.devices} == {0.5}
        assert lab.root.ports[0].burst == max(65536, rate / 8 * 2e-3)
    assert [device.cores for device in load_cluster("lab-4-slow1").devices] == [0.5, 0.5, 0.5, 0.25]
    inner, outer = (load_cluster("lab-2x2").climbs[0][level].link.bandwidth for level in (1, 0))
    assert (inner, outer) == (1.25e9, GIGABIT)


def test_a_suffix_multiplies_nodes() -> None:
    assert load_cluster("h100-dgx").size == 8
    cluster = load_cluster("h100-dgx-x16")
    assert (cluster.size, len(cluster.root.members)) == (128, 16)
    assert "15 more alike, to rank 127" in show_cluster(cluster)


links = st.builds(
    Link, bandwidth=st.floats(1.0, 1e13), latency=st.floats(0, 1), burst=st.integers(0, 2**40), duplex=st.booleans()
)
devices = st.builds(
    Device, kind=st.sampled_from(["gpu", "cpu"]), backend=st.sampled_from(["cpu", "cuda"]),
    flops=st.just(()) | st.floats(1, 1e17).map(lambda speed: (("fp32", speed),)), memory=st.integers(0, 2**45),
    memory_bandwidth=st.floats(0, 1e13), cores=st.floats(0, 128), speed=st.floats(0.01, 10), ghost=st.booleans(),
    multiprocessors=st.integers(0, 1000),
)  # fmt: skip


@st.composite
def groups(draw: st.DrawFn, depth: int = 2) -> Group:
    inner = devices | groups(depth - 1) if depth else devices
    members = draw(st.lists(inner, min_size=1, max_size=3))
    ports = draw(st.lists(links, min_size=len(members), max_size=len(members)))
    stem = draw(st.sampled_from(["n", "", "7"]))
    named = [replace(each, name=f"{stem}{i}") if isinstance(each, Group) else each for i, each in enumerate(members)]
    return Group("top", tuple(named), tuple(ports))


@settings(max_examples=60, deadline=None)
@given(groups(), st.booleans())
def test_any_cluster_survives_writing(root: Group, emulated: bool) -> None:
    cluster = Cluster("drawn", root, emulated)
    assert read_cluster(write_cluster(cluster), "drawn") == cluster


WRONG = [
    ("x = " + "9" * 5000, "is not valid TOML"),
    ("x = " + "[" * 5000, "is not valid TOML"),
    (TWO_BOXES.replace('"40 GiB"', '"1e300 PB"'), "the size '1e300 PB' is beyond any number"),
    (TWO_BOXES.replace("[device.gpu]", f"[device.gpu]\ncores = 1{'0' * 400}"), "give a finite number zero or more"),
    ('schema = 1\nname = "x" y', "line 2, column 12"),
    (TWO_BOXES.replace("memory", "memroy"), "did you mean 'memory'?"),
    (TWO_BOXES.replace("schema = 1", "schema = 2"), "the file has schema 2; this version reads schema 1, so"),
    (TWO_BOXES.replace("schema = 1", ""), "lacks 'schema'"),
    (TWO_BOXES.replace("40 GiB", "0 GiB"), "'0 GiB'; give a finite number above zero"),
    (TWO_BOXES.replace('"10 Gbit/s"', '"-10 Gbit/s"'), "'-10 Gbit/s'; give a finite number above zero"),
    (TWO_BOXES.replace('"10 Gbit/s"', '"nan Gbit/s"'), "'nan Gbit/s'; give a finite number"),
    (TWO_BOXES.replace('"10 Gbit/s"', '"10Gb"'), "'10Gb', bits or bytes; write '10 Gbit/s' or '10 GB/s'"),
    (TWO_BOXES.replace('"10 Gbit/s"', "10"), "10 without a unit; write it as text, such as '10 Gbit/s'"),
    (TWO_BOXES.replace('"10 Gbit/s"', '"ten"'), "'ten' is not understood"),
    (TWO_BOXES.replace("count = 2\nlink", "count = 0\nlink"), "count is 0; give a whole number from 1"),
    (TWO_BOXES.replace("[device.gpu]", "[device.gpu]\ncores = inf"), "cores is inf; give a finite number"),
    (TWO_BOXES.replace("[device.gpu]", "[device.gpu]\nmultiprocessors = 1.5"), "multiprocessors is 1.5; give a whole"),
    (TWO_BOXES.replace("[device.gpu]", '[device.gpu]\nbackend2 = "x"'), "did you mean 'backend'?"),
    (TWO_BOXES.replace('"cuda"', '"rocm"'), "'rocm'; allowed are cpu and cuda"),
    (TWO_BOXES.replace('name = "old"', 'name = "box1"'), "two members named 'box1'"),
    (TWO_BOXES.replace('{ device = "gpu" }', '{ device = "tpu" }'), "device 'tpu' and the file describes gpu"),
    (TWO_BOXES.replace('link = { bandwidth = "31 GB/s" }', ""), "has no link"),
    (TWO_BOXES.replace('[{ device = "gpu", count = 2 }]', "[]"), "give at least one member"),
    (TWO_BOXES.replace('{ device = "gpu" }', '{ device = "gpu", name = "g" }'), "is a device and has 'name'"),
    (TWO_BOXES.replace("count = 2\nlink", "count = 2\nsums = 1.5\nlink"), "sums is 1.5; give a part from 0 to 1"),
    (TWO_BOXES.replace("count = 2\nlink", "count = 2\nsums = true\nlink"), "sums is True; give a number"),
    (
        TWO_BOXES.replace("count = 2\nlink", "count = 2\nmesh = [[0, 0.5], [0.5, 0]]\nlink"),
        "rows of whole numbers",
    ),
    (TWO_BOXES.replace("count = 2\nlink", "count = 2\nmesh = [[0, 1], [2, 0]]\nlink"), "mesh is not 2 rows"),
    (TWO_BOXES.replace("count = 2\nlink", "count = 2\nmesh = [[0, 1]]\nlink"), "mesh is not 2 rows with"),
    (
        TWO_BOXES.replace("count = 2\nlink", "count = 2\nmesh = [[1, 1], [1, 0]]\nlink"),
        "wires to itself or to none",
    ),
    (
        TWO_BOXES.replace("count = 2\nlink", f"count = 2\nmesh = {PAIRS}\nlink").replace(
            "count = 2 }]", "count = 4 }]"
        ),
        "no way from member 0 to member 2",
    ),
    (
        TWO_BOXES.replace("count = 2\nlink", f"count = 2\nmesh = {MANY}\nlink").replace(
            "count = 2 }]", "count = 17 }]"
        ),
        "mesh has 17 members; wires between up to 16",
    ),
    (TWO_BOXES.replace('{ device = "gpu" }', '{ device = "gpu", sums = 0.5 }'), "is a device and has 'sums'"),
    (
        TWO_BOXES.replace('"gpu", count = 2', '"gpu", count = 1000000').replace("count = 2\nlink", "count = 9\nlink"),
        "member 1 has 9000000 devices in all; give 1000000 or fewer",
    ),
    (TWO_BOXES.replace('"gpu", count = 2', '"gpu", count = 500000'), "network has 1000002 devices in all"),
    (TWO_BOXES.replace("40 GiB", "40 Gb"), "'40 Gb', bits or bytes; write '40 GB'"),
    (TWO_BOXES.replace("[device.gpu]", "[device.gpu]\ncores = -1"), "zero or more, such as 0.5"),
    (TWO_BOXES.replace("15 us", "-15 us"), "'-15 us'; give a finite number zero or more"),
    (TWO_BOXES.replace("fp32 =", "float32 ="), "flops has 'float32'; allowed are fp64, fp32"),
    (TWO_BOXES.replace('"two-boxes"', '"two\\nboxes"'), "give a name between quotes, on one line"),
]


@pytest.mark.parametrize(("text", "sentence"), WRONG, ids=[sentence for _, sentence in WRONG])
def test_a_wrong_file_gets_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(ClusterError) as caught:
        read_cluster(text, "two.toml")
    assert sentence in str(caught.value)
    assert "two.toml" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


def test_files_of_other_systems_are_read_as_well(tmp_path: Path) -> None:
    """A byte order mark in front, two letters at the end of a line."""
    text = write_cluster(load_cluster("lab-2x2"))
    for name, start, end in (("mark", "\ufeff", "\n"), ("ends", "", "\r\n"), ("both", "\ufeff", "\r\n")):
        file = tmp_path / f"{name}.toml"
        file.write_bytes((start + text.replace("\n", end)).encode())
        assert load_cluster(str(file)) == load_cluster("lab-2x2")


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("h100-dxg", "did you mean 'h100-dgx'?"),
        ("V100", "did you mean v100-dgx1 or v100-dgx2 or v100-nd or v100-p3 or v100-p3dn or"),
        ("dgx-h100", "did you mean h100-dgx?"),
        ("local:0", "give 1 to 1024"),
        ("local:x", "'x' devices"),
        ("h100-dgx-x0", "give one or more, such as h100-dgx-x2"),
        ("h100-dgx-x125001", "asks for 125001 nodes; give 1 to 125000 behind its -x"),
        ("h100-dgx-x99999999999", "asks for 99999999999 nodes; give 1 to 125000"),
        ("lab-4x1g-x2", "which is a whole lab; give lab-4x1g"),
        ("missing.toml", "No such file or directory"),
    ],
)
def test_a_wrong_name_gets_one_sentence(spec: str, sentence: str) -> None:
    with pytest.raises(ClusterError, match=re.escape(sentence)):
        Cluster.load(spec)


def test_a_microsecond_is_written_with_either_mu() -> None:
    assert parse_seconds("20 \u00b5s") == parse_seconds("20 \u03bcs") == parse_seconds("20 us")
