"""What each instruction makes and frees of what a rank holds for a while."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cache
from typing import Final

import numpy as np

from partita.cost.curve import Course, fullest, unit
from partita.cost.tides import Tide, tide_of
from partita.graph.graph import Graph
from partita.graph.tensor import ITEMSIZE, Tensor
from partita.program.instruction import Act, Collective, Compute, Free, Kind, Load, Pack, Receive, Send, Space, Update
from partita.program.program import Bucket, Piece, Program, Role
from partita.program.timeline import PARTS
from partita.units import Bytes, Seconds

ACTIVATIONS, GRADIENTS, MESSAGES = (PARTS.index(name) for name in ("activations", "gradients", "messages"))
STRETCHES: Final = 12  # of one segment: its fullest moment in each is kept
# Tensors of a bucket's size that torch's rules make and drop (torch 2.13, torch/optim): Adam's denominator twice, ...
SCRATCH: Final = {"SGD": 0, "Adam": 2, "AdamW": 2, "NAdam": 2, "RAdam": 2}


@dataclass(frozen=True, slots=True)
class Instance:
    """One instruction of a role in one round, from `start` to `end`."""

    place: int
    round: int
    start: Seconds
    end: Seconds


@dataclass
class _Place:
    """How far the passes of an environment through one stage are: `position` lies before the next operator; names of
    what came from outside, `waiting` where a message brought it, until a pass begins; bytes of gradients `taken`."""

    tide: Tide
    position: int = 0
    read: tuple[tuple[str, ...], ...] = ()
    waiting: tuple[tuple[str, ...], ...] = ()
    taken: Bytes = 0


class Ledger:
    """Writes what comes and goes; lives for one call of `memory_curve`."""

    def __init__(self, program: Program, graph: Graph, role: Role, foreach: bool) -> None:
        self.program, self.graph, self.foreach = program, graph, foreach
        self.zero = np.zeros(len(PARTS), np.int64)
        self.moments: list[Seconds] = []
        self.held: list[Course] = [self.zero]
        self.before: list[int] = []
        self.now: dict[tuple[int, str, object], int] = {}
        self.places: dict[tuple[int, str, int], _Place] = {}
        self.uses = Counter(part for i in role.instructions if (part := part_of(i.act)))
        self.used: Counter[tuple[int, str]] = Counter()
        sends = [i.act for i in role.instructions if isinstance(i.act, Send) and i.act.space is Space.VALUE]
        self.sent = {(act.part, name) for act in sends for name, _ in program.parcel[act.bucket].values}
        self.tide = cache(lambda stage, batch: tide_of(program.graph_of(stage, graph), batch))
        self.outside = cache(lambda stage, batch, names: self.tide(stage, batch).outside(names))
        self.course = cache(self._course)
        self.given = cache(self._given)

    def enter(self, one: Instance, act: Act) -> None:
        """What an instance makes and frees; instances come in the order of their starts."""
        match act:
            case Load(fetch=True):
                inputs = self.program.graph_of(act.stage, self.graph).inputs
                suffix = f">{act.stage}" if act.stage >= 0 else ""
                names = tuple(n for n, _ in inputs if n.startswith("input.") and n.endswith(suffix))
                self._arrive(one.start, one.round, act.part, act.stage, act.count, names, message=False)
            case Receive(space=Space.VALUE):
                parcel = self.program.parcel[act.bucket]
                names = tuple(name for name, _ in parcel.values)
                self._arrive(one.start, one.round, act.part, stage_of(names[0]), parcel.batch, names)
            case Compute():
                self._compute(one, act)
            case Send(space=Space.VALUE, keeps=False):
                for name, _ in self.program.parcel[act.bucket].values:
                    self._set(one.end, (one.round, act.part, name), self.zero)
            case Collective(kind=Kind.ALL_GATHER):
                self._come(one.start, act.bucket, act.space)
            case Collective(kind=Kind.REDUCE_SCATTER):
                bucket = self.program.bucket[act.bucket]
                room = bucket.owned * bucket.item(act.space)
                self._set(one.start, (one.round, "", ("room", act.bucket)), unit("messages") * room)
                self._set(one.end, (one.round, "", ("room", act.bucket)), self.zero)
            case Free():
                self._set(one.end, (0, "", (act.bucket, act.space)), self.zero)
            case Pack():
                self._come(one.start, act.bucket, Space.GRADIENT)
                self._take(one, act.bucket, act.part, act.stage)
            case Update():
                scratch = scratch_bytes(self.graph, self.program.bucket[act.bucket], self.foreach)
                self._set(one.start, (one.round, "", act.bucket), unit("workspace") * scratch)
                self._set(one.end, (one.round, "", act.bucket), self.zero)
                if act.part:
                    self._take(one, act.bucket, act.part, -1)
        if part := part_of(act):
            self._leave(one, part)

    @property
    def changes(self) -> Course:
        """What comes and goes at each of the moments, shape [moments, PARTS]."""
        held = np.concatenate(self.held).reshape(-1, len(PARTS))
        found: Course = held[1:] - held[self.before]
        return found

    def _set(self, at: Seconds, key: tuple[int, str, object], held: Course) -> None:
        self.moments.append(at)
        self.before.append(self.now.get(key, 0))
        self.now[key] = len(self.held)
        self.held.append(held)

    def _come(self, at: Seconds, bucket: str, space: Space) -> None:
        """The whole of a bucket of which a rank keeps its part."""
        whole = self.program.bucket.get(bucket)
        if whole is not None and not whole.keeps(space):
            part = "parameters" if space is Space.PARAMETER else "buckets"
            self._set(at, (0, "", (bucket, space)), unit(part) * whole.elements * whole.item(space))

    def _place(self, round: int, part: str, stage: int, batch: int) -> _Place:
        return self.places.setdefault((round, part, stage), _Place(self.tide(stage, batch)))

    def _arrive(
        self, at: Seconds, round: int, part: str, stage: int, batch: int, names: tuple[str, ...], message: bool = True
    ) -> None:
        place = self._place(round, part, stage, batch)
        if message:
            place.waiting += (names,)
        else:
            place.read += (names,)
        self._set(at, (round, part, stage), self._across(place, stage))

    def _across(self, place: _Place, stage: int) -> Course:
        """What a place holds between passes."""
        found, at, batch = self.zero.copy(), place.position, place.tide.batch
        found[[ACTIVATIONS, GRADIENTS]] = place.tide.made_course[1][at]
        found[GRADIENTS] -= place.taken
        found[ACTIVATIONS] += sum(int(self.outside(stage, batch, names)[at]) for names in place.read)
        found[MESSAGES] += sum(int(self.outside(stage, batch, names)[at]) for names in place.waiting)
        return found

    def _compute(self, one: Instance, act: Compute) -> None:
        segment = self.program.segment[act.segment]
        place = self._place(one.round, act.part, segment.stage, segment.batch)
        place.read, place.waiting = (*place.read, *place.waiting), ()
        key = (one.round, act.part, segment.stage)
        for share, held in self.course(act.segment, place.read):
            during = held.copy()
            during[GRADIENTS] -= place.taken
            self._set(one.start + share * (one.end - one.start), key, during)
        place.position = segment.stop
        self._set(one.end, key, self._across(place, segment.stage))
        near: dict[int, list[str]] = {}
        for name, size in place.tide.leaving(segment.start, segment.stop):
            if (act.part, name) in self.sent:
                self._set(one.end, (one.round, act.part, name), unit("messages") * size)
            else:
                near.setdefault(stage_of(name), []).append(name)
        for stage, names in near.items():
            self._arrive(one.end, one.round, act.part, stage, segment.batch, tuple(names), message=False)

    def _course(self, name: str, read: tuple[tuple[str, ...], ...]) -> list[tuple[float, Course]]:
        """(share of a segment's time, what is held then), the fullest operator of every stretch."""
        segment = self.program.segment[name]
        start, stop = segment.start, segment.stop
        held = np.zeros((stop - start, len(PARTS)), np.int64)
        held[:, [ACTIVATIONS, GRADIENTS]] = self.tide(segment.stage, segment.batch).made_course[0][start:stop]
        for names in read:
            held[:, ACTIVATIONS] += self.outside(segment.stage, segment.batch, names)[start:stop]
        return [(i / (stop - start), held[i]) for i in fullest(held.sum(axis=1), STRETCHES)]

    def _take(self, one: Instance, bucket: str, part: str, stage: int) -> None:
        place = self.places.get((one.round, part, stage))
        if place is not None:
            place.taken += self.given(stage, place.tide.batch, bucket)
            self._set(one.end, (one.round, part, stage), self._across(place, stage))

    def _given(self, stage: int, batch: int, bucket: str) -> Bytes:
        """Bytes of gradients that go when a bucket is packed."""
        last = [piece.parameter for piece in self.program.bucket[bucket].pieces if piece.last]
        return sum(self.tide(stage, batch).gradient(parameter) for parameter in last)

    def _leave(self, one: Instance, part: str) -> None:
        """After the last instruction that uses an environment all of it goes."""
        self.used[one.round, part] += 1
        if self.used[one.round, part] == self.uses[part]:
            for key in [key for key in self.places if key[:2] == (one.round, part)]:
                self._set(one.end, key, self.zero)
                del self.places[key]


def part_of(act: Act) -> str:
    """The environment that an act uses, if any."""
    return str(getattr(act, "part", ""))


def stage_of(name: str) -> int:
    """The stage that takes a value of this name."""
    return int(name.rsplit(">", 1)[1])


def scratch_bytes(graph: Graph, bucket: Bucket, foreach: bool) -> Bytes:
    """What an update makes and drops: SCRATCH times its largest piece, of all pieces where torch updates them at once
    (`foreach`, its default on CUDA). Short gradients are widened before, all of them."""
    times, most = SCRATCH.get(graph.optimizer.name, 1), bucket.owned * ITEMSIZE[bucket.master or bucket.dtype]
    widened = most if bucket.master else 0
    if foreach or not bucket.pieces:
        return times * most + widened
    shapes = {p.name: p.tensor.at(1) for p in graph.parameters}
    return times * min(max(_rows(shapes[piece.parameter], piece) for piece in bucket.pieces), most) + widened


def _rows(tensor: Tensor, piece: Piece) -> Bytes:
    whole, shape = tensor.size(), tensor.shape
    return whole if piece.stop < 0 else whole * (piece.stop - piece.start) // int(shape[0])  # type: ignore[arg-type]
