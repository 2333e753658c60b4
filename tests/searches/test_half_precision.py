"""What a search says of half precision, where the task's own is another one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from partita.api import search
from partita.cluster.cluster import Cluster
from partita.cost.datasheet import datasheet_costs
from partita.searches import half_precision
from partita.simulator.simulate import step_seconds
from partita.units import show_seconds
from tests.programs import program_by
from tests.searches.accelerators import deep, machines
from tests.searches.test_lower_bounds import adam_of


def cards(short: float, backend: str = "cuda") -> Cluster:
    """Two cards whose rate in bf16 is so many times that in fp32."""
    cluster = machines(2, 1e6)
    device = replace(cluster.devices[0], backend=backend, flops=(("fp32", 1e6), ("bf16", 1e6 * short)))
    return replace(cluster, root=replace(cluster.root, members=(device,) * 2))


def said(cluster: Cluster, dtype: str = "") -> str:
    graph = adam_of(deep(8), dtype) if dtype else deep(8)
    found = search(graph, cluster, source="datasheet")
    return "\n".join(line for line in found.explanation.splitlines() if "bf16" in line)


def test_the_best_plan_is_simulated_in_bf16_where_devices_are_far_quicker_in_it() -> None:
    graph, cluster = deep(8), cards(16)
    first = search(graph, cluster, source="datasheet").best.name
    program = program_by(half_precision.in_bf16(first), graph, cluster)
    sizes = tuple({segment.batch for segment in program.segments})
    took = step_seconds(program, datasheet_costs(graph, cluster, sizes, precisions=("bfloat16",)))
    words = f"computed in fp32 as the task is; with precision=bf16, which is lossy, {first} would take "
    assert said(cluster).startswith(f"{words}{show_seconds(took)} a step, not ")


def test_nothing_is_said_where_nothing_is_gained() -> None:
    """On processors, on cards that are hardly quicker or have no such rate, and for a task that is in bf16 already."""
    assert not said(cards(16, "cpu"))
    assert not said(cards(1.5))
    assert not said(machines(2, 1e6))
    assert not said(cards(16), "bfloat16")


def test_a_long_plan_is_not_simulated_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(half_precision, "SMALL", 1)
    assert "precision=bf16 was not simulated, for the plan is long; simulate --plan '" in said(cards(16))


def test_a_call_in_bf16_is_a_call() -> None:
    assert half_precision.in_bf16("single") == "single(precision=bf16)"
    assert half_precision.in_bf16("ddp(data=4)") == "ddp(data=4,precision=bf16)"
