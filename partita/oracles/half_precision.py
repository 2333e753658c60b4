"""Half precision in one process, in plain PyTorch: what a plan with `precision` must equal (ME-11).

of every part of a minibatch   g = gradient of (scale * share * loss) of a model whose weights are the masters, rounded
summed                         over a worker's parts in the order in which it takes them back, then over workers
applied                        master <- master - rule(g / scale, bounded), or nothing where g is not finite
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import isfinite
from typing import Any

import torch

from partita.graph.graph import Graph
from partita.lowering.precision import in_precision
from partita.oracles.captured import Captured
from partita.oracles.reference import Reference, fresh
from partita.program.instruction import Load, Pack
from partita.program.layout import WEIGHT
from partita.program.program import Program
from partita.program.scaling import Scaling, bounding
from partita.runtime.leg import Leg
from partita.runtime.neutral import left_out, neutral, reached
from partita.runtime.rules import optimizer_of, schedule_of, step_at_rate
from partita.task import Task
from partita.tracing.draws import NOTHING
from partita.tracing.prepare import untrained
from partita.tracing.promote import Promoted
from partita.tracing.shorten import Shortened, WholeCalls, shorten

Summed = tuple[list[torch.Tensor | None], float]


@dataclass
class HalfPrecision:
    """A plain training in half precision; `scale` and `good` are the state of the loss scale."""

    own: Reference
    masters: dict[str, torch.Tensor]
    optimizer: Any
    schedule: Any
    scaling: Scaling | None
    scale: float
    backward: Callable[..., float]
    good: int = 0

    def summed(self, program: Program, step: int) -> Summed:
        """The sum of all workers' gradients as it is applied, of the scaled loss, and its scale."""
        sums = next(b.sums for b in program.buckets if b.pieces)
        total: list[torch.Tensor] = []
        weight, buffers = 0.0, bool(untrained(self.own.model))
        for rank, parts in parts_of(program):
            if buffers:
                self.own.turn(rank)
            mine, deferred = list[torch.Tensor](), program.deferred
            first = {name: tensor for name, tensor in self.own.kept().items() if name in deferred} if deferred else {}
            for start, count in parts:
                self.own.load(first)
                for p in self.own.model.parameters():
                    p.grad = None
                weight += self.backward(step, start, count, count / program.batch, self.scale)
                found = [neutral(p) if p.grad is None else reached(p.grad) for p in self.own.trained.values()]
                mine = _added(mine, [g.to(getattr(torch, sums)) if sums else g for g in found])
            total = _added(total, mine)
        divisor = torch.tensor(weight or 1.0, dtype=torch.float64)
        return [g if g is None else g.div_(divisor) for g in left_out(total)], self.scale

    def apply(self, program: Program, summed: Summed) -> None:
        """One step of the rule on the masters, if it can be made."""
        gradients, scale = summed
        norm = float(torch.stack([g.double().norm() for g in gradients if g is not None]).norm())
        finite = isfinite(norm)
        if self.scaling:
            self.scale, self.good = self.scaling.after(self.scale, self.good, finite)
            if not finite:
                return
        bound = self.own.task.clip_norm
        factor = (bounding(norm / scale, bound) if bound else 1.0) / scale
        masters = [m for m in self.masters.values() if m.requires_grad]
        for master, gradient in zip(masters, gradients, strict=True):
            master.grad = None if gradient is None else gradient.to(master.dtype) * factor
        step_at_rate(self.optimizer, program.update)
        if self.schedule is not None:
            self.schedule.step()
        with torch.no_grad():
            for name, p in self.own.trained.items():
                p.copy_(self.masters[name])


def _added(total: list[torch.Tensor], more: list[torch.Tensor]) -> list[torch.Tensor]:
    return [a + b for a, b in zip(total, more, strict=True)] if total else [g.clone() for g in more]


def parts_of(program: Program) -> list[tuple[int, list[tuple[int, int]]]]:
    """Each worker, and the (start, count) of what its gradients are made of, in the order in which they are summed."""
    found, seen = [], set[tuple[int, int]]()
    for role in program.roles:
        loads = {act.part: act for act in reversed(role.acts(Load))}
        packed = [act.part for act in role.acts(Pack) if act.bucket != WEIGHT]
        for rank in role.ranks:
            parts = [loads[part] for part in dict.fromkeys(packed or loads)]
            mine = [(role.mine(load.start, rank), load.count) for load in parts]
            found.append((rank, [part for part in mine if part not in seen]))
            seen |= set(mine)
    return [(rank, mine) for rank, mine in sorted(found) if mine]


def half_precision(
    task: Task, legs: Sequence[Leg], *, seed: int, precision: str, dims: Mapping[int, int] = NOTHING,
    graph: Graph | None = None,
) -> HalfPrecision:  # fmt: skip
    """The training that the legs' programs stand for, finished; its `masters` are the result. With a `graph`, gradients
    are those of the captured step where the model, which may look at dtypes itself, has others."""
    program = legs[0].program
    own = fresh(task, seed=seed, precision=precision, dims=dims)
    assert program.whole or program.stages
    short = getattr(torch, (program.whole or program.stages[0]).precision)
    wide = torch.float64 if precision == "fp64" else torch.float32
    masters = shorten(own.model, short, {name for name, _ in graph.mutations} if graph is not None else ())
    promoted = [partial(Promoted, (torch.float32,))] if precision == "fp64" else []
    own.modes = lambda: [WholeCalls(wide), Shortened(short, wide), *(make() for make in promoted)]
    optimizer = optimizer_of(task, program.update, [m for m in masters.values() if m.requires_grad])
    schedule = schedule_of(task, optimizer)
    start = program.scaling.start if program.scaling else 1.0
    one = HalfPrecision(own, masters, optimizer, schedule, program.scaling, start, own.backward)
    captured = Captured(in_precision(graph, legs[0].plan.memory), own) if graph is not None else None
    if captured and captured.differs(parts_of(program)[0][1][0][1]):
        one.backward = captured.backward
    for leg in legs:
        steps, lag = leg.rounds * leg.program.steps, leg.program.slots - 1
        flying: deque[Summed] = deque()
        for t in range(steps + lag):
            if t < steps:
                flying.append(one.summed(leg.program, leg.step + t))
            if t >= lag:
                one.apply(leg.program, flying.popleft())
    return one
