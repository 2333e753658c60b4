"""The serial replay of workers that average in pairs, in plain PyTorch, from the ledgers of the passive ranks
(DP-22).

    ledger of rank 1, a bucket    (own, turn 0, read 0)  (rank 2, turn 0)  (rank 0, turn 0)  (own, turn 1, read 2) ...

An active rank has no ledger. It copies its weights, takes its steps on the copy, asks, takes the mean, and adds the
change that its steps made, in this order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from partita.errors import ProgramError
from partita.lowering.pairs import averagings_of
from partita.oracles.reference import Reference, Replica, Share, fed, replica, shares_of
from partita.plan.sync import Gossip
from partita.program.ledger import Merge
from partita.runtime.leg import Leg
from partita.runtime.state import rows

Parts = list[torch.Tensor]
Minibatches = list[tuple[int, list[Share]]]


class PairWorker:
    """A rank: its buckets now and in all versions so far, its turns, and the change of each turn."""

    def __init__(self, one: Replica, buckets: dict[str, Parts], turns: list[Minibatches], whole: bool) -> None:
        self.one, self.turns, self.whole = one, turns, whole
        self.now = {name: [part.clone() for part in parts] for name, parts in buckets.items()}
        self.versions = {name: [self._copy(name)] for name in buckets}
        self.made: dict[int, dict[str, torch.Tensor]] = {}

    def _copy(self, bucket: str) -> Parts:
        return [part.clone() for part in self.now[bucket]]

    def becomes(self, bucket: str, parts: Parts) -> None:
        """Store a new version of a bucket."""
        self.now[bucket] = parts
        self.versions[bucket].append(self._copy(bucket))

    def change(self, turn: int, read: dict[str, int], pieces: dict[str, list[torch.Tensor]]) -> dict[str, torch.Tensor]:
        """Parameter -> the change that the steps of a turn make, from the versions that it read. `pieces` are views,
        by bucket, of the replica's parameters."""
        if turn not in self.made:
            for bucket, version in read.items():
                for view, part in zip(pieces[bucket], self.versions[bucket][version], strict=True):
                    view.copy_(part)
            before = [p.detach().clone() for p in self.one.parameters]
            for step, shares in self.turns[turn]:
                parts = [part for share in shares for part in fed(share, self.whole)]
                with torch.enable_grad():
                    found = self.one.own.gradients(step, parts, sum(count for _, count in parts))
                self.one.apply(found)
            after = self.one.own.trained
            self.made[turn] = {n: p.detach() - was for (n, p), was in zip(after.items(), before, strict=True)}
        return self.made[turn]


def together(one: Reference, legs: Sequence[Leg], ledger: Sequence[Merge], whole: bool) -> dict[str, torch.Tensor]:
    """Parameters by name after a ledger has been replayed: the mean over ranks. Raises ProgramError for a ledger
    that no run can have."""
    with torch.no_grad():
        return PairwiseReplay(one, legs, ledger, whole).go()


