"""The agreements between replicas that train separately, in plain PyTorch: with a centre, with neighbours, or with
drawn partners."""

from __future__ import annotations

from typing import Any

import torch

from partita.cluster.cluster import Cluster
from partita.lowering.elastic import momentum_of
from partita.lowering.mixing_matrices import mixing_matrices_of
from partita.oracles.reference import Replica
from partita.plan.plan import Plan
from partita.plan.sync import Gossip, Neighbours, Payload
from partita.runtime.leg import Leg

Replicas = dict[int, Replica]
Tensors = list[torch.Tensor]


class Coupling:
    """What replicas do to each other around step `t` of a leg. Its methods are called without gradient tracking."""

    def __init__(self, plan: Plan, replicas: Replicas) -> None:
        self.plan, self.sync, self.first = plan, plan.sync[0], replicas[0]
        self.kept: dict[Any, Tensors] = {}

    def begin(self, leg: Leg) -> None:
        """Called at the beginning of a leg."""
        self.steps = max(leg.program.steps, 1)

    def before(self, replicas: Replicas, t: int) -> None:
        """Called before gradients are computed."""

    def between(self, replicas: Replicas, t: int, gradients: dict[int, Tensors]) -> None:
        """Called after gradients, which it may change, and before updates."""

    def after(self, replicas: Replicas, t: int) -> None:
        """Called after updates."""

    def end(self, replicas: Replicas) -> None:
        """Called at the end of a leg."""

    def settle(self, replicas: Replicas) -> None:
        """The final agreement of a run: the mean of the weights."""
        for together in zip(*(one.parameters for one in replicas.values()), strict=True):
            mean = torch.stack([p.detach() for p in together]).mean(0)
            for p in together:
                p.copy_(mean)


class Centre(Coupling):
    """EASGD (DP-19): d = rate (x - centre), x -= d, centre += sum of d; with momentum v = momentum v - rule(x +
    momentum v), x += v. ADMM (DP-20): gradients of the augmented Lagrangian, z = mean(x + y / rho), y += rho (x - z)
    (Boyd et al. 2011, section 7.1)."""

    def __init__(self, plan: Plan, replicas: Replicas) -> None:
        super().__init__(plan, replicas)
        self.centre = [p.detach().clone() for p in self.first.parameters]
        self.own = {w: [torch.zeros_like(p) for p in one.parameters] for w, one in replicas.items()}
        self.momentum = momentum_of(plan.update)

    def before(self, replicas: Replicas, t: int) -> None:
        """See Coupling."""
        self.ahead: dict[int, Tensors] = {}
        for w, one in replicas.items():
            for p, v in zip(one.parameters, self.own[w], strict=True):
                if self.momentum:
                    p.add_(v, alpha=self.momentum)
            self.ahead[w] = [p.detach().clone() for p in one.parameters]

    def between(self, replicas: Replicas, t: int, gradients: dict[int, Tensors]) -> None:
        """See Coupling."""
        rho = self.sync.outer.penalty
        if self.sync.payload is Payload.DUAL:
            for w, one in replicas.items():
                for g, y, p, z in zip(gradients[w], self.own[w], one.parameters, self.centre, strict=True):
                    g += y + rho * (p - z)

    def after(self, replicas: Replicas, t: int) -> None:
        """See Coupling."""
        if self.momentum:
            for w, one in replicas.items():
                for v, p, ahead in zip(self.own[w], one.parameters, self.ahead[w], strict=True):
                    v.mul_(self.momentum).add_(p - ahead)
        if (t + 1) % self.steps:
            return
        for k, centre in enumerate(self.centre):
            weights = {w: one.parameters[k] for w, one in replicas.items()}
            if self.sync.payload is Payload.ELASTIC:
                pulls = {w: self.sync.outer.rate * (p - centre) for w, p in weights.items()}
                for w, pull in pulls.items():
                    weights[w].sub_(pull)
                centre.add_(torch.stack(list(pulls.values())).sum(0))
            else:
                rho = self.sync.outer.penalty
                centre.copy_(torch.stack([p + self.own[w][k] / rho for w, p in weights.items()]).mean(0))
                for w, p in weights.items():
                    self.own[w][k].add_(p - centre, alpha=rho)

    def settle(self, replicas: Replicas) -> None:
        """See Coupling."""
        for one in replicas.values():
            for p, centre in zip(one.parameters, self.centre, strict=True):
                p.copy_(centre)


class Mixing(Coupling):
    """x_i = sum over j of W_ij x_j. On a fixed graph of the weights that gradients were taken at (DP-21), with partners
    of what the steps came to (DP-23). What is pushed: sums s and masses m are mixed, weights are s / m."""

    def __init__(self, plan: Plan, replicas: Replicas, cluster: Cluster) -> None:
        super().__init__(plan, replicas)
        assert isinstance(self.sync.through, Neighbours | Gossip)
        self.early = isinstance(self.sync.through, Neighbours)
        self.push = isinstance(self.sync.through, Gossip) and self.sync.through.direction == "push"
        matrices = mixing_matrices_of(self.sync.through, len(replicas), cluster)
        self.matrices = [torch.tensor(matrix, dtype=torch.float64) for matrix in matrices]
        self.sums = {w: [p.detach().clone() for p in one.parameters] for w, one in replicas.items()}
        self.masses = torch.ones(len(replicas), dtype=torch.float64)

    def before(self, replicas: Replicas, t: int) -> None:
        """See Coupling."""
        self.was = {w: [p.detach().clone() for p in one.parameters] for w, one in replicas.items()}

    def between(self, replicas: Replicas, t: int, gradients: dict[int, Tensors]) -> None:
        """See Coupling."""
        number, rest = divmod(t % self.steps, self.sync.frequency.period)
        if self.early and not rest:
            self._mix({w: one.parameters for w, one in replicas.items()}, self.matrices[number])

    def after(self, replicas: Replicas, t: int) -> None:
        """See Coupling."""
        if self.push:
            for w, one in replicas.items():
                for s, p, was in zip(self.sums[w], one.parameters, self.was[w], strict=True):
                    s.add_(p - was)
        number, rest = divmod(t % self.steps + 1, self.sync.frequency.period)
        if self.early or rest:
            return
        if not self.push:
            self._mix({w: one.parameters for w, one in replicas.items()}, self.matrices[number - 1])
            return
        self._mix(self.sums, self.matrices[number - 1])
        self.masses = self.matrices[number - 1] @ self.masses
        for w, one in replicas.items():
            for p, s in zip(one.parameters, self.sums[w], strict=True):
                p.copy_(s / float(self.masses[w]))

    def settle(self, replicas: Replicas) -> None:
        """See Coupling."""
        if self.push:
            for w, one in replicas.items():
                for p, s in zip(one.parameters, self.sums[w], strict=True):
                    p.copy_(s)
        super().settle(replicas)

    @staticmethod
    def _mix(held: dict[int, Tensors], matrix: torch.Tensor) -> None:
        for together in zip(*held.values(), strict=True):
            stacked = torch.stack([p.detach() for p in together])
            mixed = torch.tensordot(matrix.to(stacked.dtype), stacked, 1)
            for p, new in zip(together, mixed, strict=True):
                p.copy_(new)
