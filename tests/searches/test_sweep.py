"""A plan over bandwidths: each point is a simulation of its own, and a codec pays below the one that is named."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from partita.__main__ import main
from partita.cost.touch import Touch
from partita.errors import OptionError
from partita.graph.text import write_graph
from partita.recipes.catalogue import call
from partita.searches.sweep import crossings, lowest, read_sweep, sweep
from partita.simulator.simulate import simulate
from tests.priced import priced, whole_cores
from tests.programs import program_by
from tests.small import two_layers


@pytest.mark.parametrize(("text", "ends", "count"), [
    ("bandwidth=10M..10G", (1.25e6, 1.25e9), 13), ("bandwidth = 100 Mbit/s .. 1 GB/s / 3", (1.25e7, 1e9), 3),
    ("bandwidth=1G..1G", (1.25e8, 1.25e8), 1),
])  # fmt: skip
def test_bandwidths_stand_in_one_proportion(text: str, ends: tuple[float, float], count: int) -> None:
    found = read_sweep(text)
    assert (len(found), found[0], found[-1]) == (count, pytest.approx(ends[0]), pytest.approx(ends[1]))
    steps = [b / a for a, b in pairwise(found)]
    assert steps == pytest.approx(steps[:1] * len(steps))


@pytest.mark.parametrize("text", [
    "latency=1..2", "bandwidth=10M", "bandwidth=10M..ten", "bandwidth=0M..1G", "bandwidth=10G..10M", "bandwidth=10M..0",
    "bandwidth=1M..1G/1", "bandwidth=1M..1G/900", "bandwidth=1Gb..2Gb", "bandwidth=1e-300..1e300", "bandwidth=1..100",
    "bandwidth=1e6..1G",
])  # fmt: skip
def test_other_texts_are_refused_in_a_sentence(text: str) -> None:
    with pytest.raises(OptionError, match=r"write bandwidth=10M\.\.10G"):
        read_sweep(text)


def test_each_point_is_its_own_cluster() -> None:
    graph, bandwidths = two_layers(), (1e4, 1e5, 1e6)
    costs = priced(graph, whole_cores(4, 1e5), (1, 2, 3, 4))
    costs = replace(costs, codecs={"onebit": (Touch(0.0, 1e-5), Touch(0.0, 1e-5))})
    found = sweep(call("ddp(codec=onebit)", graph, costs.cluster), costs, bandwidths)
    for point in found.points:
        there = replace(costs, cluster=whole_cores(4, point.bandwidth))
        for text, seconds in (("ddp(codec=onebit)", point.seconds), ("ddp", point.plain)):
            program = program_by(text, graph, there.cluster)
            assert simulate(program, there).step_seconds == pytest.approx(seconds)
    assert found.pays is not None
    assert bandwidths[0] < found.pays.even < bandwidths[-1]
    pays = [point.seconds < point.plain for point in found.points]
    assert pays == [point.bandwidth < found.pays.even for point in found.points]


def test_curves_cross_between_the_points_that_they_share() -> None:
    falling, level = ((1.0, 8.0), (10.0, 1.0), (100.0, 0.5)), ((1.0, 2.0), (5.0, 9.0), (10.0, 2.0), (100.0, 2.0))
    ((at, above),) = crossings(falling, level)
    assert (at, above) == (pytest.approx(10 ** (2 / 3)), False)
    ((back, below),) = crossings(level, falling)
    assert (back, below) == (at, True)
    assert crossings(falling, tuple((x, y + 1) for x, y in falling)) == ()


def test_the_lowest_curve_by_stretches() -> None:
    """Where a curve is missing on one side, its turn is halfway."""
    falling, level, late = ((1.0, 8.0), (10.0, 1.0), (100.0, 0.5)), ((1.0, 2.0), (10.0, 2.0)), ((100.0, 0.25),)
    found = lowest({"falling": falling, "level": level, "late": late})
    assert [name for _, name in found] == ["level", "falling", "late"]
    assert [at for at, _ in found] == pytest.approx([1.0, 10 ** (2 / 3), 10**1.5])
    assert lowest({}) == ()


def test_one_device_has_nothing_to_sweep() -> None:
    graph, machines = two_layers(), whole_cores(1, 1e5)
    with pytest.raises(OptionError, match="no links between devices"):
        sweep(call("single", graph, machines), priced(graph, machines, (8,)), (1e5,))


def test_the_command_gives_a_table_and_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "graph.json")
    write_graph(two_layers(), Path(path))
    words = ["simulate", path, "--cluster", "a100-dgx", "--plan", "ddp", "--sweep", "bandwidth=10M..1G"]
    assert main([*words, "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    rows = body["sweep"]["rows"]
    assert [row["bandwidth"] for row in rows] == pytest.approx(list(read_sweep("bandwidth=10M..1G")))
    assert rows[0]["step_seconds"] > rows[-1]["step_seconds"] >= body["step_seconds"]
    assert main(words) == 0
    assert "10 Mbit/s" in capsys.readouterr().out
    assert main([*words[:-1], "bandwidth=fast"]) == 2
