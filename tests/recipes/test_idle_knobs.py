"""Each knob acts or is refused: a value other than the default makes another program, or is answered by a sentence.

There is a model and a cluster for each: normalisation and biases, weights in fp64, two switches, one machine.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import pytest
import torch
from torch import nn

from partita.cluster.cluster import Cluster, Device, Group, Link
from partita.errors import InputError, PlanError
from partita.graph.graph import Graph
from partita.lowering.lower import lower
from partita.lowering.precision import check_rounding
from partita.plan.sync import Consistency, Servers
from partita.plan.text import read_plan, write_plan
from partita.recipes.catalogue import OURS, call
from partita.recipes.values import values_of
from partita.task import Task
from tests.captures import capture
from tests.small import Numbers, cluster_of, layers

TEXTS = {"codec": ("topk(ratio=0.2)", "q8"), "layers": ("'1.weight'",), "neighbours": ("topology", "complete")}
BY_RESULT = {"tune", "balance"}  # what they choose may be the default; `test_knobs` tests them by what they do
FAMILIES = ("single", "ddp", "ps_sync", "local_sgd", "gpipe", "zero1")  # for the knobs that all recipes have
WITH = {"batch_norm": "microbatches=2", "order": "bucket_bytes=100"}  # of one microbatch, or one bucket, all is one


def blocks() -> Task:
    model = lambda: nn.Sequential(  # noqa: E731
        nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(),
        nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3),
    )  # fmt: skip
    return Task(
        name="blocks", model=model, data=Numbers(96), batch_size=96,
        loss=lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1]),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    )  # fmt: skip


@lru_cache
def pairs() -> tuple[tuple[Graph, Cluster], ...]:
    device, link = Device(cores=0.5), Link(1.25e8)
    switches = (Group("a", (device,) * 3, (link,) * 3), Group("b", (device,) * 5, (link,) * 5))
    two = Cluster("two", Group("root", switches, (Link(1e7), Link(1e7))))
    return tuple((capture(blocks(), precision=p), m) for p in ("fp32", "fp64") for m in (two, Cluster.load("local:8")))


def values(knob: str, default: Any) -> tuple[str, ...]:
    if knob in TEXTS:
        return TEXTS[knob]
    if words := values_of(knob, default):
        return tuple(word for word in words if word not in (str(default).lower(), "auto"))
    return ("0.25",) if isinstance(default, float) else ("100",) if knob.endswith("_bytes") else ("2", "3")


@lru_cache(None)
def found(text: str, pair: int) -> Any:
    """The programs of a call, or nothing where it is refused."""
    graph, machines = pairs()[pair]
    try:
        plan = call(text, graph, machines)
        check_rounding(graph, plan)
        phases = lower(graph, plan, machines)
    except InputError:
        return None
    return [(p.steps, replace(p.program, name=""), p.end and replace(p.end, name="")) for p in phases]


def heeded(name: str, knob: str, value: str, beside: str = "") -> bool:
    """Whether a value of a knob makes another program on one of the pairs, or is refused on one; of stages also where
    each has replicas."""
    usual, given = (f"{name}({','.join(filter(None, (beside, own)))})" for own in ("", f"{knob}={value}"))
    return any(found(usual, i) is not None and found(usual, i) != found(given, i) for i in range(len(pairs())))


def beside(name: str, knob: str) -> tuple[str, ...]:
    """What other knobs it is given beside."""
    replicas = ("data=2",) if {"stages", "data"} <= OURS[name].own.keys() and knob != "data" else ()
    return (WITH.get(knob, ""), *replicas)


@pytest.mark.parametrize("name", OURS)
def test_a_knob_acts_or_is_refused(name: str) -> None:
    """Each of its words, and one of its numbers: another may be the one that the default stands for."""
    idle = []
    recipe = OURS[name]
    for knob, default in (recipe.knobs if name in FAMILIES else recipe.own).items():
        if knob not in BY_RESULT:
            others = values(knob, default)
            which = [value for value in others if any(heeded(name, knob, value, own) for own in beside(name, knob))]
            words = isinstance(default, bool | str)
            idle += [f"{knob}={value}" for value in others if value not in which and (words or not which)]
    assert not idle


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("bytescheduler(own=false)", "does nothing without servers; give servers=1 or more, or leave own out"),
        ("bytescheduler(tune=true,credit_bytes=5)", "does nothing beside tune=true, which chooses it"),
        ("p3(tune=true,slice_bytes=5)", "does nothing beside tune=true, which chooses it"),
        ("admm(staleness=1)", "does nothing where all are waited for; give need=1 or more, or leave staleness out"),
        ("ef21(codec=topk(feedback=true))", "what a difference lacks is in the next one; leave feedback out"),
        ("ef21(codec=topk(difference=0.5))", "the method itself has difference=1; leave difference out"),
        ("diana(codec=qsgd(difference=0.15))", "the method itself has difference=0.15; leave difference out"),
        ("diana(alpha=0,codec=qsgd(difference=1))", "the method itself has difference=0; leave difference out"),
        ("ef21(codec=q8(where=hop))", "use where=end"), ("ps_sync(codec=q8(where=hop))", "use where=end"),
        ("ddp(codec=topk,collective=tree)", "messages of topk cannot be added up, so they are gathered; use"),
        ("ddp(codec=onebit,collective=ring)", "messages of onebit cannot be added up"),
        ("horovod(collective=backend)", "the backend's own sums (not collective=ring) in an order that ranks agree on"),
        ("single(shard=optimizer)", "has one replica"),
        ("zero3(shard=gradients,ahead=2)", "has shard=gradients, which gathers none"),
        ("ddp(sums=fp32)", "precision=task, which sums them as they are; use precision=bf16 or fp16"),
        ("ddp(batch_norm=deferred)", "and there is one; use microbatches=2 or more, or leave batch_norm out"),
    ],
)  # fmt: skip
def test_what_would_do_nothing_is_refused(text: str, why: str) -> None:
    graph, machines = layers(4), cluster_of(4)
    with pytest.raises(InputError) as refused:
        lower(graph, call(text, graph, machines), machines)
    assert why in str(refused.value)


def test_what_other_knobs_need_is_not_refused() -> None:
    graph, machines = layers(4, batch=32), cluster_of(4)
    for text in (
        "bytescheduler(servers=1,own=false)", "admm(need=2,staleness=1)", "diana(alpha=0,codec=topk)",
        "ddp(codec=onebit,collective=auto)", "horovod(collective=auto)", "ddp(codec=fp16,collective=tree)",
        "gpipe(shard=optimizer)", "ddp(precision=bf16,sums=fp32)", "ps_sync(codec=q8)",
    ):  # fmt: skip
        assert lower(graph, call(text, graph, machines), machines)
    assert call("diana(alpha=0,codec=topk)", graph, machines).sync[0].wire.codecs[0].error_feedback is False
    lone = cluster_of(1)
    assert lower(graph, call("zero1", graph, lone), lone)  # there is no more to be had of one device


@pytest.mark.parametrize(
    ("field", "why"), [("fan", "in one level; use levels=2"), ("late", "and waits for all; use need=1")]
)
def test_what_a_plan_file_says_is_heeded_or_refused(field: str, why: str) -> None:
    graph, machines = layers(4), cluster_of(4)
    plan = call("ps_sync", graph, machines)
    [sync] = plan.sync
    fan = replace(sync, through=Servers(fan=3))
    changed = {"fan": fan, "late": replace(sync, consistency=Consistency(late="keep"))}[field]
    with pytest.raises(PlanError, match=why):
        lower(graph, read_plan(write_plan(replace(plan, sync=(changed,)))), machines)


def test_weights_wider_than_the_precision_that_is_asked_for() -> None:
    graph, machines = pairs()[-1]
    with pytest.raises(InputError, match=r"asks for precision=fp32, and the weights of blocks are fp64"):
        check_rounding(graph, call("ddp(precision=fp32)", graph, machines))
