"""Devices whose memory is a limit that kills: what fits lives, what is far from fitting dies."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from partita import api
from partita.cluster.cluster import Cluster
from partita.errors import RunError
from partita.lab import network, train
from partita.lab.limits import beside, survives
from partita.lab.quota import Hierarchy, find_hierarchy
from partita.searches.fit import fit_of

PLANS = ("ddp", "ddp(shard=parameters,bucket_bytes=9000000)", "one_f_one_b(stages=2,microbatches=4)")


TASKS = Path(__file__).parents[2] / "benchmarks" / "limits" / "tasks.py"


def pair(memory: int) -> Cluster:
    cluster = api.cluster_of("lab-4x1g")
    device = replace(cluster.devices[0], memory=memory)
    root = replace(cluster.root, members=(device,) * 2, ports=cluster.root.ports[:2])
    return replace(cluster, root=root)


@pytest.mark.lab
@pytest.mark.usefixtures("namespaces")
def test_a_training_is_killed_where_its_devices_have_no_more_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """With next to nothing for the process itself, of which the machine has plenty."""
    monkeypatch.setattr(train, "PROCESS", 32 << 20)
    place = pair(2 << 20)
    with pytest.raises(RunError) as caught:
        api.train(f"{TASKS}:narrow", "ddp", place, steps=2)
    said = str(caught.value)
    assert (
        "was killed by SIGKILL, out of memory (limit 34 MiB: 2 MiB of the device and 32 MiB for the process, " in said
    )
    monkeypatch.undo()
    assert api.train(f"{TASKS}:narrow", "ddp", place, steps=2) is not None


@pytest.mark.lab
@pytest.mark.usefixtures("namespaces")
def test_where_memory_cannot_be_limited_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    there = find_hierarchy()
    monkeypatch.setattr(network, "find_hierarchy", lambda: Hierarchy(there.version, there.cpu, None))
    with network.open_lab(pair(2 << 20), beside=0) as lab:
        assert (network.UNLIMITED in lab.notes, lab.limits) == (True, ())
    with network.open_lab(pair(2 << 20)) as lab:
        assert network.UNLIMITED not in lab.notes
    monkeypatch.undo()
    with network.open_lab(pair(2 << 20), beside=1 << 20) as lab:
        assert (network.UNLIMITED in lab.notes, lab.limits) == (False, (3 << 20,) * 2)
        with lab.lifted():
            assert all(held_of(group.memory) > 3 << 20 for group in lab.groups)
        assert all(held_of(group.memory) == 3 << 20 for group in lab.groups)


def held_of(memory: Path | None) -> float:
    """The limit of a control group in bytes."""
    assert memory is not None
    names = (memory / name for name in ("memory.limit_in_bytes", "memory.max"))
    return float(next(name for name in names if name.exists()).read_text().replace("max", "inf"))


@pytest.mark.slow
@pytest.mark.lab
@pytest.mark.usefixtures("namespaces")
def test_what_fits_is_not_killed() -> None:
    """On the least memory that is said to be enough, and on three quarters of what is used."""
    small, spec = f"{TASKS}:narrow", f"{TASKS}:wide"
    control = api.graph_of(small)
    besides = beside(small, control, pair(0), api.plan_of("ddp", control, pair(0)))
    graph = api.graph_of(spec)
    for text in PLANS:
        plan = api.plan_of(text, graph, pair(0))
        enough = fit_of(plan, graph, pair(10**9)).needed
        found = fit_of(plan, graph, pair(enough))
        assert found.fits
        assert survives(spec, graph, pair(enough), plan, besides), text
        short = pair(int(0.75 * max(found.used)))
        assert not fit_of(plan, graph, short).fits
        assert not survives(spec, graph, short, plan, besides), text
