"""Micro-benchmarks of operators, copies and updates on one rank; no plan and no full step is ever timed.

Times are core-seconds of the calling thread, taken while every device of the cluster is loaded alike: on a device that
may use half a core, a core-second lasts two seconds, whoever else computes. What differs between hosts and minutes is
divided out: every operator is stored relative to a reference kernel that is timed beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from math import gcd
from typing import Any, Final, TypeAlias

import torch

from partita.cost.touch import NEAR
from partita.graph.batch import substitute
from partita.graph.graph import Graph
from partita.graph.patterns import shares_memory
from partita.graph.precision import shortened
from partita.graph.signature import signature
from partita.lab.bench import HOST, Bench, benches_of
from partita.lab.codecs import codec_seconds, coding_disturbance
from partita.lab.opaque_timing import whole_seconds
from partita.lab.operator_timing import TOTAL, seconds_in_turn
from partita.lab.timing import cold_seconds, forget, thread_seconds
from partita.lab.worker_timing import following_seconds, instruction_seconds
from partita.lab.workspace_bytes import workspace_bytes
from partita.runtime.device import CPU
from partita.runtime.feed import Feed, floats_of
from partita.runtime.rules import made
from partita.task import Task
from partita.tracing.optimizer import elementwise, joins
from partita.tracing.update_units import apart, joined
from partita.units import Bytes, Seconds

FEW: Final = 100
COMMON: Final = 32
LARGEST: Final = (2**16, 2**23)  # elements of a tensor of a model's own size, at least and at most
NEVER: Final[Seconds] = 1e-9  # a card does not know of instructions


def unique_operators(graphs: Iterable[Graph]) -> dict[str, tuple[Graph, int]]:
    """One example (graph, index) of each signature among graphs whose sizes are numbers."""
    found: dict[str, tuple[Graph, int]] = {}
    for graph in graphs:
        for i, operator in enumerate(graph.operators):
            found.setdefault(signature(operator, graph), (graph, i))
    return found


def reference_seconds(bench: Bench = HOST) -> Seconds:
    """The reference kernel that host drift is divided out by: a 192 x 192 matrix product and a pass over 1 MB.

    The least of four, for a process's first calls take up to twice as long."""
    a, b, c = (torch.randn(shape, device=bench.device) for shape in ((192, 192), (192, 192), (2**18,)))

    def kernel() -> None:
        torch.mm(a, b)
        torch.add(c, 1.0)

    return min(cold_seconds(kernel, bench) if bench.each else thread_seconds(kernel) for _ in range(4))


Passing: TypeAlias = Callable[[list[torch.Tensor]], Callable[[], Any]]  # what a pass makes of a list of tensors


def touch_seconds(
    passing: Passing, largest: int, bench: Bench = HOST, dtype: torch.dtype = torch.float32, *, again: bool = False
) -> tuple[Seconds, Seconds, Seconds]:
    """(seconds a tensor, seconds an element, seconds a call) of a pass over tensors of a dtype, called again and again,
    after other work or right behind itself (`again`): over eight small ones, 64, and one with `largest` elements."""

    def seconds(sizes: list[int]) -> Seconds:
        run = passing([torch.randn(n, device=bench.device, dtype=dtype) for n in sizes])
        return cold_seconds(run, bench, again=again)

    few, many, one = seconds([64] * 8), seconds([64] * 64), seconds([largest])
    tensor = max((many - few) / 56, 1e-7)
    call = max(few - 8 * tensor, 0.0)
    return tensor, max(one - call - tensor, 0.0) / largest, call


def passes_of(task: Task) -> dict[str, Passing]:
    """Copying into and adding to a bucket, and a step of the task's optimizer where gradients lie beside each other
    ("update") and where backward left them ("update_unpacked")."""
    flat_rule = elementwise(task)

    def through(function: Any) -> Passing:
        return lambda tensors: partial(function, [torch.zeros_like(t) for t in tensors], tensors)

    def stepping(join: bool) -> Passing:
        def passing(tensors: list[torch.Tensor]) -> Callable[[], Any]:
            flat, sizes = torch.cat(tensors), [len(t) for t in tensors]
            pieces = [piece if flat_rule else squarish(piece) for piece in torch.split(flat, sizes)]
            optimizer = made(task, pieces)
            for unit in joined(optimizer, pieces, apart(pieces)) if join else apart(pieces):
                unit.tensor.grad = torch.randn_like(unit.tensor) * 1e-6
            return optimizer.step

        return passing

    return {
        "copy": through(torch._foreach_copy_), "add": through(torch._foreach_add_),
        "update": stepping(joins(task)), "update_unpacked": stepping(False),
    }  # fmt: skip


def touches(
    task: Task, largest: int, bench: Bench = HOST, *, again: bool = False
) -> dict[str, tuple[Seconds, Seconds, Seconds]]:
    """`touch_seconds` of the passes over a model's own tensors."""
    dtype, passes = floats_of(task), passes_of(task)
    return {name: touch_seconds(passing, largest, bench, dtype, again=again) for name, passing in passes.items()}


