"""The serial replay of an asynchronous run from its ledger, in plain PyTorch: what `verify` compares such runs with.

    ledger of a bucket   (worker 1, turn 0, read 0)  (worker 0, turn 0, read 0)  (worker 1, turn 1, read 1) ...
    versions             w0 ------------------> w1 ------------------> w2 ------------------> w3

Every gradient is computed again, on the versions of the weights that its worker had read, and every bucket is updated
by the gradients in the order in which they reached the server. Corrections for staleness are written as in their
papers. Gradients that were encoded are replayed with the codec's twin and its error feedback. Elastic workers (EASGD)
train replicas of their own and contribute the pull between replica and centre.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch

from partita.errors import ProgramError
from partita.kernels.shared import added_plainly, key_of
from partita.lowering.pairs import pairs_up
from partita.oracles.elastic import ElasticWorkers, elastic_workers
from partita.oracles.lossy import Lossy
from partita.oracles.pairwise import together
from partita.oracles.reference import Reference, Share, fed
from partita.oracles.served_legs import ServedLeg, served_legs
from partita.program.instruction import Apply
from partita.program.layout import Bucket
from partita.program.ledger import LOST, Merge
from partita.runtime.leg import Leg
from partita.runtime.neutral import left_out, neutral
from partita.runtime.rules import groups_among, optimizer_of, schedule_of, step_at_rate
from partita.runtime.state import rows

Parts = list[torch.Tensor]
Named = dict[str, torch.Tensor]
Turn = tuple[int, int]


@dataclass
class ServerBucket:
    """The server's state of one bucket: the tensors of its pieces now (`parts`) and in every version so far, and the
    merges that are `left` to replay.

    `summed` are contributions since the last step, of these `shares` of the minibatch, `squares` and `clocks` the state
    of the corrections of DC-ASGD and DynSGD, `merged` counts contributions, `minibatches` what they are parts of, and
    `stepped` how many of these there were at the last step.
    """

    bucket: Bucket
    parts: Parts
    optimizer: Any
    schedule: Any
    left: list[Merge]
    versions: list[Parts]
    summed: Parts = field(default_factory=list)
    shares: list[float] = field(default_factory=list)
    squares: Parts = field(default_factory=list)
    clocks: dict[int, list[Parts]] = field(default_factory=dict)
    merged: int = 0
    minibatches: int = 0
    stepped: int = 0


def replayed(one: Reference, legs: Sequence[Leg], ledger: Sequence[Merge], *, whole: bool = True) -> Named:
    """Parameters by name after all merges of a ledger have been replayed.

    Without `whole`, each part of a minibatch is computed as two halves: another order of summation, whose difference
    tells how far rounding alone moves the weights. Raises ProgramError for a ledger that no run can have.
    """
    if pairs_up(legs[0].plan.sync[0]):
        return together(one, legs, ledger, whole)
    return Replay(one, legs, ledger, whole).go()


class Replay:
    """The state of one replay: the model, a ServerBucket for each bucket, and what each worker's turns contribute."""

    def __init__(self, one: Reference, legs: Sequence[Leg], ledger: Sequence[Merge], whole: bool) -> None:
        self.one, self.whole, self.legs = one, whole, served_legs(legs)
        program = self.legs[0].leg.program
        self.update = program.update
        self.named = {n: p for n, p in one.model.named_parameters() if p.requires_grad}
        applies = self.legs[0].applies
        self.delta = any(act.delta for by_worker in applies.values() for acts in by_worker.values() for act in acts)
        drops, plan = program.drops, self.legs[0].leg.plan
        self.elastic = elastic_workers(one, plan)
        self.on_servers = {name: self._server_bucket(program.bucket[name], ledger) for name in applies}
        self.read: dict[Turn, dict[str, int]] = {}
        self.waiting = Counter((merge.worker, merge.turn) for merge in ledger if merge.applied != LOST)
        for merge in ledger:
            read = self.read.setdefault((merge.worker, merge.turn), {})
            read |= dict.fromkeys(self.on_servers, merge.read) if drops else {merge.bucket: merge.read}
        taken = sorted(self.waiting)
        self.before = {now: was[1] if was[0] == now[0] else -1 for was, now in pairwise([(-1, -1), *taken])}
        self.made: dict[Turn, Named] = {}
        self.entered = {(merge.worker, merge.turn, merge.bucket) for merge in ledger if merge.applied != LOST}
        self.owed: dict[Turn, set[str]] = {}
        self.workers: dict[int, tuple[Any, Any, Any]] = {}
        self.codecs = Lossy(one.seed)

    def _server_bucket(self, bucket: Bucket, ledger: Sequence[Merge]) -> ServerBucket:
        parts = [rows(self.named[piece.parameter].detach(), piece).clone() for piece in bucket.pieces]
        if bucket.shared not in ("", bucket.dtype):
            parts = [part.to(getattr(torch, bucket.shared)).to(part.dtype) for part in parts]
        names = [piece.parameter for piece in bucket.pieces]
        optimizer = optimizer_of(self.one.task, self.update, parts, names, groups_among(self.one.task, self.named))
        schedule = schedule_of(self.one.task, optimizer)
        mine = [merge for merge in ledger if merge.bucket == bucket.name and merge.applied != LOST]
        return ServerBucket(bucket, parts, optimizer, schedule, mine, [[part.clone() for part in parts]])

    def go(self) -> Named:
        """Replay merges as soon as what they contribute can be computed; parameters by name at the end."""
        moved = True
        while moved:
            moved = False
            for served in self.on_servers.values():
                while served.left and self._known((served.left[0].worker, served.left[0].turn), served.bucket):
                    self._merge(served, served.left.pop(0))
                    moved = True
        if any(served.left for served in self.on_servers.values()):
            raise ProgramError("the ledger has merges that read versions which were never made")
        self._show({name: len(served.versions) - 1 for name, served in self.on_servers.items()})
        return self.one.weights()

    def _show(self, versions: dict[str, int]) -> None:
        """Load the given version of each bucket into the model."""
        with torch.no_grad():
            for name, version in versions.items():
                served = self.on_servers[name]
                for piece, part in zip(served.bucket.pieces, served.versions[version], strict=True):
                    rows(self.named[piece.parameter], piece).copy_(part)

    def _known(self, turn: Turn, bucket: Bucket) -> bool:
        """Whether all versions that a turn read exist by now; if so, its contribution is computed. The pull of a worker
        that goes on with its own weights needs that bucket's alone."""
        read, tied = self.read[turn], isinstance(self.elastic, ElasticWorkers)
        if turn not in self.made:
            known = all(len(self.on_servers[b].versions) > v for b, v in read.items())
            if len(read) < len(self.on_servers) or not (known or (tied and self.before[turn] == turn[1] - 1)):
                return False
            last = self.before[turn]
            if self.elastic and (self.elastic.turns.get(turn[0], -1) != last or self._owes((turn[0], last))):
                return False
            if known:
                self._show(read)
            self.made[turn] = self._brought(*turn)
        return not tied or bucket.name not in self._owes(turn)

    def _owes(self, turn: Turn) -> set[str]:
        """The buckets which a worker has not pulled yet in a turn, for lack of the versions that it read."""
        owed = self.owed.get(turn, set())
        for served in [self.on_servers[name] for name in owed]:
            read = self.read[turn][served.bucket.name]
            if isinstance(self.elastic, ElasticWorkers) and len(served.versions) > read:
                owed.remove(served.bucket.name)
                self.elastic.pull(turn[0], served.bucket, served.versions[read], self.made[turn])
        return owed

    def _brought(self, worker: int, turn: int) -> Named:
        """The contribution of a worker's turn, computed on the weights that the model has now."""
        if self.elastic:
            minibatches = [
                (step, [part for s in shares for part in fed(s, self.whole)])
                for step, shares in self._minibatches(worker, turn)
            ]
            centre = [p.detach().clone() for p in self.named.values()]
            if isinstance(self.elastic, ElasticWorkers):
                self.owed[worker, turn] = {name for name in self.on_servers if (worker, turn, name) in self.entered}
            given = self.elastic.contribution(worker, turn, minibatches, centre)
            return dict(zip(self.named, given, strict=True))
        gradient = self._gradient(worker, turn)
        brought = self._increment(worker, gradient) if self.delta else gradient
        program, (step, _) = self.legs[0].leg.program, self._minibatches(worker, turn)[0]
        return self.codecs.pushed(program, step // program.steps * program.steps, worker, brought)

    def _minibatches(self, worker: int, turn: int) -> list[tuple[int, list[Share]]]:
        return self._leg(turn).minibatches(worker, turn)

    def _leg(self, turn: int) -> ServedLeg:
        return next(served for served in reversed(self.legs) if served.first <= turn)

    def _taken(self, turn: Turn) -> Named:
        """The contribution of a turn; it is forgotten once every bucket has taken it."""
        self.waiting[turn] -= 1
        return self.made[turn] if self.waiting[turn] else self.made.pop(turn)

    def _gradient(self, worker: int, turn: int) -> Named:
        """The gradient of a turn's samples, each weighted as in the mean over the whole minibatch."""
        batch = self.legs[0].leg.program.batch
        total = {name: neutral(p) for name, p in self.named.items()}
        for step, parts in self._minibatches(worker, turn):
            shares = [part for s in parts for part in fed(s, self.whole)]
            part = sum(count for _, count in shares) / batch
            found = self.one.gradients(step, shares, batch, [worker] * len(shares), part)
            for mine, gradient in zip(total.values(), found, strict=True):
                mine += gradient
        return total

    def _increment(self, worker: int, gradient: Named) -> Named:
        """The change of the weights that the worker's own optimizer makes of a gradient."""
        if worker not in self.workers:
            copies = deepcopy(list(self.named.values()))
            optimizer = optimizer_of(self.one.task, self.update, copies)
            schedule = schedule_of(self.one.task, optimizer)
            self.workers[worker] = copies, optimizer, schedule
        copies, optimizer, schedule = self.workers[worker]
        given = dict(zip(gradient, left_out(list(gradient.values())), strict=True))
        with torch.no_grad():
            for copy, (name, p) in zip(copies, self.named.items(), strict=True):
                copy.copy_(p)
                copy.grad = given[name]
        share = next(iter(self.legs[0].applies.values()))[worker][0].share
        step_at_rate(optimizer, self.update, share=share)
        if schedule is not None:
            schedule.step()
        return {name: (copy - p).detach() for copy, (name, p) in zip(copies, self.named.items(), strict=True)}

    def _merge(self, served: ServerBucket, merge: Merge) -> None:
        act = self._leg(merge.turn).act(merge.bucket, merge.worker, merge.turn)
        brought = self._taken((merge.worker, merge.turn))
        parts = [rows(brought[piece.parameter], piece).clone() for piece in served.bucket.pieces]
        for correction in act.corrections:
            settings = dict(correction.settings)
            if correction.name == "delay":
                parts = _compensated(served, act, parts, served.versions[merge.read], settings)
            else:
                parts = _revised(served, act, parts, merge.turn)
        served.merged, served.minibatches = served.merged + 1, served.minibatches + act.steps
        if served.bucket.shared not in ("", served.bucket.dtype):
            now, change = (torch.cat([part.flatten() for part in each]) for each in (served.parts, parts))
            new = added_plainly(now, change, key_of(merge.bucket, merge.worker, merge.turn))
            for part, words in zip(served.parts, torch.split(new, [part.numel() for part in parts]), strict=True):
                part.copy_(words.view(part.shape))
        elif act.delta:
            with torch.no_grad():
                for part, change in zip(served.parts, parts, strict=True):
                    part.add_(change, alpha=act.scale)
        else:
            served.summed = [a + b for a, b in zip(served.summed, parts, strict=True)] if served.summed else parts
            served.shares.append(act.share)
            self._step(served, act)
        if act.delta or served.merged % act.need == 0:
            served.versions.append([part.detach().clone() for part in served.parts])

    def _step(self, served: ServerBucket, act: Apply) -> None:
        if served.merged % act.need == 0:
            for part, gradient in zip(served.parts, left_out(served.summed), strict=True):
                part.grad = None if gradient is None else gradient / (sum(served.shares) if act.drop else 1)
            before, entered = served.stepped // act.among, served.minibatches - served.stepped
            whole = entered / act.among if act.need > 1 else act.steps * act.share
            step_at_rate(served.optimizer, self.update, before, 1.0 if act.drop else whole)
            served.summed, served.shares, served.stepped = [], [], served.minibatches
            for _ in range(served.minibatches // act.among - before):
                if served.schedule is not None:
                    served.schedule.step()


def _compensated(served: ServerBucket, act: Apply, parts: Parts, read: Parts, settings: dict[str, float]) -> Parts:
    """DC-ASGD (DP-18): g + lambda g g (w - w_read); adaptive: lambda / sqrt(MS + 1e-7), MS = m MS + (1 - m) g g."""
    means = [part / act.share for part in parts]
    factors: list[Any] = [settings["strength"]] * len(parts)
    if decay := settings.get("decay", 0.0):
        before = served.squares or [torch.zeros_like(g) for g in means]
        served.squares = [decay * ms + (1 - decay) * g * g for ms, g in zip(before, means, strict=True)]
        factors = [settings["strength"] / torch.sqrt(ms + 1e-7) for ms in served.squares]
    return [
        act.share * (g + factor * g * g * (now.detach() - then))
        for g, factor, now, then in zip(means, factors, served.parts, read, strict=True)
    ]


def _revised(served: ServerBucket, act: Apply, parts: Parts, clock: int) -> Parts:
    """DynSGD (DP-17): the mean of all that has come of this clock takes the place of the mean before."""
    came = served.clocks.setdefault(clock, [])
    before = [sum(column) / len(came) for column in zip(*came, strict=True)] if came else [0.0] * len(parts)
    came.append([part / act.share for part in parts])
    after = [sum(column) / len(came) for column in zip(*came, strict=True)]
    return [b - a for a, b in zip(before, after, strict=True)]
