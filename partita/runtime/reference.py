"""What a plan must equal: the same training in plain PyTorch, one process, no part of the runtime.

    exact       w <- w - rule(mean gradient of the minibatch)
    delayed     the same with the gradient of `lag` steps ago (Pipe-SGD, DP-30), what is in flight applied at the end
    consensus   every worker alone for `period` steps on its part, then the mean of all (local SGD, DP-26)

Where a model keeps batch statistics, a minibatch is fed in the sub-batches that the plan makes of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils._pytree import tree_map
from torch.utils.data import default_collate

from partita.program.instruction import Load
from partita.program.program import Program
from partita.runtime.feed import Feed, place
from partita.runtime.leg import Leg
from partita.task import Task
from partita.tracing.draws import NOTHING, KeyedDraws
from partita.tracing.promote import Promoted


@dataclass(frozen=True, slots=True)
class Share:
    """Part of minibatch `step` of a round: `count` samples from position `start`, seen by worker `rank`."""

    rank: int
    step: int
    start: int
    count: int


def shares_of(program: Program) -> tuple[Share, ...]:
    """Every part of a round's minibatches, by worker; of one that several stages load, the first one's."""
    loads = [(role, i.act) for role, i in program.instructions() if isinstance(i.act, Load)]
    found: dict[tuple[int, int, int], Share] = {}
    for role, act in loads:
        for rank in role.ranks:
            start = role.mine(act.start, rank)
            found.setdefault((act.step, start, act.count), Share(rank, act.step, start, act.count))
    return tuple(found.values())


@dataclass
class Reference:
    """A plain training of one model copy; `fed` tells which shares a minibatch is fed in (empty: whole)."""

    task: Task
    model: Any
    seed: int
    precision: str
    feed: Feed
    dims: Mapping[int, int]

    def gradients(self, step: int, shares: Sequence[tuple[int, int]], of: int) -> list[torch.Tensor]:
        """Sum over shares (start, count) of count / of x gradient of the mean loss over it, clipped where asked. Of a
        loss that comes with a weight: the gradient of the sum over all shares, over their weight."""
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        for p in parameters:
            p.grad = None
        weights = []
        floating = torch.float64 if self.precision == "fp64" else None
        for start, count in shares:
            positions = self.feed.positions(step, start, count)
            batch = (self.task.collate or default_collate)([self.task.data[i] for i in positions])
            batch = tree_map(lambda leaf: place(leaf, "cpu", floating), batch)
            with ExitStack() as modes:
                if self.precision == "fp64":
                    modes.enter_context(Promoted())
                modes.enter_context(KeyedDraws(self.seed, step, positions, self.dims))
                loss = self.task.loss(self.model, batch)
                if isinstance(loss, tuple):
                    weights.append(float(loss[1]))
                    loss[0].backward()
                else:
                    (loss * (count / of)).backward()
        for p in parameters:
            if weights and p.grad is not None:
                p.grad /= sum(weights)
        if self.task.clip_norm:
            torch.nn.utils.clip_grad_norm_(parameters, self.task.clip_norm)
        return [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in parameters]


def reference(
    task: Task, legs: Sequence[Leg], *, seed: int, precision: str, whole: bool, dims: Mapping[int, int] = NOTHING
) -> dict[str, torch.Tensor]:  # fmt: skip
    """Parameters by name after the serial recurrences that the classes of the legs' programs name, one after the other.

    `whole` feeds every minibatch at once; otherwise in the programs' own parts. `dims` are the graph's `sample_dims`.
    """
    torch.manual_seed(seed)
    model = task.model().double() if precision == "fp64" else task.model()
    model.train()
    one = Reference(task, model, seed, precision, Feed(task, seed), dims)
    if legs[0].program.semantics == "consensus":
        return _averaged(one, legs[0].program, sum(leg.rounds * leg.program.steps for leg in legs))
    _recurrences(one, legs, whole)
    return dict(model.named_parameters())


def _recurrences(one: Reference, legs: Sequence[Leg], whole: bool) -> None:
    """w(t+1) = w(t) - rule(g(t - lag)); nothing for t < lag; a leg's last `lag` gradients are applied at its end."""
    parameters = [p for p in one.model.parameters() if p.requires_grad]
    optimizer = one.task.optimizer(parameters)
    schedule = one.task.schedule(optimizer) if one.task.schedule else None
    step = 0
    for leg in legs:
        program, steps, lag = leg.program, leg.rounds * leg.program.steps, leg.program.slots - 1
        parts = [(0, program.batch)] if whole else [(s.start, s.count) for s in shares_of(program)]
        flying: deque[list[torch.Tensor]] = deque()
        for t in range(steps + lag):
            if t < steps:
                flying.append(one.gradients(step, parts, program.batch))
                step += 1
            if t >= lag:
                for p, gradient in zip(parameters, flying.popleft(), strict=True):
                    p.grad = gradient
                optimizer.step()
                if schedule is not None:
                    schedule.step()


def _averaged(one: Reference, program: Program, steps: int) -> dict[str, torch.Tensor]:
    shares = shares_of(program)
    workers = sorted({share.rank for share in shares})
    copies = {w: deepcopy(one.model) for w in workers}
    runs = {
        w: _stepper(
            replace(one, model=copies[w], feed=Feed(one.task, one.seed)), [s for s in shares if s.rank == w], program
        )
        for w in workers
    }
    for step in range(steps):
        for w in workers:
            next(runs[w])
        if (step + 1) % program.steps == 0 or step + 1 == steps:
            with torch.no_grad():
                for together in zip(*(copies[w].parameters() for w in workers), strict=True):
                    mean = sum(p.detach() for p in together) / len(workers)
                    for p in together:
                        p.copy_(mean)
    return dict(copies[workers[0]].named_parameters())


def _stepper(one: Reference, shares: Sequence[Share], program: Program) -> Iterator[None]:
    """One worker's own training: each `next` is a step on its part, weighed as the worker weighs it."""
    parameters = [p for p in one.model.parameters() if p.requires_grad]
    optimizer = one.task.optimizer(parameters)
    schedule = one.task.schedule(optimizer) if one.task.schedule else None
    step = 0
    while True:
        mine = [(s.start, s.count) for s in shares if s.step == step % program.steps]
        for p, gradient in zip(parameters, one.gradients(step, mine, sum(count for _, count in mine)), strict=True):
            p.grad = gradient
        optimizer.step()
        if schedule is not None:
            schedule.step()
        step += 1
        yield
