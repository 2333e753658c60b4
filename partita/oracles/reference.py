"""What a plan must equal: the same training in plain PyTorch, in one process, without any part of the runtime.

    exact       w <- w - rule(mean gradient of the minibatch)
    delayed     the same with the gradient of `lag` steps ago (Pipe-SGD, DP-30); those in flight are applied at the end
    consensus   replicas trained one by one, which agree as `replicas` says

If a model changes buffers (batch statistics), a minibatch is fed in the parts into which the plan divides it, and each
worker has buffers of its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

import torch
from torch.utils._pytree import tree_map

from partita.oracles.lossy import Lossy
from partita.oracles.turns import Parts, turns_of
from partita.plan.plan import Update
from partita.program.instruction import Load
from partita.program.program import Program
from partita.runtime.feed import Feed, place
from partita.runtime.leg import Leg
from partita.runtime.neutral import left_out, neutral, reached
from partita.runtime.rules import load_schedule, optimizer_of, schedule_of, schedule_state, step_at_rate
from partita.task import Task
from partita.tracing.copies import copied
from partita.tracing.draws import NOTHING, KeyedDraws
from partita.tracing.hidden_inputs import seen_through
from partita.tracing.prepare import DTYPES, cast, hooked, untrained
from partita.tracing.promote import Promoted


@dataclass(frozen=True, slots=True)
class Share:
    """Part of minibatch `step` of a round: `count` samples from position `start`, seen by worker `rank`."""

    rank: int
    step: int
    start: int
    count: int


def fed(share: Share, whole: bool) -> list[tuple[int, int]]:
    """The (start, count) in which a share is fed: at once, or in two halves."""
    half = 0 if whole else share.count // 2
    parts = [(share.start, half), (share.start + half, share.count - half)]
    return [part for part in parts if part[1]]


def shares_of(program: Program) -> tuple[Share, ...]:
    """Every part of a round's minibatches, by worker; of one that several stages load, the first one's."""
    loads = [(role, act) for role in program.roles for act in role.acts(Load)]
    found: dict[tuple[int, int, int], Share] = {}
    for role, act in loads:
        for rank in role.ranks:
            start = role.mine(act.start, rank)
            found.setdefault((act.step, start, act.count), Share(rank, act.step, start, act.count))
    return tuple(found.values())


@dataclass
class Reference:
    """Plain training of one copy of the model. Buffers named in `once` move once a minibatch, however it is fed."""

    task: Task
    model: Any
    seed: int
    precision: str
    feed: Feed
    dims: Mapping[int, int]
    weighted: bool = False
    modes: Callable[[], Sequence[Any]] = tuple
    rank: int = -1
    buffers: dict[int, dict[str, torch.Tensor]] = field(default_factory=dict)
    once: tuple[str, ...] = ()

    @property
    def trained(self) -> dict[str, torch.Tensor]:
        """The parameters that are trained, by name, in the order of the model."""
        return {name: p for name, p in self.model.named_parameters() if p.requires_grad}

    def kept(self) -> dict[str, torch.Tensor]:
        """Copies of what a step may change besides what is trained."""
        return {name: tensor.detach().clone() for name, tensor in untrained(self.model).items()}

    def turn(self, rank: int) -> None:
        """From here on the model's buffers are those of a worker, as it left them; the first ones where it is new."""
        self.buffers[self.rank] = self.kept()
        self.load(self.buffers.get(rank, self.buffers[-1]))
        self.rank = rank

    def weights(self) -> dict[str, torch.Tensor]:
        """Parameters by name, with what is not trained as the first worker left it."""
        if self.rank >= 0:
            self.turn(min({self.rank, *self.buffers} - {-1}))
        return dict(self.model.named_parameters())

    def load(self, buffers: Mapping[str, torch.Tensor]) -> None:
        """Write values into the model's buffers, and its frozen parameters."""
        with torch.no_grad():
            for name, kept in buffers.items():
                path, _, leaf = name.rpartition(".")
                module = self.model.get_submodule(path)
                held = module._buffers if leaf in module._buffers else module._parameters
                if 0 in held[leaf].stride():  # forward left one that is expanded, into which nothing can be written
                    held[leaf] = kept.clone(memory_format=torch.contiguous_format)
                else:
                    held[leaf].copy_(kept)

    def gradients(
        self, step: int, shares: Sequence[tuple[int, int]], of: int, ranks: Sequence[int] = (), part: float = 1.0
    ) -> list[torch.Tensor]:
        """Sum over shares (start, count) of count / of x gradient of the mean loss over it, clipped where asked. Of a
        loss that comes with a weight: the gradient of the sum over all shares, over their weight. `ranks` are the
        workers of the shares, where each has buffers of its own, and the shares are a `part` of the minibatch whose
        own gradient is bounded."""
        found, weight = self.sums(step, shares, of, ranks)
        weight = weight or 1.0  # samples that do not count have no gradient
        return self.clipped([part * gradient / weight for gradient in found] if self.weighted else found, part)

    def clipped(self, gradients: list[torch.Tensor], part: float = 1.0) -> list[torch.Tensor]:
        """The gradients, their norm bounded where the task asks for it, by that `part` of its bound."""
        if self.task.clip_norm:
            parameters = [torch.nn.Parameter(torch.zeros_like(gradient)) for gradient in gradients]
            for p, gradient in zip(parameters, gradients, strict=True):
                p.grad = gradient
            torch.nn.utils.clip_grad_norm_(parameters, part * self.task.clip_norm)
        return gradients

    def sums(
        self, step: int, shares: Sequence[tuple[int, int]], of: int, ranks: Sequence[int] = ()
    ) -> tuple[list[torch.Tensor], float]:
        """The gradients before they are clipped, of a loss with a weight before they are divided by that; and it. They
        are `neutral` for weights that no sample reached, which `apply` leaves out, as plain PyTorch does."""
        parameters = list(self.trained.values())
        for p in parameters:
            p.grad = None
        weights, first = [], dict[int, dict[str, torch.Tensor]]()
        for i, (start, count) in enumerate(shares):
            if ranks:
                self.turn(ranks[i])
            now = {name: tensor for name, tensor in self.kept().items() if name in self.once} if self.once else {}
            self.load(first.setdefault(self.rank, now))
            weights.append(self.backward(step, start, count, count / of))
        return [neutral(p) if p.grad is None else reached(p.grad.clone()) for p in parameters], sum(weights)

    def backward(self, step: int, start: int, count: int, share: float, scale: float = 1.0) -> float:
        """Add to every `grad` that of `share` times the mean loss of some samples, or of the sum that comes with a
        weight, which is returned (else 0); of the loss times `scale`."""
        wider = torch.float64 if self.precision == "fp64" else torch.float32
        positions = self.feed.positions(step, start, count)
        batch = self.feed.batch(positions)
        batch = tree_map(lambda leaf: place(leaf, "cpu", DTYPES[self.precision]), batch)
        with ExitStack() as modes:
            for mode in self.modes() or ([Promoted()] if self.precision == "fp64" else []):
                modes.enter_context(mode)
            modes.enter_context(seen_through())
            modes.enter_context(KeyedDraws(self.seed, step, positions, self.dims))
            loss = self.task.loss(self.model, batch)
            self.weighted = isinstance(loss, tuple)
            value, factor = (loss[0], scale) if isinstance(loss, tuple) else (loss, share * scale)
            wide = value if value.dtype in (torch.float32, torch.float64) else value.to(wider)
            (wide * factor).backward()
        return float(loss[1]) if isinstance(loss, tuple) else 0.0


