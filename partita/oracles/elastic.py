"""Workers that train separately and exchange with a centre at their own pace, in plain PyTorch.

Asynchronous elastic averaging (DP-19), and consensus ADMM (DP-20).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from partita.lowering.elastic import momentum_of
from partita.oracles.reference import Reference, Replica, replica
from partita.plan.plan import Plan
from partita.plan.sync import Payload
from partita.program.layout import Bucket
from partita.runtime.state import rows

Parts = list[tuple[int, int]]


@dataclass
class ElasticWorkers:
    """Each worker's replica and velocity, at first copies of `first`, and the last turn at which it met the centre."""

    first: Replica
    rate: float
    momentum: float
    replicas: dict[int, tuple[Replica, list[torch.Tensor]]] = field(default_factory=dict)
    turns: dict[int, int] = field(default_factory=dict)

    def contribution(
        self, worker: int, turn: int, steps: Iterable[tuple[int, Parts]], centre: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        """A worker takes a period of its own `steps`, each with the parts (start, count) of its minibatch. Returns room
        for what it contributes to the centre, into which `pull` writes bucket by bucket: a server may have the pull of
        one before the answer to another has come.

        After turns that it missed, being away, it starts again from the `centre` that it has read.
        """
        if turn != self.turns.get(worker, -1) + 1 or worker not in self.replicas:
            made = self.first.copy()
            self.replicas[worker] = made, [torch.zeros_like(p) for p in made.parameters]
            with torch.no_grad():
                for p, c in zip(made.parameters, centre if turn else made.parameters, strict=True):
                    p.copy_(c)
        one, velocity = self.replicas[worker]
        for step, parts in steps:
            self._step(one, velocity, step, parts)
        self.turns[worker] = turn
        return [torch.zeros_like(p) for p in one.parameters]

    def pull(
        self, worker: int, bucket: Bucket, centre: Sequence[torch.Tensor], into: Mapping[str, torch.Tensor]
    ) -> None:
        """d = rate (x - centre), then x -= d, of a bucket's pieces; d goes `into` the parameters of their names."""
        own = self.replicas[worker][0].own.trained
        for piece, c in zip(bucket.pieces, centre, strict=True):
            x = rows(own[piece.parameter].detach(), piece)
            d = self.rate * (x - c)
            rows(into[piece.parameter], piece).copy_(d)
            x.sub_(d)

    def _step(self, one: Replica, velocity: list[torch.Tensor], step: int, parts: Parts) -> None:
        """v = momentum v - rule(x + momentum v), x += v (Nesterov's)."""
        with torch.no_grad():
            for p, v in zip(one.parameters, velocity, strict=True):
                p.add_(v, alpha=self.momentum)
        ahead = [p.detach().clone() for p in one.parameters]
        one.apply(one.own.gradients(step, parts, sum(count for _, count in parts)))
        for p, v, was in zip(one.parameters, velocity, ahead, strict=True):
            v.mul_(self.momentum).add_(p.detach() - was)


@dataclass
class AdmmWorkers:
    """Workers tied to a centre z by multipliers y: x descends f + y (x - z) + penalty / 2 (x - z)^2 for a period, and
    contributes the change of x + y / penalty. A worker has its replica, its y and its last contribution."""

    first: Replica
    penalty: float
    replicas: dict[int, tuple[Replica, list[torch.Tensor], list[torch.Tensor]]] = field(default_factory=dict)
    turns: dict[int, int] = field(default_factory=dict)

    def contribution(
        self, worker: int, turn: int, steps: Iterable[tuple[int, Parts]], centre: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        """A period from the centre z that the worker has read, after y += penalty (x - z)."""
        if worker not in self.replicas:
            made = self.first.copy()
            said = [p.detach().clone() for p in made.parameters]
            self.replicas[worker] = made, [torch.zeros_like(p) for p in made.parameters], said
        one, prices, said = self.replicas[worker]
        for y, p, z in zip(prices, one.parameters, centre, strict=True):
            y.add_(p.detach() - z, alpha=self.penalty)
        for step, parts in steps:
            gradients = one.own.gradients(step, parts, sum(count for _, count in parts))
            for g, y, p, z in zip(gradients, prices, one.parameters, centre, strict=True):
                g += y + self.penalty * (p.detach() - z)
            one.apply(gradients)
        self.turns[worker] = turn
        says = [p.detach() + y / self.penalty for p, y in zip(one.parameters, prices, strict=True)]
        self.replicas[worker] = one, prices, says
        return [now - before for now, before in zip(says, said, strict=True)]


def elastic_workers(one: Reference, plan: Plan) -> ElasticWorkers | AdmmWorkers | None:
    """The workers of a plan, before their first step, or None if it ties workers to no centre. `one` is not changed."""
    sync = plan.sync[0]
    if sync.payload is Payload.DUAL:
        return AdmmWorkers(replica(one, plan.update).copy(), sync.outer.penalty)
    if sync.payload is Payload.ELASTIC:
        return ElasticWorkers(replica(one, plan.update).copy(), sync.outer.rate, momentum_of(plan.update))
    return None
