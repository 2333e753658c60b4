"""Passes over the tensors of a task's model timed on one rank: copies, sums, checks and updates; beside them loads,
codecs, and what an instruction takes.

A pass takes so much a call, a tensor and an element. It is timed behind what a step has ahead of it, on tensors that
were touched about as long ago as in a step.
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
from partita.probes.bench import HOST, Bench, benches_of
from partita.probes.codecs import codec_seconds, coding_disturbance
from partita.probes.loads import bringing_seconds, load_runs, load_seconds
from partita.probes.operator_timing import without_denormals
from partita.probes.stretches import acted, ending, make
from partita.probes.timing import Run, aged_seconds, cold_seconds, forget
from partita.probes.worker_timing import following_seconds, instruction_seconds, waking_seconds
from partita.runtime.device import CPU
from partita.runtime.feed import Feed, floats_of
from partita.runtime.finite import all_finite
from partita.runtime.rules import made
from partita.runtime.state import step_units
from partita.task import Task
from partita.tracing.update_units import apart, joined
from partita.units import Bytes, Seconds

NEAREST: Final[Bytes] = 2**21  # of a core's own caches
AHEAD: Final[tuple[Bytes, ...]] = (2**22, 2**25)  # that operators make ahead of a pass over tensors
WARM: Final = ("warm", "check")  # passes over what was touched a moment ago
OLDEST: Final[Seconds] = 0.5  # since a pass was made last: what is older is hardly colder
FEWEST: Final = 2**16  # elements of a model's own tensors together
NEVER: Final[Seconds] = 1e-9  # a card does not know of instructions
Parts: TypeAlias = tuple[Seconds, Seconds, Seconds]  # seconds a tensor, an element and a call
Passing: TypeAlias = Callable[[list[torch.Tensor]], Callable[[], Any]]  # what a pass makes of a list of tensors


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


def behind_step(bench: Bench, graph: Graph, batch: int, least: Bytes) -> Bench:
    """A bench on which calls come behind the last operators of a step of `batch` samples, which make so many bytes at
    `least` or are all; behind a pass over what an update touches, for a model that is one operator. The same on a
    card."""
    if bench.each:
        return bench
    if graph.rung == "opaque":
        return replace(bench, between=touched_bytes(bench, graph))
    return replace(bench, ahead=partial(acted, make(ending(substitute(graph, batch), least))))


def touched_bytes(bench: Bench, graph: Graph) -> Bytes:
    """What an update touches: no less than a core's caches hold, no more than the bench passes over for a call."""
    return min(max(round(graph.trained_bytes * (2 + graph.state_factor)), NEAREST), bench.between)


def touch_runs(
    passing: Passing, lengths: Sequence[int], near: Bench = HOST, far: Bench = HOST, dtype: torch.dtype = torch.float32
) -> list[Run]:  # fmt: skip
    """Passes over tensors of a dtype, each on its bench: over eight small ones and over 64 behind what is `near`, over
    those of some `lengths` behind what is `far`."""
    sizes = ([64] * 8, near), ([64] * 64, near), (lengths, far)
    return [(passing([torch.randn(n, device=bench.device, dtype=dtype) for n in each]), bench) for each, bench in sizes]


def parts_of(spent: Iterable[Seconds], lengths: Sequence[int]) -> Parts:
    """What a pass takes, from what the three of `touch_runs` took."""
    few, many, whole = spent
    tensor = max((many - few) / 56, 1e-7)
    call = max(few - 8 * tensor, 0.0)
    return tensor, max(whole - call - tensor * len(lengths), 0.0) / sum(lengths), call


def lengths_of(graph: Graph, most: int) -> list[int]:
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
    task: Task, rule: Optimizer, lengths: Sequence[int], bench: Bench, *, again: bool = False,
    names: Collection[str] = (),
) -> dict[str, Parts]:  # fmt: skip
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
) -> tuple[dict[str, Parts], list[Seconds]]:
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
