"""Pipelines train as one process does: any cut, any schedule, tied weights, skips, two inputs, batch statistics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import accumulate

import pytest

from partita.graph.cuts import legal_cuts
from partita.graph.graph import Graph
from partita.lowering.lower import last_program
from partita.oracles.check import TOLERANCE, checked
from partita.plan.mesh import Mesh, Stage
from partita.plan.plan import Plan
from partita.plan.schedule import Order, Schedule
from partita.plan.sync import Sync
from partita.plan.wire import Wire
from partita.program.instruction import Send
from partita.program.space import Space
from partita.recipes.catalogue import call
from partita.runs.assembly import train_in_process
from partita.runtime.workload import Workload
from partita.task import Task
from tests.captures import capture
from tests.programs import program_by
from tests.small import cluster_of, perceptron
from tests.tracing.models import TASKS

RECIPES = ("gpipe", "torchgpipe", "one_f_one_b", "interleaved", "zero_bubble")
QUICK = (
    "gpipe",
    "one_f_one_b",
    *(pytest.param(r, marks=pytest.mark.slow) for r in RECIPES if r not in ("gpipe", "one_f_one_b")),
)
WHOLE = ("gpt2", "t5", "unet", "convnet", "resnet", "lstm", "bert", "llama", "vit")


@cache
def model(name: str) -> Task:
    return replace(TASKS[name](), batch_size=8) if name in TASKS else perceptron()


def difference(name: str, text: str, size: int) -> float:
    machines = cluster_of(size)
    return float(checked(model(name), lambda graph: call(text, graph, machines), machines)["max_difference"])


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize(
    ("name", "p", "m"),
    [("gpt2", 3, 4), ("unet", 4, 2), ("convnet", 2, 4), ("perceptron", 2, 1), ("perceptron", 3, 8)],
)
def test_a_pipeline_equals_one_process(name: str, p: int, m: int, recipe: str) -> None:
    if recipe == "interleaved" and name == "perceptron":
        p = 2
    assert difference(name, f"{recipe}(stages={p},microbatches={m},bucket_bytes=2000)", p) <= TOLERANCE


@pytest.mark.parametrize("recipe", QUICK)
def test_replicas_of_stages_agree(recipe: str) -> None:
    assert difference("gpt2", f"{recipe}(stages=2,data=2,microbatches=2,bucket_bytes=3000)", 4) <= TOLERANCE


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("one_f_one_b(stages=2,data=3,microbatches=2,bucket_bytes=3000,collective=ring)", 6),
        ("gpipe(stages=2,data=4,microbatches=2,collective=hierarchical(2))", 8),
        ("zero_bubble(stages=2,data=2,microbatches=2,collective=doubling)", 4),
        ("interleaved(stages=2,data=2,microbatches=2,collective=auto)", 4),
    ],
)
def test_replicas_of_stages_agree_by_any_algorithm(text: str, size: int) -> None:
    assert difference("perceptron", text, size) <= TOLERANCE


def test_parts_of_unequal_size() -> None:
    """12 samples on 5 replicas in 2 microbatches: roles of 2 and of 3 samples, microbatches of 1 and 2."""
    assert difference("perceptron", "one_f_one_b(stages=2,data=5,microbatches=2)", 10) <= TOLERANCE


@pytest.mark.parametrize("recipe", QUICK)
def test_the_norm_is_that_of_all_stages(recipe: str) -> None:
    """A tied weight counts once, in a bucket of its own that two stages of each replica hold."""
    task = replace(model("gpt2"), name="gpt2-clipped", clip_norm=0.05)
    machines = cluster_of(4)
    text = f"{recipe}(stages=2,data=2,microbatches=2,bucket_bytes=3000)"
    assert checked(task, lambda graph: call(text, graph, machines), machines)["max_difference"] <= TOLERANCE


REPLICAS = ([2, 1], [1, 3], [1, 2, 1], [3, 1, 2], [2, 2])


@pytest.mark.parametrize(
    ("order", "replicas"),
    [
        pytest.param(order, replicas, id=f"{order}-{replicas}",
                     marks=() if len(replicas) == 3 or order is Order.ONE_F_ONE_B else pytest.mark.slow)
        for order in (Order.FILL_DRAIN, Order.ONE_F_ONE_B, Order.ZERO_BUBBLE)
        for replicas in REPLICAS
    ],
)  # fmt: skip
def test_stages_replicated_unequally(order: Order, replicas: list[int]) -> None:
    """PP-05: 12 samples in 5 microbatches, dealt out to the replicas of each stage; a bounded norm."""
    task = replace(model("perceptron"), name="bounded", clip_norm=0.05)
    assert unequal(task, order, replicas, 5) <= TOLERANCE


def test_a_tied_weight_of_unequal_stages() -> None:
    assert unequal(model("gpt2"), Order.ONE_F_ONE_B, [1, 2], 4) <= TOLERANCE


def unequal(task: Task, order: Order, replicas: list[int], m: int) -> float:
    cuts = [cut.position for cut in legal_cuts(capture(task, precision="fp64"))]
    places = [cuts[len(cuts) * (i + 1) // len(replicas)] for i in range(len(replicas) - 1)]
    machines = cluster_of(sum(replicas))
    found = checked(task, lambda graph: cut_at(graph, places, order, m, replicas), machines, steps=2)
    return float(found["max_difference"])


def test_a_microbatch_comes_back_to_the_replica_that_it_left() -> None:
    """PP-05, 1F1B-RR: forwards ahead as many as later ranks can work on for each replica; B where F was."""
    graph = capture(model("perceptron"))
    cuts = [cut.position for cut in legal_cuts(graph)]
    plan = cut_at(graph, [cuts[1], cuts[2]], Order.ONE_F_ONE_B, 6, [1, 3, 2])
    program = last_program(graph, plan, cluster_of(6))
    rows = {
        role.ranks[0]: " ".join(i.name.replace(f"{i.name[1]}#", "") for i in role.on("compute") if i.name[0] in "FB")
        for role in program.roles
    }
    assert rows == {
        0: "F0 F1 F2 F3 F4 F5 B0 B1 B2 B3 B4 B5", 1: "F0 B0 F3 B3", 2: "F1 B1 F4 B4", 3: "F2 B2 F5 B5",
        4: "F0 B0 F2 B2 F4 B4", 5: "F1 B1 F3 B3 F5 B5",
    }  # fmt: skip


def cut_at(graph: Graph, positions: list[int], order: Order, m: int, replicas: Sequence[int] = ()) -> Plan:
    names = ["", *(graph.operators[position].name for position in positions)]
    stops = list(accumulate(replicas)) or [0] * len(names)
    counts = replicas or [0] * len(names)
    ranks = [tuple(range(stop - count, stop)) for stop, count in zip(stops, counts, strict=True)]
    stages = tuple(Stage(name, place) for name, place in zip(names, ranks, strict=True))
    wire = Wire(bucket_bytes=2000, first_bucket_bytes=2000)
    return Plan("cut", Mesh((("pipe", len(stages)),)), stages, schedule=Schedule(order, m), sync=(Sync(wire=wire),))


@pytest.mark.parametrize("name", [pytest.param("gpt2", marks=pytest.mark.slow), "unet"])
def test_any_place_can_be_cut(name: str) -> None:
    """Also where a cut is not worth it: before views, between a weight's transpose and its product."""
    forward = capture(model(name)).forward_length
    for position in range(1, forward, 13 if name == "gpt2" else 4):
        places = [position, min(position + 1, forward - 1)] if position < forward - 1 else [position]
        found = checked(
            model(name), lambda graph, at=places: cut_at(graph, at, Order.ZERO_BUBBLE, 2), cluster_of(3), steps=1
        )
        assert found["max_difference"] <= TOLERANCE, position


