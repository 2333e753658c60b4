"""A rank that is slower than it should be is named, with its factor and with what it is slow at; no other is."""

from __future__ import annotations

from dataclasses import replace

from partita.cluster.cluster import Cluster, Device, Group, Link
from partita.lab.stragglers import stragglers
from partita.program.timeline import Span, Timeline
from tests.program.test_verify import program_of
from tests.small import cluster_of

PROGRAM = program_of("ddp(bucket_bytes=400)", 4)
SPEEDS = {"L": 0.01, "F": 0.03, "B0": 0.05}


def measured(slow: dict[tuple[int, str], float]) -> Timeline:
    """Two rounds, of which one is disturbed; `slow` is how many times as long a rank takes for an instruction."""
    spans = []
    for round in range(2):
        for rank in range(4):
            for name, seconds in SPEEDS.items():
                lasts = seconds * slow.get((rank, name), 1.0) * (3.0 if round == rank % 2 else 1.0)
                lane = "data" if name == "L" else "compute"
                spans.append(Span(rank, lane, name, "", round, 0.0, lasts))
    return Timeline("ddp", "measured", 0.1, 8, tuple(spans))


def test_nobody_is_blamed_for_noise() -> None:
    assert not list(stragglers(PROGRAM, measured({}), cluster_of(4)))


def test_a_slow_processor_is_named_with_its_factor() -> None:
    found = list(stragglers(PROGRAM, measured({(2, "F"): 4.0, (2, "B0"): 4.0}), cluster_of(4)))
    assert len(found) == 1
    assert found[0].startswith("rank 2 computes 4.0 times as long as the others do: its processor")


def test_slow_data_is_not_blamed_on_the_processor() -> None:
    found = list(stragglers(PROGRAM, measured({(1, "L"): 6.0}), cluster_of(4)))
    assert len(found) == 1
    assert found[0].startswith("rank 1 loads its samples 6.0 times as long as the others do: the data")


def test_what_the_cluster_says_of_a_device_is_expected() -> None:
    half = replace(Device(cores=0.5), speed=0.5)
    unequal = Cluster("unequal", Group("root", (Device(cores=0.5), half, *(Device(cores=0.5),) * 2), (Link(1e8),) * 4))
    assert not list(stragglers(PROGRAM, measured({(1, "F"): 2.0, (1, "B0"): 2.0}), unequal))
    assert list(stragglers(PROGRAM, measured({(1, "F"): 8.0, (1, "B0"): 8.0}), unequal))
