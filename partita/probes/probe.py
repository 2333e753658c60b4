"""Micro-benchmarks of operators, copies and updates on one rank; no plan and no full step is ever timed.

Times are core-seconds of the calling thread, taken while every device of the cluster is loaded alike: on a device that
may use half a core, a core-second lasts two seconds, whoever else computes. What differs between hosts and minutes is
divided out: every operator is stored relative to a reference kernel that is timed beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import gcd
from typing import Any, Final, TypeAlias

import torch

from partita.cost.touch import NEAR
from partita.graph.batch import substitute
from partita.graph.graph import Graph, Optimizer
from partita.graph.precision import shortened
from partita.probes.bench import HOST, Bench, benches_of
from partita.probes.codecs import codec_seconds, coding_disturbance
from partita.probes.opaque_timing import whole_seconds
from partita.probes.operator_timing import Timed, seconds_in_turn, without_denormals
from partita.probes.stretches import acted, comparable, ending, make, share_of, stretches_of
from partita.probes.timing import Run, aged_seconds, cold_seconds, disturbance_of, few_operators, forget, thread_seconds
from partita.probes.worker_timing import following_seconds, instruction_seconds, waking_seconds
from partita.probes.workspace_bytes import workspace_bytes
from partita.runtime.device import CPU
from partita.runtime.feed import Feed, check_shapes, floats_of
from partita.runtime.finite import all_finite
from partita.runtime.rules import made
from partita.runtime.state import step_units
from partita.task import Task
from partita.tracing.update_units import apart, joined
from partita.units import Bytes, Seconds

NEAREST: Final[Bytes] = 2**21  # of a core's own caches
AHEAD: Final[tuple[Bytes, ...]] = (2**22, 2**25)  # that operators make ahead of a pass over tensors
WARM: Final = ("warm", "check")  # passes over what was touched a moment ago
REST: Final[Seconds] = 1e-3  # in which a rank waits for others, which use its caches
OLDEST: Final[Seconds] = 0.5  # since a pass was made last: what is older is hardly colder
FEWEST: Final = 2**16  # elements of a model's own tensors together
NEVER: Final[Seconds] = 1e-9  # a card does not know of instructions


def reference_seconds(bench: Bench = HOST) -> Seconds:
    """The reference kernel that host drift is divided out by: a 192 x 192 matrix product and a pass over 1 MB.

    The least of four, for a process's first calls take up to twice as long."""
    a, b, c = (torch.randn(shape, device=bench.device) for shape in ((192, 192), (192, 192), (2**18,)))

    def kernel() -> None:
        torch.mm(a, b)
        torch.add(c, 1.0)

    return min(cold_seconds(kernel, bench) if bench.each else thread_seconds(kernel) for _ in range(4))


Passing: TypeAlias = Callable[[list[torch.Tensor]], Callable[[], Any]]  # what a pass makes of a list of tensors


def touch_runs(
    passing: Passing, lengths: Sequence[int], near: Bench = HOST, far: Bench = HOST, dtype: torch.dtype = torch.float32
) -> list[Run]:  # fmt: skip
    """Passes over tensors of a dtype, each on its bench: over eight small ones and over 64 behind what is `near`, over
    those of some `lengths` behind what is `far`."""
    sizes = ([64] * 8, near), ([64] * 64, near), (lengths, far)
    return [(passing([torch.randn(n, device=bench.device, dtype=dtype) for n in each]), bench) for each, bench in sizes]


def parts_of(spent: Iterable[Seconds], lengths: Sequence[int]) -> tuple[Seconds, Seconds, Seconds]:
    """(seconds a tensor, seconds an element, seconds a call), from those of `touch_runs`."""
    few, many, whole = spent
    tensor = max((many - few) / 56, 1e-7)
    call = max(few - 8 * tensor, 0.0)
    return tensor, max(whole - call - tensor * len(lengths), 0.0) / sum(lengths), call


def lengths_of(graph: Graph, most: int = HOST.most) -> list[int]:
    """The elements of a model's own tensors; of a small or very large model in proportion, `most` together."""
    own = [p.tensor.elements() for p in graph.parameters] or [1]
    factor = min(max(sum(own), FEWEST), most) / sum(own)
    return [max(round(factor * elements), 1) for elements in own]