def fresh(
    task: Task, *, seed: int, precision: str, dims: Mapping[int, int] = NOTHING, nudged: bool = False
) -> Reference:
    """The task's model built under a seed, ready to be trained. `dims` are the graph's `sample_dims`; `nudged` weights
    are a rounding or two away from their own."""
    torch.manual_seed(seed)
    model = cast(task.model(), precision)
    model.train()
    for p in model.parameters() if nudged else ():
        if p.requires_grad:
            p.data.mul_(1 + 2 * torch.finfo(p.dtype).eps)
    return Reference(task, model, seed, precision, Feed(task, seed), dims)


@dataclass
class Replica:
    """A plain training with its optimizer; workers that train separately have one each."""

    own: Reference
    update: Update
    optimizer: Any
    schedule: Any

    @property
    def parameters(self) -> list[torch.Tensor]:
        """The parameters that are trained."""
        return list(self.own.trained.values())

    def apply(self, gradients: Sequence[torch.Tensor]) -> None:
        """One step of the rule."""
        for p, gradient in zip(self.parameters, left_out(gradients), strict=True):
            p.grad = gradient
        step_at_rate(self.optimizer, self.update)
        if self.schedule is not None:
            self.schedule.step()

    def copy(self, worker: int = -1) -> Replica:
        """Another replica in the same state, with the buffers of `worker` if it is given."""
        if worker >= 0:
            self.own.turn(worker)
        feed = Feed(self.own.task, self.own.seed)
        own = replace(self.own, model=copied(self.own.model), feed=feed, rank=-1, buffers={})
        for p, before in zip(own.model.parameters(), self.own.model.parameters(), strict=True):
            hooked(p, before)  # which copies lack
        made = replica(own, self.update)
        made.optimizer.load_state_dict(deepcopy(self.optimizer.state_dict()))
        if self.schedule is not None:
            load_schedule(made.schedule, deepcopy(schedule_state(self.schedule)))
        return made


