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
from partita.program.instruction import (
    Act,
    Apply,
    Collective,
    Compute,
    Free,
    Kind,
    Load,
    Pack,
    Receive,
    Send,
    Space,
    Update,
)
from partita.program.program import Bucket, Piece, Program, Role
from partita.program.strips import strips_of
from partita.program.timeline import PARTS
from partita.units import Bytes

ACTIVATIONS, GRADIENTS, MESSAGES = (PARTS.index(name) for name in ("activations", "gradients", "messages"))
START: Final = 0.0  # shares of an instance's time
END: Final = 1.0
NOTHING: Final = 0  # the row of what holds nothing
STRETCHES: Final = 12  # of one segment: its fullest moment in each is kept
# Tensors of a bucket's size that torch's rules make and drop (torch 2.13, torch/optim): Adam's denominator twice, ...
SCRATCH: Final = {"SGD": 0, "Adam": 2, "AdamW": 2, "NAdam": 2, "RAdam": 2}

_Names = tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Instance:
    """One instruction of a role in one round; its `number` counts those of all rounds."""

    number: int
    round: int


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
    """Writes what comes and goes; lives for one call of `written`.

    Entry k of `number`, `share`: something comes or goes when that instance has gone through this share of its time.
    Microbatches go through the same, so what is held is written once in a row of `rows`: entry k + 1 of `held` names
    the row that a key holds from entry k on, and entry k of `before` the entry of `held` whose place that takes.
    `left` has what goes with the last of some instances: entries, and numbers of the instances.
    """

    def __init__(self, program: Program, graph: Graph, role: Role, foreach: bool) -> None:
        self.program, self.graph, self.foreach = program, graph, foreach
        self.zero = np.zeros(len(PARTS), np.int64)
        self.number: list[int] = []
        self.share: list[float] = []
        self.rows: list[Course] = [self.zero]
        self.held: list[int] = [NOTHING]
        self.before: list[int] = []
        self.now: dict[tuple[int, str, object], int] = {}
        self.places: dict[tuple[int, str, int], _Place] = {}
        self.uses = Counter(part for i in role.instructions if (part := part_of(i.act)))
        self.used: dict[tuple[int, str], list[int]] = {}
        self.left: list[tuple[range, list[int]]] = []
        self.merged: Counter[tuple[str, int]] = Counter()
        sends = [i.act for i in role.instructions if isinstance(i.act, Send) and i.act.space is Space.VALUE]
        self.sent = {(act.part, name) for act in sends for name, _ in program.parcel[act.bucket].values}
        self.tide = cache(self._tide)
        self.outside = cache(lambda stage, batch, names: self.tide(stage, batch).outside(names))
        self.course = cache(self._course)
        self.course_with = cache(self._course_with)
        self.between = cache(self._between)
        self.bytes_of = cache(self._bytes_of)
        self.given = cache(self._given)
        self.carried = cache(self._carried)
        self.loaded = cache(self._loaded)

    def enter(self, one: Instance, act: Act) -> None:
        """What an instance makes and frees; instances come in the order of their starts."""
        match act:
            case Compute():
                self._compute(one, act)
            case Pack():
                self._come(one, act.bucket, Space.GRADIENT)
                self._take(one, act.bucket, act.part, act.stage)
            case Free():
                self._set(one, END, (0, "", (act.bucket, act.space)), NOTHING)
            case Collective(kind=Kind.ALL_GATHER):
                self._come(one, act.bucket, act.space)
            case Collective(kind=Kind.REDUCE_SCATTER, space=Space.GRADIENT):
                bucket = self.program.bucket[act.bucket]
                room = bucket.owned * bucket.item(act.space)
                self._set(one, START, (one.round, "", ("room", act.bucket)), self.bytes_of("messages", room))
                self._set(one, END, (one.round, "", ("room", act.bucket)), NOTHING)
            case Receive(space=Space.VALUE):
                stage, batch, names = self.carried(act.bucket)
                self._arrive(one, START, act.part, stage, batch, names)
            case Send(space=Space.VALUE, keeps=False):
                for name in self.carried(act.bucket)[2]:
                    self._set(one, END, (one.round, act.part, name), NOTHING)
            case Load(fetch=True):
                self._arrive(one, START, act.part, act.stage, act.count, self.loaded(act.stage), message=False)
            case Apply(delta=False):
                self._apply(one, act)
            case Update():
                scratch = scratch_bytes(self.graph, self.program.bucket[act.bucket], self.foreach, not act.part)
                self._set(one, START, (one.round, "", act.bucket), self.bytes_of("workspace", scratch))
                self._set(one, END, (one.round, "", act.bucket), NOTHING)
                if act.part:
                    self._take(one, act.bucket, act.part, -1)
        if part := part_of(act):
            self._leave(one, part)

    def _apply(self, one: Instance, act: Apply) -> None:
        """What a server's step and its corrections make and drop, and the mean of a clock until its last worker."""
        bucket, names = self.program.bucket[act.bucket], {correction.name for correction in act.corrections}
        scratch = max(scratch_bytes(self.graph, bucket, self.foreach), ("delay" in names) * bucket.size)
        self._set(one, START, (one.round, "", (act.bucket, act.source)), self.bytes_of("workspace", scratch))
        self._set(one, END, (one.round, "", (act.bucket, act.source)), NOTHING)
        if "staleness" in names:
            self.merged[act.bucket, one.round] += 1
            opens = self.merged[act.bucket, one.round] < act.among
            held = self.bytes_of("workspace", bucket.size) if opens else NOTHING
            self._set(one, END, (one.round, "", ("clock", act.bucket)), held)

    @property
    def changes(self) -> Course:
        """What comes and goes with each entry, shape [entries, PARTS]."""
        rows, held = np.concatenate(self.rows).reshape(-1, len(PARTS)), np.array(self.held)
        found: Course = rows[held[1:]] - rows[held[self.before]]
        return found

    def _set(self, one: Instance, share: float, key: tuple[int, str, object], row: int) -> None:
        self.number.append(one.number)
        self.share.append(share)
        self.before.append(self.now.get(key, 0))
        self.now[key] = len(self.held)
        self.held.append(row)

    def _row(self, course: Course) -> int:
        self.rows.append(course)
        return len(self.rows) - 1

    def _bytes_of(self, part: str, size: Bytes) -> int:
        return self._row(unit(part) * size)

    def _tide(self, stage: int, batch: int) -> Tide:
        graph = self.program.graph_of(stage, self.graph)
        return graph.once(("tide", batch), lambda: tide_of(graph, batch))

    def _carried(self, bucket: str) -> tuple[int, int, tuple[str, ...]]:
        """The stage that takes a parcel, its samples, and the names of its values."""
        parcel = self.program.parcel[bucket]
        names = tuple(name for name, _ in parcel.values)
        return stage_of(names[0]), parcel.batch, names

    def _loaded(self, stage: int) -> tuple[str, ...]:
        """What is loaded for a stage."""
        inputs, suffix = self.program.graph_of(stage, self.graph).inputs, f">{stage}" if stage >= 0 else ""
        return tuple(n for n, _ in inputs if n.startswith("input.") and n.endswith(suffix))

    def _come(self, one: Instance, bucket: str, space: Space) -> None:
        """The whole of a bucket of which a rank keeps its part."""
        whole = self.program.bucket.get(bucket)
        if whole is not None and not whole.keeps(space):
            part = "parameters" if space is Space.PARAMETER else "buckets"
            self._set(one, START, (0, "", (bucket, space)), self.bytes_of(part, whole.elements * whole.item(space)))

    def _place(self, round: int, part: str, stage: int, batch: int) -> _Place:
        return self.places.setdefault((round, part, stage), _Place(self.tide(stage, batch)))

    def _arrive(
        self, one: Instance, share: float, part: str, stage: int, batch: int, names: tuple[str, ...],
        message: bool = True,
    ) -> None:  # fmt: skip
        place = self._place(one.round, part, stage, batch)
        if message:
            place.waiting += (names,)
        else:
            place.read += (names,)
        self._set(one, share, (one.round, part, stage), self._across(place, stage))

    def _across(self, place: _Place, stage: int) -> int:
        """What a place holds between passes."""
        return self.between(stage, place.tide.batch, place.position, place.taken, place.read, place.waiting)

    def _between(self, stage: int, batch: int, at: int, taken: Bytes, read: _Names, waiting: _Names) -> int:
        found = self.zero.copy()
        found[[ACTIVATIONS, GRADIENTS]] = self.tide(stage, batch).made_course[1][at]
        found[GRADIENTS] -= taken
        found[ACTIVATIONS] += sum(int(self.outside(stage, batch, names)[at]) for names in read)
        found[MESSAGES] += sum(int(self.outside(stage, batch, names)[at]) for names in waiting)
        return self._row(found)

    def _compute(self, one: Instance, act: Compute) -> None:
        segment = self.program.segment[act.segment]
        place = self._place(one.round, act.part, segment.stage, segment.batch)
        place.read, place.waiting = (*place.read, *place.waiting), ()
        key, last = (one.round, act.part, segment.stage), len(self.held)
        shares, rows = self.course_with(act.segment, place.read, place.taken)
        if rows:
            self.number += [one.number] * len(rows)
            self.share += shares
            self.before += [self.now.get(key, 0), *range(last, last + len(rows) - 1)]
            self.held += rows
            self.now[key] = len(self.held) - 1
        place.position = segment.stop
        self._set(one, END, key, self._across(place, segment.stage))
        near: dict[int, list[str]] = {}
        for name, size in place.tide.leaving(segment.start, segment.stop):
            if (act.part, name) in self.sent:
                self._set(one, END, (one.round, act.part, name), self.bytes_of("messages", size))
            else:
                near.setdefault(stage_of(name), []).append(name)
        for stage, names in near.items():
            self._arrive(one, END, act.part, stage, segment.batch, tuple(names), message=False)

    def _course_with(self, name: str, read: _Names, taken: Bytes) -> tuple[list[float], list[int]]:
        """(shares of a segment's time, what is held from then on), the fullest operator of every stretch."""
        shares, course = self.course(name, read)
        held = course.copy()
        held[:, GRADIENTS] -= taken
        return shares, [self._row(row) for row in held]

    def _course(self, name: str, read: _Names) -> tuple[list[float], Course]:
        segment = self.program.segment[name]
        start, stop = segment.start, segment.stop
        held = np.zeros((stop - start, len(PARTS)), np.int64)
        held[:, [ACTIVATIONS, GRADIENTS]] = self.tide(segment.stage, segment.batch).made_course[0][start:stop]
        for names in read:
            held[:, ACTIVATIONS] += self.outside(segment.stage, segment.batch, names)[start:stop]
        kept = fullest(held.sum(axis=1), STRETCHES)
        return [i / (stop - start) for i in kept], held[kept]

    def _take(self, one: Instance, bucket: str, part: str, stage: int) -> None:
        place = self.places.get((one.round, part, stage))
        if place is not None:
            place.taken += self.given(stage, place.tide.batch, bucket)
            self._set(one, END, (one.round, part, stage), self._across(place, stage))

    def _given(self, stage: int, batch: int, bucket: str) -> Bytes:
        """Bytes of gradients that go when a bucket is packed."""
        last = [piece.parameter for piece in self.program.bucket[bucket].pieces if piece.last]
        return sum(self.tide(stage, batch).gradient(parameter) for parameter in last)

    def _leave(self, one: Instance, part: str) -> None:
        """After the last instruction that uses an environment all of it goes."""
        used = self.used.setdefault((one.round, part), [])
        used.append(one.number)
        if len(used) == self.uses[part]:
            first = len(self.number)
            for key in [key for key in self.places if key[:2] == (one.round, part)]:
                self._set(one, END, key, NOTHING)
                del self.places[key]
            self.left.append((range(first, len(self.number)), used))


