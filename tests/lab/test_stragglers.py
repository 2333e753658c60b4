"""A rank that is slower than it should be is named, with its factor and with what it is slow at; no other is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.stragglers.stalling import slowly, stalling
from partita.cluster.cluster import Cluster, Device, Group, Link
from partita.lab.stragglers import StragglerDetector
from partita.program.instruction import Compute
from partita.program.timeline import Span, Timeline
from partita.runtime.acts import ACTS, compute
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
    assert not list(StragglerDetector(PROGRAM, cluster_of(4)).at_end(measured({})))


def test_a_shorter_last_round_may_have_other_instructions() -> None:
    end = (Span(0, "compute", "P0#0.0", "", 2, 0.0, 1.0),)
    timeline = replace(measured({}), spans=measured({}).spans + end)
    assert not list(StragglerDetector(PROGRAM, cluster_of(4)).at_end(timeline))


def test_a_slow_processor_is_named_with_its_factor() -> None:
    found = list(StragglerDetector(PROGRAM, cluster_of(4)).at_end(measured({(2, "F"): 4.0, (2, "B0"): 4.0})))
    assert len(found) == 1
    assert found[0].startswith("rank 2 computes 4.0 times as long as the others do: its processor")


def test_a_quota_that_some_instances_escape_is_seen_by_rounds() -> None:
    """Each instruction is as fast as elsewhere in one round of two; no round is."""
    each = {"F": (1.0, 4.0), "B0": (4.0, 1.0)}
    even = measured({}).spans
    slow = tuple(
        replace(span, end=span.start + SPEEDS[span.name] * each[span.name][span.round])
        for span in even
        if span.rank == 2 and span.name in each
    )
    others = tuple(span for span in even if span.rank != 2 or span.name not in each)
    found = list(StragglerDetector(PROGRAM, cluster_of(4)).at_end(Timeline("ddp", "measured", 0.1, 8, others + slow)))
    assert [sentence[:36] for sentence in found] == ["rank 2 computes 2.1 times as long as"]


def test_slow_data_is_not_blamed_on_the_processor() -> None:
    found = list(StragglerDetector(PROGRAM, cluster_of(4)).at_end(measured({(1, "L"): 6.0})))
    assert len(found) == 1
    assert found[0].startswith("rank 1 loads its samples 6.0 times as long as the others do: the data")


def test_what_the_cluster_says_of_a_device_is_expected() -> None:
    half = replace(Device(cores=0.5), speed=0.5)
    unequal = Cluster("unequal", Group("root", (Device(cores=0.5), half, *(Device(cores=0.5),) * 2), (Link(1e8),) * 4))
    assert not list(StragglerDetector(PROGRAM, unequal).at_end(measured({(1, "F"): 2.0, (1, "B0"): 2.0})))
    assert list(StragglerDetector(PROGRAM, unequal).at_end(measured({(1, "F"): 8.0, (1, "B0"): 8.0})))


def test_a_straggler_is_named_once_while_the_run_goes_on() -> None:
    """FAULTS 17, 18: as soon as all ranks have said how long their work takes."""
    paces, said = StragglerDetector(PROGRAM, cluster_of(4)), list[str]()
    for _ in range(3):
        for rank in range(4):
            assert not said or rank < 3 or len(said) == 2
            slow = {"F": 4.0 if rank == 2 else 1.0, "B0": 4.0 if rank == 2 else 1.0, "L": 6.0 if rank == 1 else 1.0}
            pace = {"round": 0.1, "taken": {name: SPEEDS[name] * slow[name] for name in SPEEDS}}
            said += paces.hear(rank, pace)
    assert [sentence[:40] for sentence in said] == [
        "rank 2 computes 4.0 times as long as the",
        "rank 1 loads its samples 6.0 times as lo",
    ]
    assert not list(paces.at_end(measured({(2, "F"): 4.0, (2, "B0"): 4.0})))


def test_a_rank_stalls_once_however_often_its_task_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ACTS, Compute, compute)
    monkeypatch.setenv("RANK", "0")
    for _ in range(2):
        stalling()
        assert ACTS[Compute] is slowly