class PairwiseReplay:
    """The state of one replay."""

    def __init__(self, one: Reference, legs: Sequence[Leg], ledger: Sequence[Merge], whole: bool) -> None:
        program, through = legs[0].program, legs[0].plan.sync[0].through
        assert isinstance(through, Gossip)
        self.one, self.buckets = one, program.trained
        self.partners: dict[int, list[int]] = {}
        first, turns = replica(one, program.update), dict[int, list[Minibatches]]()
        for leg in (leg for leg in legs if leg.program.steps):
            period = leg.plan.sync[0].frequency.period
            for averaging in averagings_of(through, leg.plan.mesh.size) * leg.rounds:
                if averaging.number * period < leg.program.steps:
                    self.partners.setdefault(averaging.active, []).append(averaging.passive)
            for rank in range(leg.plan.mesh.size):
                turns.setdefault(rank, []).extend(_turns(leg, rank, period))
        begun = self._views(first)
        self.workers = {r: PairWorker(first.copy(), begun, mine, whole) for r, mine in turns.items()}
        self.left = {(r, b.name): [m for m in ledger if (m.at, m.bucket) == (r, b.name)]
                     for r in turns if r % 2 for b in self.buckets}  # fmt: skip
        self.read = {(m.at, m.turn, m.bucket): m.read for m in ledger if m.at == m.worker}
        self.met = {(r, b.name): 0 for r in self.partners for b in self.buckets}
        self.joined = dict(self.met)

    def _views(self, one: Replica) -> dict[str, Parts]:
        named = dict(one.own.model.named_parameters())
        return {b.name: [rows(named[q.parameter].detach(), q) for q in b.pieces] for b in self.buckets}

    def go(self) -> dict[str, torch.Tensor]:
        """Replay all merges; parameters by name, the mean over ranks."""
        while any([*(self._enters(*place) for place in self.left), *(self._joins(*place) for place in self.joined)]):
            pass
        if any(self.left.values()):
            raise ProgramError("the ledgers have averagings and reads that no run can have had in this order")
        held = [worker.now for worker in self.workers.values()]
        for name, views in self._views(replica(self.one, self.workers[0].one.update)).items():
            for k, view in enumerate(views):
                view.copy_(torch.stack([now[name][k] for now in held]).mean(0))
        return self.one.weights()

    def _enters(self, rank: int, bucket: str) -> bool:
        """Replay the next merge of a passive rank, if what it needs is there."""
        left = self.left[rank, bucket]
        if not left:
            return False
        merge, worker = left[0], self.workers[rank]
        if merge.worker == rank:
            read = {b.name: self.read.get((rank, merge.turn, b.name), 2**62) for b in self.buckets}
            parts = self._changed(rank, merge.turn, read, bucket)
            if parts is None:
                return False
            worker.becomes(bucket, [a + b for a, b in zip(worker.now[bucket], parts, strict=True)])
        else:
            place, partners = (merge.worker, bucket), self.partners[merge.worker]
            number = self.met[place]
            if number != self.joined[place] or number >= len(partners) or partners[number] != rank:
                return False
            other = self.workers[merge.worker]
            mean = [(a + b) / 2 for a, b in zip(worker.now[bucket], other.now[bucket], strict=True)]
            worker.becomes(bucket, mean)
            other.now[bucket] = [part.clone() for part in mean]
            self.met[place] += 1
        left.pop(0)
        return True

    def _joins(self, rank: int, bucket: str) -> bool:
        """Add the change of an active rank's steps to its weights, once it has the mean."""
        turn, worker = self.joined[rank, bucket], self.workers[rank]
        if self.met[rank, bucket] <= turn:
            return False
        parts = self._changed(rank, turn, {b.name: turn for b in self.buckets}, bucket)
        if parts is None:
            return False
        worker.becomes(bucket, [a + b for a, b in zip(worker.now[bucket], parts, strict=True)])
        self.joined[rank, bucket] += 1
        return True

    def _changed(self, rank: int, turn: int, read: dict[str, int], bucket: str) -> Parts | None:
        """A bucket's part of the change of a turn; None if a version that it read is not there yet."""
        worker = self.workers[rank]
        if turn not in worker.made and any(len(worker.versions[name]) <= version for name, version in read.items()):
            return None
        made = worker.change(turn, read, self._views(worker.one))
        return [rows(made[piece.parameter], piece) for b in self.buckets if b.name == bucket for piece in b.pieces]


def _turns(leg: Leg, rank: int, period: int) -> Iterator[Minibatches]:
    """A rank's turns in a leg: the steps between two averages, and its parts of their minibatches."""
    program = leg.program
    shares = [share for share in shares_of(program) if share.rank == rank]
    for round in range(leg.rounds):
        before = leg.step + round * program.steps
        for start in range(0, program.steps, period):
            span = range(start, min(start + period, program.steps))
            yield [(before + step, [s for s in shares if s.step == step]) for step in span]