@pytest.mark.parametrize("recipe", QUICK)
def test_bits_do_not_depend_on_the_order(recipe: str) -> None:
    import torch

    task = model("unet")
    graph, machines = capture(task), cluster_of(3)
    plan = call(f"{recipe}(stages=3,microbatches=4)", graph, machines)

    def weights(order: int) -> dict[str, torch.Tensor]:
        states, _ = train_in_process(Workload(task, graph), plan, machines, 2, order=order, slow={order % 3: 0.02})
        return {name: leaf for state in states.values() for name, leaf in state.leaves.items()}

    first = weights(0)
    assert {p.name for p in graph.parameters} <= first.keys()
    for order in range(1, 5):
        again = weights(order)
        assert all(torch.equal(first[p.name], again[p.name]) for p in graph.parameters)


def test_a_stage_holds_its_own_weights_only() -> None:
    task = model("gpt2")
    graph, machines = capture(task), cluster_of(4)
    states, _ = train_in_process(Workload(task, graph), call("one_f_one_b", graph, machines), machines, 1)
    held = [{p.name for p in graph.parameters} & states[rank].leaves.keys() for rank in range(4)]
    assert set.union(*held) == {p.name for p in graph.parameters}
    shared = [name for name in set.union(*held) if sum(name in h for h in held) > 1]
    assert shared == ["transformer.wte.weight"]


def test_what_is_skipped_to_a_stage_is_sent_there_once() -> None:
    """PP-02: a U-Net's skips pass over stages; each value reaches each stage that reads it once a microbatch, and no
    stage in between has it."""
    graph, machines = capture(model("unet")), cluster_of(4)
    program = program_by("torchgpipe(stages=4,microbatches=2)", graph, machines)
    stage_of = {role.ranks[0]: k for k, role in enumerate(sorted(program.roles, key=lambda role: role.ranks[0]))}
    sent: list[tuple[str, int, str, int, int]] = []
    for role, i in program.instructions():
        if isinstance(i.act, Send) and i.act.space is Space.VALUE:
            parcel, (target,) = program.parcel[i.act.bucket], set(i.act.to)
            sent += [
                (i.name.partition("#")[2], stage_of[target], name, role.ranks[0], target) for name, _ in parcel.values
            ]
    assert len({place[:3] for place in sent}) == len(sent)
    assert max(target - source for *_, source, target in sent) > 1


@pytest.mark.slow
@pytest.mark.parametrize("order", [Order.ONE_F_ONE_B, Order.ZERO_BUBBLE])
@pytest.mark.parametrize("name", WHOLE)
def test_cuts_everywhere(name: str, order: Order) -> None:
    cuts = [cut.position for cut in legal_cuts(capture(model(name)))]
    for first in range(0, len(cuts) - 2, max(len(cuts) // 12, 1)):
        places = sorted({cuts[first], cuts[(first + len(cuts)) // 2], cuts[-1]})
        found = checked(model(name), lambda graph, at=places: cut_at(graph, at, order, 4), cluster_of(4), steps=1)
        assert found["max_difference"] <= TOLERANCE, places
