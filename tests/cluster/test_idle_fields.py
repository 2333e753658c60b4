"""Each field of a cluster file changes a prediction, or is refused where it would do nothing."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from partita.cluster.cluster import Cluster
from partita.cluster.shipped import catalogue_names, catalogue_text
from partita.cluster.text import DEVICE, FILE, GROUP, LINK, MEMBER, load_cluster, read_cluster
from partita.cost.datasheet import datasheet_costs
from partita.errors import ClusterError
from partita.lowering.lower import last_program
from partita.recipes.catalogue import call
from partita.searches.fit import fit
from partita.simulator.simulate import simulate
from tests.small import layers

TEXT = """
schema = 1
{file}
[device.one]
backend = "{backend}"
flops = {{ fp32 = "1 TFLOP/s", bf16 = "9 TFLOP/s" }}
memory = "8 GiB"
{device}
[network]
link = {{ bandwidth = "100 kbit/s"{link} }}
{network}
members = [{members}]
"""
FLAT = "{ device = 'one', count = 4 }"
BOX = "{ name = 'a', link = { bandwidth = '1 MB/s' }, %s members = [{ device = 'one', count = 4 }] }"
BOXES = BOX % ""
LINE = "[[0, 1, 0, 0], [1, 0, 1, 0], [0, 1, 0, 1], [0, 0, 1, 0]]"
ACTS = {  # what is written where, on devices of which kind
    "backend": {"backend": "cuda"},
    "flops": {"device": "like = 'a100-sxm'", "backend": "cuda"},
    "like": {"device": "like = 'a100-sxm'", "backend": "cuda"},
    "memory": {"device": "host_memory = '1 GiB'\nlike = 'a100-sxm'", "backend": "cuda"},
    "memory_bandwidth": {"device": "memory_bandwidth = '1 GB/s'"},
    "sustained": {"device": "sustained = { fp32 = '1 GFLOP/s' }", "backend": "cuda"},
    "multiprocessors": {"device": "multiprocessors = 2", "backend": "cuda"},
    "cores": {"device": "cores = 0.5"}, "speed": {"device": "speed = 0.5"},
    "latency": {"link": ", latency = '1 s'"}, "burst": {"link": ", burst = '1 GiB'"},
    "duplex": {"link": ", duplex = false"},
    "sums": {"members": BOX % "sums = 1,", "backend": "cuda"},
    "mesh": {"members": BOX % f"mesh = {LINE},", "backend": "cuda"},
    "count": {"members": "{ device = 'one', count = 3 }"}, "members": {"members": BOXES},
    "port": {"members": "{ device = 'one', count = 3, port = { bandwidth = '1 kbit/s' } }, { device = 'one' }"},
    "bandwidth": {"members": "{ device = 'one', count = 3, port = { bandwidth = '1 kbit/s' } }, { device = 'one' }"},
    "link": {"members": BOXES}, "device": {"members": "{ device = 'a100-sxm', count = 4 }, { device = 'one' }"},
}  # fmt: skip
NO_PREDICTION = {
    "schema", "network", "name", "kind",  # words
    "emulated", "interface", "ghost",  # of runs: `lab` and `runs` have tests of them
    "host_memory", "power", "price",  # shown, or of an objective
}  # fmt: skip


@lru_cache
def found(**written: str) -> Any:
    """What is predicted of a plan on a cluster: the step, the bytes sent and room left of each rank."""
    parts = dict.fromkeys(("file", "device", "link", "network"), "") | {"backend": "cpu", "members": FLAT} | written
    machines = read_cluster(TEXT.format(**parts), "mine.toml", strict=True)
    graph = layers(4, batch=60)
    plan = call("ddp", graph, machines)
    timeline = simulate(last_program(graph, plan, machines), datasheet_costs(graph, machines, (12, 15, 20)))
    return timeline.step_seconds, timeline.wire_sent, fit(graph, machines, plan)


@pytest.mark.parametrize("field", ACTS)
def test_a_field_changes_what_is_predicted(field: str) -> None:
    written = ACTS[field]
    usual = {"backend": written["backend"]} if "backend" in written and field != "backend" else {}
    usual |= {"members": BOXES} if field in ("sums", "mesh") else {}
    assert found(**written) != found(**usual)


def test_each_field_is_looked_at() -> None:
    assert FILE.keys() | DEVICE.keys() | LINK.keys() | GROUP.keys() | MEMBER.keys() == ACTS.keys() | NO_PREDICTION


@pytest.mark.parametrize(
    ("written", "why"),
    [
        ({"network": "sums = 0.5", "backend": "cuda"}, "the switch 'mine' has sums, from which something is predicted"),
        ({"members": BOX % "sums = 0.5,"}, "the switch 'a' has sums"),
        ({"network": f"mesh = {LINE}"}, "the switch 'mine' has mesh"),
        ({"network": "sums = 0.5", "members": BOXES, "backend": "cuda"}, "leave sums out, or give it to such a group"),
        ({"members": BOX % f"sums = 0.5, mesh = {LINE},", "backend": "cuda"}, "has a mesh, and sums of a switch"),
        ({"device": "multiprocessors = 9"}, "'one' has multiprocessors and backend = 'cpu'"),
        ({"device": "sustained = { fp32 = '1 TFLOP/s' }"}, "'one' has sustained and backend = 'cpu'"),
        ({"device": "[device.two]"}, "'two' is described and no member names it"),
        ({"file": "emulated = true\ninterface = 'eth1'"}, "the lab makes interfaces of its own"),
        ({"members": "{ device = 'one', port = { bandwidth = '1 MB/s' } }"}, "network has a link, and every member a"),
    ],
)  # fmt: skip
def test_what_would_do_nothing_is_refused(written: dict[str, str], why: str, tmp_path: Path) -> None:
    parts = dict.fromkeys(("file", "device", "link", "network"), "") | {"backend": "cpu", "members": FLAT} | written
    (tmp_path / "mine.toml").write_text(TEXT.format(**parts))
    with pytest.raises(ClusterError) as refused:
        load_cluster(str(tmp_path / "mine.toml"))
    assert why in str(refused.value)
    assert read_cluster(TEXT.format(**parts), "mine.toml").size  # a value that is read back stays what it was


@pytest.mark.parametrize("name", catalogue_names())
def test_shipped_clusters_say_nothing_idle(name: str) -> None:
    text, nodes = catalogue_text(name) or ("", 0)
    assert isinstance(read_cluster(text, name, nodes, strict=True), Cluster)