def passes_of(task: Task, rule: Optimizer) -> dict[str, Passing]:
    """Copying into a bucket ("warm": a moment ago it was touched) and adding to it, looking whether it is finite, and a
    step of the task's optimizer, of which `rule` tells, where gradients lie beside each other ("update") and where
    backward left them ("update_unpacked")."""

    def through(function: Any) -> Passing:
        return lambda tensors: partial(function, [torch.zeros_like(t) for t in tensors], tensors)

    def stepping(join: bool) -> Passing:
        def passing(tensors: list[torch.Tensor]) -> Callable[[], Any]:
            flat, sizes = torch.cat(tensors), [len(t) for t in tensors]
            pieces = [piece if rule.elementwise else squarish(piece) for piece in torch.split(flat, sizes)]
            optimizer = made(task, pieces)
            units = joined(optimizer, pieces, apart(pieces)) if join else apart(pieces)
            gradients = [torch.randn_like(unit.tensor) * 1e-6 for unit in units]
            return partial(step_units, units, gradients, optimizer.step)

        return passing

    copying = through(torch._foreach_copy_)
    return {
        "copy": copying, "warm": copying, "add": through(torch._foreach_add_),
        "update": stepping(rule.joins), "update_unpacked": stepping(False),
        "check": lambda tensors: partial(all_finite, torch.cat(tensors)),
    }  # fmt: skip


def touches(
    task: Task, rule: Optimizer, lengths: Sequence[int], bench: Bench = HOST, *, again: bool = False,
    names: Collection[str] = (),
) -> dict[str, tuple[Seconds, Seconds, Seconds]]:  # fmt: skip
    """`parts_of` the passes over a model's own tensors, or of those with these names, each called again and again,
    after other work or right behind itself (`again`)."""
    dtype, found = floats_of(task), {}
    for name, passing in passes_of(task, rule).items():
        if not names or name in names:
            runs = touch_runs(passing, lengths, bench, bench, dtype)
            found[name] = parts_of((cold_seconds(run, each, again=again) for run, each in runs), lengths)
    return found


def aged_touches(
    task: Task, rule: Optimizer, lengths: Sequence[int], near: Bench, far: Bench, age: Seconds, loads: Sequence[Run]
) -> tuple[dict[str, tuple[Seconds, Seconds, Seconds]], list[Seconds]]:
    """(the same of passes over what was not touched for `age` seconds, all tensors of the model being `far`;
    core-seconds of `loads`, which were not made as long)."""
    dtype, passes = floats_of(task), {n: passing for n, passing in passes_of(task, rule).items() if n not in WARM}
    runs = [run for passing in passes.values() for run in touch_runs(passing, lengths, near, far, dtype)]
    kin = [name.removesuffix("_unpacked") for name in passes for _ in range(3)]
    spent = aged_seconds([*runs, *loads], [*kin, *["load"] * len(loads)], age)
    each = zip(*[iter(spent[: len(runs)])] * 3, strict=True)
    return {name: parts_of(own, lengths) for name, own in zip(passes, each, strict=True)}, spent[len(runs) :]