def part_of(act: Act) -> str:
    """The environment that an act uses, if any."""
    return str(getattr(act, "part", ""))


def stage_of(name: str) -> int:
    """The stage that takes a value of this name."""
    return int(name.rsplit(">", 1)[1])


def scratch_bytes(graph: Graph, bucket: Bucket, foreach: bool, joined: bool = True) -> Bytes:
    """What an update makes and drops: SCRATCH times the largest of what it steps at once, which is a strip where its
    pieces may be `joined`, and all where torch updates all at once (`foreach`, its default on CUDA). Short gradients
    are widened before, all of them."""
    times, item = SCRATCH.get(graph.optimizer.name, 1), ITEMSIZE[bucket.master or bucket.dtype]
    most = bucket.owned * item
    widened = most if bucket.master else 0
    if foreach or not bucket.pieces:
        return times * most + widened
    shapes = {p.name: p.tensor.at(1) for p in graph.parameters}
    sizes = [_rows(shapes[piece.parameter], piece) for piece in bucket.pieces]
    if joined and graph.optimizer.joins:
        sizes = [sum(sizes[start:stop]) for start, stop in strips_of(sizes)]
    return times * min(max(sizes), most) + widened


def _rows(tensor: Tensor, piece: Piece) -> Bytes:
    whole, shape = tensor.size(), tensor.shape
    return whole if piece.stop < 0 else whole * (piece.stop - piece.start) // int(shape[0])  # type: ignore[arg-type]