def squarish(vector: torch.Tensor) -> torch.Tensor:
    """It as a matrix, for rules that take no vectors: of as many rows as columns, as far as powers of two divide it."""
    return vector.view(gcd(len(vector), 2 ** (len(vector).bit_length() // 2)), -1)


def load_seconds(task: Task, count: int, bench: Bench = HOST) -> tuple[Seconds, Seconds]:
    """(seconds a batch, seconds a sample) of fetching and collating, and of starting to bring samples to a card."""
    feed = Feed(task, 0)
    feed.positions(0, 0, 1)
    host = Bench(between=min(bench.between, HOST.between))
    few = cold_seconds(lambda: feed.leaves(feed.positions(0, 0, 1), bench.device), host)
    many = cold_seconds(lambda: feed.leaves(feed.positions(0, 0, count), bench.device), host)
    each = (many - few) / (count - 1) if count > 1 else few
    return max(few - each, 0.0), max(each, 1e-9)


def bringing_seconds(task: Task, count: int, bench: Bench) -> tuple[Seconds, Seconds]:
    """(seconds a batch, seconds a sample) of a card's stream while samples come."""
    feed, spent = Feed(task, 0), []
    for samples in (1, count):
        leaves = [leaf for leaf in feed.leaves(feed.positions(0, 0, samples), CPU) if isinstance(leaf, torch.Tensor)]
        held = [leaf.pin_memory() for leaf in leaves]
        spent.append(cold_seconds(lambda held=held: [x.to(bench.device, non_blocking=True) for x in held], bench))  # type: ignore[misc]
    each = (spent[1] - spent[0]) / (count - 1) if count > 1 else spent[0]
    return max(spent[0] - each, 0.0), max(each, 1e-9)


def rank_operators(
    graph: Graph,
    batches: Iterable[int],
    known: Iterable[str],
    rank: int,
    world: int,
    tell: Callable[[dict[str, Any]], None],
    steps: Iterable[str] = ("",),
    device: str = CPU,
    task: Task | None = None,
    total: Seconds = TOTAL,
) -> dict[str, Any]:
    """Signature -> core-seconds of this rank's share of the operators that are not known yet, and of some that every
    rank times, known or not; and the reference kernel's. Of the captured step ("") or of those in the short dtypes of
    `steps`. A few operators are timed by every rank: too short a list would stay in the cache. Those of a model that
    is one operator are timed on the samples of `task`. That takes about `total` core-seconds."""
    torch.manual_seed(0)
    whole = [shortened(graph, short) if short else graph for short in steps]
    wanted = unique_operators([substitute(step, batch) for step in whole for batch in batches])
    known, every = set(known), list(wanted)
    names = [name for name in wanted if name not in known]
    mine = dict.fromkeys(every[:: max(len(every) // COMMON, 1)])
    mine |= dict.fromkeys(names if len(names) < FEW else names[rank::world])
    bench, *launching = benches_of(device)
    reference = reference_seconds(bench)
    spaces: tuple[dict[str, Bytes], Bytes]
    if graph.rung == "opaque" and task is not None:
        found = whole_seconds(task, graph, batches, device)
        launches, uneven, spaces = [], 0.0, ({}, 0)
    else:
        examples = [(n, *wanted[n]) for n in mine]
        with torch.no_grad():
            spaces = workspace_bytes(examples, device) if launching else ({}, 0)
            found, uneven = seconds_in_turn(examples, lambda n: tell({"operators": n, "of": len(mine)}), bench, total)
            launches = [seconds_in_turn(examples, lambda n: None, each, total)[0] for each in launching]
    reference = min(reference, reference_seconds(bench))
    forget()
    return {
        "operators": found, "unevenness": uneven, "reference": reference, "launching": launches, "workspaces": spaces,
    }  # fmt: skip


def passed_bytes(graph: Graph, batch: int) -> Bytes:
    """Bytes that a step on `batch` samples passes over: weights, what is kept of them, and what operators make."""
    made = (o.outputs for o in graph.operators if not shares_memory(o, graph))
    kept = round(graph.trained_bytes * (1 + graph.state_factor)) + graph.frozen_bytes
    return kept + sum(tensor.size(batch) for outputs in made for tensor in outputs if tensor is not None)


def rank_touches(
    task: Task, graph: Graph, count: int, codecs: Mapping[str, int] | None = None, device: str = CPU
) -> dict[str, Any]:
    """Costs of passing through the tensors of a task's model, of loading `count` samples, of an instruction, and of
    `codecs`, which encode so many elements at once; and on a card those of launching all that."""
    torch.manual_seed(0)
    largest = min(max(graph.parameter_elements, LARGEST[0]), LARGEST[1])
    bench, *launching = benches_of(device)
    if not launching:
        bench = replace(bench, between=min(bench.between, passed_bytes(graph, count)))
    with torch.no_grad():
        found: dict[str, Any] = {
            **touches(task, largest, bench),
            "load": load_seconds(task, count, bench), "instruction": instruction_seconds(),
            "codecs": codec_seconds(codecs or {}), "at_hand": Feed(task, 0).at_hand,
            "coding": coding_disturbance() if codecs and device == CPU else 0.0,
        }  # fmt: skip
        host = {name: found[name] for name in ("load", "instruction")}
        beside = [{**touches(task, largest, one), **host} for one in launching]
        if launching:
            found |= {"load": bringing_seconds(task, count, bench), "instruction": NEVER}
        again = {} if launching else touches(task, NEAR // 2, again=True)
        forget()
        return found | {"launching": beside, "again": again, "following": following_seconds()}
