"""What a search says of half precision, where the task's own is another one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from partita.api import search
from partita.cluster.cluster import Cluster
from partita.cost.datasheet import datasheet_costs
from partita.plan.memory import Precision
from partita.searches import half_precision
from partita.simulator.simulate import step_seconds
from partita.units import show_seconds
from tests.programs import program_by
from tests.searches.accelerators import deep, machines
from tests.searches.test_lower_bounds import adam_of


def cards(short: float, backend: str = "cuda", tf32: float = 0.0) -> Cluster:
    """Two cards whose rate in bf16 is so many times that in fp32, and in TF32, if they have that."""
    cluster, tensor = machines(2, 1e6), (("tf32", 1e6 * tf32),) if tf32 else ()
    flops = (("fp32", 1e6), *tensor, ("bf16", 1e6 * short))
    device = replace(cluster.devices[0], backend=backend, flops=flops)
    return replace(cluster, root=replace(cluster.root, members=(device,) * 2))


def said(cluster: Cluster, dtype: str = "") -> str:
    graph = adam_of(deep(8), dtype) if dtype else deep(8)
    found = search(graph, cluster, source="datasheet")
    return "\n".join(line for line in found.explanation.splitlines() if "bf16" in line)


def test_the_best_plan_is_simulated_in_bf16_where_devices_are_far_quicker_in_it() -> None:
    graph, cluster = deep(8), cards(16)
    first = search(graph, cluster, source="datasheet").best.name
    text = half_precision.rounded(first, Precision.BF16)
    program = program_by(text, graph, cluster)
    sizes = tuple({segment.batch for segment in program.segments})
    took = step_seconds(program, datasheet_costs(graph, cluster, sizes, precisions=("bfloat16",)))
    words = f"computed in fp32 as the task is; a step would take {show_seconds(took)} in bf16, which is lossy, not "
    assert said(cluster).startswith(words)
    assert said(cluster).endswith(": precision=bf16 asks for it")


@pytest.mark.parametrize(("short", "tf32", "best"), [(16, 8, "bf16"), (2, 8, "tf32"), (16, 0, "bf16")])
def test_both_are_choices_where_plans_may_be_lossy(short: float, tf32: float, best: str) -> None:
    graph, cluster = deep(8), cards(short, tf32=tf32)
    exact, lossy = (search(graph, cluster, source="datasheet", allow=each) for each in ("exact", "lossy"))
    (line,) = (line for line in exact.explanation.splitlines() if "as the task is" in line)
    assert line.startswith("computed in fp32 as the task is; a step would take ")
    assert line.endswith(f": precision={best} asks for it")
    first = lossy.candidates[0]
    assert (first.plan.memory.precision, first.semantics) == (best, "lossy")
    assert {one.plan.memory.precision for one in lossy.candidates} >= {Precision.BF16, *(["tf32"] if tf32 else [])}
    assert lossy.lower_bound <= first.timeline.step_seconds < exact.candidates[0].timeline.step_seconds
    assert lossy.space > exact.space
    assert (exact.fitting, lossy.fitting) == (exact.space, lossy.space)
    least = search(graph, cluster, source="datasheet", allow="lossy", objective="memory")
    assert all(one.plan.memory.precision is not Precision.BF16 for one in least.candidates)


def test_neither_is_a_choice_where_it_is_hardly_quicker() -> None:
    slow = search(deep(8), cards(1.5, tf32=1.5), source="datasheet", allow="lossy")
    assert all(one.plan.memory.precision is Precision.TASK for one in slow.candidates)


def test_nothing_is_said_where_nothing_is_gained() -> None:
    """On processors, on cards that are hardly quicker or have no such rate, and for a task that is in bf16 already."""
    assert not said(cards(16, "cpu"))
    assert not said(cards(1.5))
    assert not said(machines(2, 1e6))
    assert not said(cards(16), "bfloat16")


def test_what_would_be_no_quicker_is_not_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a step is bound by something else, numbers that are alike would read as a gain."""
    found = search(deep(8), cards(16), source="datasheet")
    own = found.candidates[0].timeline.step_seconds
    monkeypatch.setattr(half_precision, "step_seconds", lambda *given: own * 0.995)
    assert said(cards(16)) == "computed in fp32 as the task is; a step would take no less in bf16"


def test_a_long_plan_is_not_simulated_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(half_precision, "SMALL", 1)
    assert "precision=bf16 not simulated, for the plan is long; simulate --plan '" in said(cards(16))


def test_a_call_in_another_precision_is_a_call() -> None:
    assert half_precision.rounded("single", Precision.BF16) == "single(precision=bf16)"
    assert half_precision.rounded("ddp(data=4)", Precision.TF32) == "ddp(data=4,precision=tf32)"
