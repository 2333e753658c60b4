"""What is given for a knob stands in the plan, in the field that the knob is about, and in every part of the plan."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from enum import StrEnum
from typing import Any

import pytest

from partita.errors import PlanError
from partita.plan.plan import Plan
from partita.plan.sync import Payload, Servers
from partita.recipes.catalogue import OURS, call
from tests.small import cluster_of, layers, two_layers

GRAPH, MACHINES = layers(16), cluster_of(16)
FIELDS = {"servers": "count", "neighbours": "graph", "push": "period", "switch": "steps", "warmup": "steps",
          "layers": "parameters", "codec": "name", "own": "own"}  # fmt: skip
BESIDE = {("pipe_sgd", "staleness"): "lag", ("diana", "alpha"): "difference"}  # of one recipe alone
WORDS = {"codec": "q8", "collective": "tree", "direction": "push", "neighbours": "complete", "layers": "p*"}
EVERYWHERE = ("bucket_bytes", "slice_bytes", "credit_bytes", "first_bucket_bytes", "collective", "microbatches")
BY_COUNTS = {
    "n",
    "backup",
    "data",
    "stages",
    "balance",
    "tune",
    "ramp",
    "need",
    "ahead",
}  # these are tested by what they do
ONLY_WITH = {("admm", "staleness"): "need=2", ("bytescheduler", "own"): "servers=2"}
GIVEN = [(name, knob) for name, recipe in OURS.items() for knob in recipe.own if knob not in BY_COUNTS]


def another(knob: str, default: Any) -> Any:
    """A value that is no default of any knob."""
    if knob in WORDS:
        return WORDS[knob]
    if isinstance(default, StrEnum):
        return next(word for word in reversed([*type(default)]) if word is not default)
    if isinstance(default, bool):
        return not default
    return 0.625 if isinstance(default, float) else 48 if knob.endswith("_bytes") else default + 2


def said(value: Any) -> Iterator[tuple[str, Any]]:
    """The fields of a plan and of all that it is made of, and settings, which are pairs."""
    if is_dataclass(value):
        for field in fields(value):
            yield field.name, getattr(value, field.name)
            yield from said(getattr(value, field.name))
    elif isinstance(value, tuple):
        if len(value) == 2 and isinstance(value[0], str):
            yield value
        for part in value:
            yield from said(part)


def of(plan: Plan, field: str) -> list[Any]:
    return [value for name, value in said(plan) if name == field]


@pytest.mark.parametrize(("name", "knob"), GIVEN, ids=map("-".join, GIVEN))
def test_a_knob_is_in_the_field_that_it_is_about(name: str, knob: str) -> None:
    field = BESIDE.get((name, knob), FIELDS.get(knob, knob))
    value, beside = another(knob, OURS[name].own[knob]), ONLY_WITH.get((name, knob), "")
    text = repr(value) if knob == "layers" else str(value).lower() if isinstance(value, bool) else str(value)
    plan = call(f"{name}({','.join(filter(None, (beside, f'{knob}={text}')))})", GRAPH, MACHINES)
    assert value not in of(call(f"{name}({beside})", GRAPH, MACHINES), field)
    found = of(plan, field)
    assert value in found
    if knob in EVERYWHERE:
        assert set(found) == {value}


@pytest.mark.parametrize(
    ("text", "need"),
    [
        ("softsync(n=3)", 15 // 3), ("softsync(n=3,own=false)", 16 // 3), ("backup_workers(backup=3)", 15 - 3),
        ("backup_workers(backup=3,servers=2)", 14 - 3), ("admm(need=3)", 3),
    ],
)  # fmt: skip
def test_how_many_are_waited_for_is_counted_in_workers(text: str, need: int) -> None:
    assert call(text, GRAPH, MACHINES).sync[0].consistency.need == need


@pytest.mark.parametrize(
    ("text", "workers"),
    [
        ("ddp(data=5)", 5), ("ps_sync(servers=3)", 13), ("ps_sync(servers=3,own=false)", 16),
        ("ps_replicated(servers=2,replicas=3)", 10), ("ps_hierarchical(fan=3)", 12), ("easgd(servers=2)", 14),
        ("eamsgd(servers=2)", 14), ("admm(need=2)", 15), ("bytescheduler(servers=2)", 14),
    ],
)  # fmt: skip
def test_servers_on_devices_of_their_own_leave_fewer_workers(text: str, workers: int) -> None:
    assert call(text, GRAPH, MACHINES).mesh.axes == (("data", workers),)


@pytest.mark.parametrize("name", [name for name, recipe in OURS.items() if "balance" in recipe.own])
def test_a_balance_is_heeded(name: str) -> None:
    with pytest.raises(PlanError, match=f"{name}: balance='luck'; allowed are time, memory, blocks, replicas"):
        call(f"{name}(balance=luck)", GRAPH, MACHINES)


def test_factors_go_the_way_that_knobs_say() -> None:
    """Of two samples and wide layers factors take fewer bytes than weights."""
    graph = replace(two_layers(64), global_batch=2)
    hybrid = call("poseidon(slice_bytes=48)", graph, cluster_of(2))
    served = call("adam(servers=2,bucket_bytes=48)", graph, cluster_of(4))
    for plan in (hybrid, served):
        assert {sync.payload for sync in plan.sync} == {Payload.FACTOR, Payload.GRADIENT}
        assert set(of(plan, "slice_bytes")) == {48}
    assert {sync.through for sync in served.sync} == {Servers(2, own=True)}
