"""What plans whose replicas differ must equal: every replica trained by itself, in plain PyTorch, and what they do to
each other between steps.

    averages   every period: the mean of all weights (DP-26), or an outer step with the mean change (EX-01)
    bonds      a centre (DP-19, DP-20), neighbours (DP-21) and drawn partners (DP-23)
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from partita.cluster.cluster import Cluster
from partita.lowering.averages import fragments_of, taken_at
from partita.oracles.coupling import Centre, Coupling, Mixing
from partita.oracles.lossy import Lossy
from partita.oracles.reference import Replica, shares_of
from partita.plan.plan import Plan
from partita.plan.sync import Gossip, Neighbours, Payload
from partita.plan.text import write_plan
from partita.program.layout import Bucket
from partita.runtime.leg import Leg
from partita.runtime.state import rows

Rows = list[torch.Tensor]


@dataclass
class ReplicaTraining:
    """Replicas over the legs of a run, and the Coupling of each phase's plan, which keeps what that plan keeps."""

    cluster: Cluster
    couplings: dict[str, Coupling] = field(default_factory=dict)

    def __call__(self, replicas: dict[int, Replica], leg: Leg) -> None:
        """Carry out a leg: each worker's own steps, and the agreement between them."""
        program = leg.program
        coupling = self.couplings.setdefault(write_plan(leg.plan), self._coupling(replicas, leg))
        coupling.begin(leg)
        shares = shares_of(program)
        for t in range(leg.rounds * program.steps):
            with torch.no_grad():
                coupling.before(replicas, t)
            found = {}
            for w, one in replicas.items():
                mine = [(s.start, s.count) for s in shares if s.rank == w and s.step == t % program.steps]
                found[w] = one.own.gradients(leg.step + t, mine, sum(count for _, count in mine))
            with torch.no_grad():
                coupling.between(replicas, t, found)
            for w, one in replicas.items():
                one.apply(found[w])
            with torch.no_grad():
                coupling.after(replicas, t)
        with torch.no_grad():
            (coupling.end if program.steps else coupling.settle)(replicas)

    def _coupling(self, replicas: dict[int, Replica], leg: Leg) -> Coupling:
        sync = leg.plan.sync[0]
        if isinstance(sync.through, Neighbours | Gossip):
            return Mixing(leg.plan, replicas, self.cluster)
        if sync.payload in (Payload.ELASTIC, Payload.DUAL):
            return Centre(leg.plan, replicas)
        return Averages(leg.plan, replicas)


class Averages(Coupling):
    """Fragments' means taken, and those of `lag` steps ago merged; of changes that are encoded, what codecs leave."""

    def __init__(self, plan: Plan, replicas: dict[int, Replica]) -> None:
        super().__init__(plan, replicas)
        self.codecs = Lossy(self.first.own.seed)

    def begin(self, leg: Leg) -> None:
        """See Coupling."""
        self.leg = leg
        often, self.buckets, self.steps = self.sync.frequency, leg.program.trained, max(leg.program.steps, 1)
        self.flying: list[tuple[int, Bucket, Rows]] = []
        agrees = often.period and (leg.whole or (often.fragments == 1 and not self.sync.consistency.lag))
        self.places = {f: taken_at(often, f) for f in range(often.fragments)} if leg.whole else {0: self.steps - 1}
        self.fragments = fragments_of(self.buckets, often.fragments)
        if not agrees:
            self.places = {}
        if not self.kept:
            self.kept |= {("anchor", b.name): _copy(pieces_of(self.first, b)) for b in self.buckets}
            self.kept |= {("velocity", b.name): _copy(pieces_of(self.first, b), 0.0) for b in self.buckets}

    def after(self, replicas: dict[int, Replica], t: int) -> None:
        """See Coupling."""
        self._merge_due(replicas, t)  # a mean that is a whole period late enters ahead of the next one
        for f, place in self.places.items():
            if t % self.steps == place:
                taken = [self.buckets[i] for i in self.fragments[f]]
                self.flying += [(t + self.sync.consistency.lag, one, self._mean(replicas, one, t)) for one in taken]
        self._merge_due(replicas, t)

    def _merge_due(self, replicas: dict[int, Replica], t: int) -> None:
        due = [one for one in self.flying if one[0] <= t]
        self.flying = [one for one in self.flying if one[0] > t]
        for _, bucket, mean in due:
            self._merge(replicas, bucket, mean)

    def _mean(self, replicas: dict[int, Replica], bucket: Bucket, t: int) -> Rows:
        """The mean of a bucket's weights after step `t`, as the sum of their changes tells it."""
        if not self.sync.wire.codecs:
            return means(replicas, bucket)
        anchor, step = self.kept["anchor", bucket.name], self.leg.step + t // self.steps * self.steps
        changes = {
            w: [a - now for a, now in zip(anchor, pieces_of(one, bucket), strict=True)] for w, one in replicas.items()
        }
        total = self.codecs.agreed(self.leg.program, bucket, changes, step)
        return [a - change / len(replicas) for a, change in zip(anchor, total, strict=True)]

    def end(self, replicas: dict[int, Replica]) -> None:
        """See Coupling."""
        for _, bucket, mean in self.flying:
            self._merge(replicas, bucket, mean)

    def _merge(self, replicas: dict[int, Replica], bucket: Bucket, mean: Rows) -> None:
        """w += rate v, v = momentum v + (mean - w), w being the weights agreed on last; Nesterov's looks ahead once
        more (torch.optim.SGD with the change for a gradient)."""
        outer = self.sync.outer
        if self.sync.payload is Payload.DELTA:
            anchor, velocity = self.kept["anchor", bucket.name], self.kept["velocity", bucket.name]
            for w, v, m in zip(anchor, velocity, mean, strict=True):
                change = m - w
                v.mul_(outer.momentum).add_(change)
                w.add_(change + outer.momentum * v if outer.nesterov else v, alpha=outer.rate)
            mean = anchor
        for one in replicas.values():
            for weight, new in zip(pieces_of(one, bucket), mean, strict=True):
                weight.mul_(outer.keep).add_(new, alpha=1 - outer.keep)


def _copy(tensors: Rows, factor: float = 1.0) -> Rows:
    return [tensor.clone() * factor for tensor in tensors]


def pieces_of(one: Replica, bucket: Bucket) -> Rows:
    """A bucket's pieces of a replica's own parameters."""
    named = dict(one.own.model.named_parameters())
    return [rows(named[piece.parameter].detach(), piece) for piece in bucket.pieces]


def means(replicas: dict[int, Replica], bucket: Bucket) -> Rows:
    """The mean over replicas of a bucket's weights."""
    columns = zip(*(pieces_of(one, bucket) for one in replicas.values()), strict=True)
    return [torch.stack(column).mean(0) for column in columns]