def squarish(vector: torch.Tensor) -> torch.Tensor:
    """It as a matrix, for rules that take no vectors: of as many rows as columns, as far as powers of two divide it."""
    return vector.view(gcd(len(vector), 2 ** (len(vector).bit_length() // 2)), -1)


def load_runs(task: Task, graph: Graph, count: int, bench: Bench = HOST) -> list[Run]:
    """What a Load does of one sample, and of `count`; on a card of starting to bring samples there."""
    feed, host = Feed(task, 0), HOST if bench.each else bench
    feed.positions(0, 0, 1)

    def load(samples: int) -> None:
        leaves = feed.leaves(feed.positions(0, 0, samples), bench.device)
        if graph.rung != "opaque":
            check_shapes(graph, leaves, samples, 0)
        torch.full((), 1.0, device=bench.device)

    return [(partial(load, samples), host) for samples in (1, count)]


def load_seconds(
    few: Seconds, many: Seconds, count: int, beside: Callable[[], Any] | None = None
) -> tuple[Seconds, Seconds]:
    """(seconds a batch, seconds a sample), from those of `load_runs`; and of what computing takes longer while a thread
    of its rank loads a batch (`beside`)."""
    each = (many - few) / (count - 1) if count > 1 else few
    longer = disturbance_of(beside, few_operators) if beside else 0.0
    return max(few - each, 0.0), max(each + longer * many / count, 1e-9)


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
    task: Task, graph: Graph, rank: int, world: int, *, batches: Iterable[int], known: Collection[str],
    steps: Iterable[str], device: str, total: Seconds, tell: Callable[[dict[str, Any]], None],
) -> dict[str, Any]:  # fmt: skip
    """Core-seconds of `operators`, this rank's share of those that are not known yet; in the `places` of some stretches
    that every rank times, known or not; and of the reference kernel. Of the captured step ("") or of those in the short
    dtypes of `steps`. Those of a model that is one operator are timed on the samples of `task`. That takes about
    `total` core-seconds."""
    torch.manual_seed(0)
    whole = [shortened(graph, short) if short else graph for short in steps]
    graphs = [substitute(step, batch) for step in whole for batch in batches]
    bench, *launching = benches_of(device)
    bench = replace(bench, between=touched_bytes(bench, graph), rest=REST * (world > 1))
    reference = reference_seconds(bench)
    found, launches = Timed(), list[dict[str, Seconds]]()
    spaces: tuple[dict[str, Bytes], Bytes] = {}, 0
    if graph.rung == "opaque":
        found.places = operators = whole_seconds(task, graph, batches, device)
    else:
        every = stretches_of(graphs, bench.stretch)
        fresh = stretches_of(graphs, bench.stretch, known) if comparable(every, known) else every
        mine = share_of(every, fresh, rank, world)
        with torch.no_grad():
            spaces = workspace_bytes(mine, device) if launching else spaces
            found = seconds_in_turn(mine, lambda n: tell({"operators": n, "of": sum(map(len, mine))}), bench, total)
            launches = [seconds_in_turn(mine, lambda n: None, each, total).operators for each in launching]
        operators = found.operators
    reference = min(reference, reference_seconds(bench))
    forget()
    return {
        "operators": operators, "places": found.places, "unevenness": found.unevenness, "reference": reference,
        "launching": launches, "workspaces": spaces,
    }  # fmt: skip


def touched_bytes(bench: Bench, graph: Graph) -> Bytes:
    """What an update touches: no less than a core's caches hold, no more than the bench passes over for a call."""
    return min(max(round(graph.trained_bytes * (2 + graph.state_factor)), NEAREST), bench.between)


def behind_step(bench: Bench, graph: Graph, batch: int, least: Bytes) -> Bench:
    """A bench on which calls come behind the last operators of a step of `batch` samples, which make so many bytes at
    `least` or are all; behind a pass over what an update touches, for a model that is one operator. The same on a
    card."""
    if bench.each:
        return bench
    if graph.rung == "opaque":
        return replace(bench, between=touched_bytes(bench, graph))
    return replace(bench, ahead=partial(acted, make(ending(substitute(graph, batch), least))))


def rank_touches(
    task: Task, graph: Graph, count: int, *, codecs: Mapping[str, int], device: str, age: Seconds, passes: bool,
) -> dict[str, Any]:  # fmt: skip
    """Costs of passing through the tensors of a task's model, and of loading `count` samples, `age` seconds after that
    was done last; of an instruction, and of `codecs`, which encode so many elements at once, unless `passes` and loads
    are all that is asked for; and on a card those of launching all that."""
    torch.manual_seed(0)
    bench, *launching = benches_of(device)
    rule, lengths = graph.optimizer, lengths_of(graph, bench.most)
    with torch.no_grad(), without_denormals():
        near, far = (behind_step(bench, graph, count, least) for least in AHEAD)
        loads, at_hand = load_runs(task, graph, count, near), Feed(task, 0).at_hand
        passed, (few, many) = aged_touches(task, rule, lengths, near, far, min(age, OLDEST), loads)
        beside_it = None if at_hand or bench.each else loads[1][0]
        found: dict[str, Any] = {
            **passed, **touches(task, rule, lengths, near, names=WARM),
            "load": load_seconds(few, many, count, beside_it), "at_hand": at_hand,
        }  # fmt: skip
        if passes and not launching:
            forget()
            return found
        found |= {
            "instruction": instruction_seconds(), **waking_seconds(), "codecs": codec_seconds(codecs),
            "coding": coding_disturbance() if codecs and device == CPU else 0.0,
        }  # fmt: skip
        host = {name: found[name] for name in ("load", "instruction")}
        beside = [{**touches(task, rule, lengths, one), **host} for one in launching]
        if launching:
            found |= {"load": bringing_seconds(task, count, bench)}
            found |= dict.fromkeys(("instruction", "waking", "choosing"), NEVER)
        again = {} if launching else touches(task, rule, [NEAR // 2], near, again=True)
        forget()
        following = NEVER if launching else following_seconds()
        return found | {"launching": beside, "again": again, "following": following}
