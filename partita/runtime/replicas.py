"""What plans whose replicas differ must equal: every replica trained by itself, in plain PyTorch, and what they do to
each other between steps.

    averages   every period: the mean of all weights (DP-26), or an outer step with the mean change (EX-01)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from partita.lowering.averages import fragments_of, taken_at
from partita.plan.sync import Sync, What
from partita.program.program import Bucket
from partita.runtime.leg import Leg
from partita.runtime.reference import Replica, shares_of
from partita.runtime.state import rows

Rows = list[torch.Tensor]


@dataclass
class Apart:
    """Replicas over the legs of a run; keeps what an agreement keeps, as `kept[name, bucket]`: tensors like its
    pieces."""

    kept: dict[tuple[str, str], Rows] = field(default_factory=dict)

    def __call__(self, replicas: dict[int, Replica], leg: Leg) -> None:
        """Carry out a leg: each worker's own steps, and the agreement between them."""
        program, sync = leg.program, leg.plan.sync[0]
        with torch.no_grad():
            if not program.steps:
                _mean(replicas, program.trained)
                return
        shares = shares_of(program)
        after = _averages(self, replicas, leg, sync)
        for t in range(leg.rounds * program.steps):
            for w, one in replicas.items():
                mine = [(s.start, s.count) for s in shares if s.rank == w and s.step == t % program.steps]
                one.apply(one.own.gradients(leg.step + t, mine, sum(count for _, count in mine)))
            with torch.no_grad():
                after(t)
        with torch.no_grad():
            after(-1)

    def of(self, name: str, bucket: Bucket, like: Rows) -> Rows:
        """What is kept of a bucket; begins as `like`."""
        return self.kept.setdefault((name, bucket.name), [tensor.clone() for tensor in like])


def rows_of(one: Replica, bucket: Bucket) -> Rows:
    """A bucket's pieces of a replica's own parameters."""
    named = dict(one.own.model.named_parameters())
    return [rows(named[piece.parameter].detach(), piece) for piece in bucket.pieces]


def means(replicas: dict[int, Replica], bucket: Bucket) -> Rows:
    """The mean over replicas of a bucket's weights."""
    columns = zip(*(rows_of(one, bucket) for one in replicas.values()), strict=True)
    return [torch.stack(column).mean(0) for column in columns]


def _mean(replicas: dict[int, Replica], buckets: Sequence[Bucket]) -> None:
    for bucket in buckets:
        together = means(replicas, bucket)
        for one in replicas.values():
            for weight, mean in zip(rows_of(one, bucket), together, strict=True):
                weight.copy_(mean)


def _averages(apart: Apart, replicas: dict[int, Replica], leg: Leg, sync: Sync) -> Callable[[int], None]:
    """What follows step `t` of a leg (-1: its end): fragments' changes taken, and those of `lag` steps ago merged."""
    buckets, often, lag = leg.program.trained, sync.often, sync.tight.lag
    agrees = often.period and (leg.whole or (often.fragments == 1 and not lag))
    places = {f: taken_at(often, f) for f in range(often.fragments)} if leg.whole else {0: leg.program.steps - 1}
    fragments = fragments_of(buckets, often.fragments)
    flying: list[tuple[int, Bucket, Rows]] = []
    if sync.what is What.DELTA:
        for bucket in buckets:
            apart.of("anchor", bucket, rows_of(replicas[0], bucket))

    def after(t: int) -> None:
        if not agrees:
            return
        for f, place in places.items():
            if t >= 0 and t % leg.program.steps == place:
                flying.extend((t + lag, buckets[i], means(replicas, buckets[i])) for i in fragments[f])
        for at, bucket, mean in flying:
            if t < 0 or at <= t:
                _merge(apart, replicas, bucket, mean, sync)
        flying[:] = [one for one in flying if 0 <= t < one[0]]

    return after


def _merge(apart: Apart, replicas: dict[int, Replica], bucket: Bucket, mean: Rows, sync: Sync) -> None:
    """w += rate v, v = momentum v + (mean - w), w being the weights agreed on last; Nesterov's looks ahead once more
    (torch.optim.SGD with the change for a gradient)."""
    if sync.what is What.DELTA:
        anchor = apart.of("anchor", bucket, mean)
        velocity = apart.of("velocity", bucket, [torch.zeros_like(tensor) for tensor in mean])
        for w, v, m in zip(anchor, velocity, mean, strict=True):
            change = m - w
            v.mul_(sync.outer.momentum).add_(change)
            w.add_(change + sync.outer.momentum * v if sync.outer.nesterov else v, alpha=sync.outer.rate)
        mean = anchor
    for one in replicas.values():
        for weight, new in zip(rows_of(one, bucket), mean, strict=True):
            weight.mul_(sync.outer.keep).add_(new, alpha=1 - sync.outer.keep)