def replica(own: Reference, update: Update) -> Replica:
    """A replica before its first step."""
    optimizer = optimizer_of(own.task, update, list(own.trained.values()))
    return Replica(own, update, optimizer, schedule_of(own.task, optimizer))


Recurrence = Callable[[dict[int, Replica], Leg], None]


def reference(
    task: Task, legs: Sequence[Leg], *, seed: int, precision: str, whole: bool, replica_training: Recurrence,
    **more: Any,
) -> dict[int, dict[str, torch.Tensor]]:  # fmt: skip
    """Parameters by name, of each worker that has its own, after the serial recurrences that the classes of the legs'
    programs name, one after the other; `replica_training` carries out those of replicas that differ.

    `whole` feeds every minibatch at once; otherwise in the programs' own parts. `more` is as in `fresh`.
    """
    replicas = {0: replica(fresh(task, seed=seed, precision=precision, **more), legs[0].program.update)}
    codecs = Lossy(seed)
    for leg in legs:
        for one in replicas.values():
            one.own.once = leg.program.deferred
        if leg.program.semantics not in ("exact", "delayed", "lossy"):
            workers = sorted({share.rank for share in shares_of(leg.program)}) or list(replicas)
            if len(replicas) < len(workers):
                replicas = {w: replicas[0].copy(w) for w in workers}
            replica_training(replicas, leg)
        else:
            replicas = {0: _alike(replicas)}
            _recurrence(replicas[0], leg, whole, codecs)
    return {w: one.own.weights() for w, one in replicas.items()}


def _alike(replicas: Mapping[int, Replica]) -> Replica:
    """The one replica of a phase in which all step alike, from those of a phase before, whose weights are the same; the
    buffers of each stay its own."""
    first = replicas[0]
    if len(replicas) > 1:
        own = {w: one.own.kept() for w, one in replicas.items()}
        first.own.rank = 0
        first.own.buffers.update(own | {-1: own[0]})
    return first


def _recurrence(one: Replica, leg: Leg, whole: bool, codecs: Lossy) -> None:
    """w(t+1) = w(t) - rule(g(t - lag)); nothing for t < lag; a leg's last `lag` gradients are applied at its end."""
    program, steps, lag = leg.program, leg.rounds * leg.program.steps, leg.program.slots - 1
    shares = () if whole else shares_of(program)
    parts, ranks = [(s.start, s.count) for s in shares] or [(0, program.batch)], [s.rank for s in shares]
    in_flight: deque[list[torch.Tensor]] = deque()
    for t in range(steps + lag):
        if t < steps and program.semantics == "lossy":
            in_flight.append(_lossily(one.own, program, leg.step + t, codecs))
        elif t < steps:
            in_flight.append(one.own.gradients(leg.step + t, parts, program.batch, ranks))
        if t >= lag:
            one.apply(in_flight.popleft())


def _named_sums(
    own: Reference, names: list[str], step: int, batch: int, rank: int, parts: Parts
) -> tuple[dict[str, torch.Tensor], float]:
    """A worker's part of a step's gradients, by parameter, and its weight."""
    found, part = own.sums(step, parts, batch, [rank] * len(parts))
    return dict(zip(names, found, strict=True)), part


def _lossily(own: Reference, program: Program, step: int, codecs: Lossy) -> list[torch.Tensor]:
    """What the program's codecs leave of the sum of all workers' gradients, clipped where asked."""
    names = list(own.trained)
    gradient = cache(partial(_named_sums, own, names, step, program.batch))
    shares, turns = shares_of(program), turns_of(program)
    workers = sorted({share.rank for share in shares})
    each = {w: gradient(w, tuple(sorted((s.start, s.count) for s in shares if s.rank == w))) for w in workers}
    weight = sum(part for _, part in each.values()) or 1.0 if own.weighted else 1.0
    contributions = {worker: named for worker, (named, _) in each.items()}
    several = program.stages or any(len(mine) > 1 for by_rank in turns.values() for mine in by_rank.values())
    coded = codecs.coded(program) if several else ()
    apart = {
        bucket: {rank: tuple(gradient(rank, parts)[0] for parts in mine) for rank, mine in turns[bucket].items()}
        for bucket in coded
    }
    return own.clipped(list(codecs.summed(program, step, contributions, weight, apart).values()))
