"""Devices whose memory is a limit that kills: what fits lives, what is far from fitting dies."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from partita import api
from partita.cluster.cluster import Cluster
from partita.lab.limits import beside, survives
from partita.searches.fit import fit_of

PLANS = ("ddp", "ddp(shard=parameters,bucket_bytes=9000000)", "one_f_one_b(stages=2,microbatches=4)")


TASKS = Path(__file__).parents[2] / "benchmarks" / "limits" / "tasks.py"


def pair(memory: int) -> Cluster:
    cluster = api.cluster_of("lab-4x1g")
    device = replace(cluster.devices[0], memory=memory)
    root = replace(cluster.root, members=(device,) * 2, ports=cluster.root.ports[:2])
    return replace(cluster, root=root)


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
