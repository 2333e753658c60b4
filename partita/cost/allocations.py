"""What each instruction of a rank allocates and frees, written down entry by entry.

An instruction is recorded once, whatever the times of the instructions are. `recording` makes an AllocationLog of the
entries, which `memory` puts on a time axis.

    key (round 0, environment "m0", stage 1)    row 0 | row 7 ........ | row 9 | row 0      a row says what a key holds,
    entry                                           k = 3            4       5               in bytes, by PURPOSES
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final, NamedTuple

import numpy as np

from partita.cost.hops import hop_bytes
from partita.cost.lifetimes import Lifetimes, lifetimes_of
from partita.cost.memory_curve import ByteSeries, highest, unit
from partita.cost.scratch import Processor, scratch_bytes, working_bytes
from partita.cost.workspaces import Workspaces
from partita.graph.graph import Graph
from partita.program.instruction import Act, Apply, Collective, Compute, Free, Load, Pack, Receive, Send, Update
from partita.program.program import Program, Role
from partita.program.space import Kind, Space
from partita.program.timeline import PURPOSES
from partita.units import Bytes

ACTIVATIONS, GRADIENTS, MESSAGES, WORKSPACE = map(PURPOSES.index, ("activations", "gradients", "messages", "workspace"))
START: Final = 0.0  # shares of the time that an instance takes
END: Final = 1.0
NOTHING: Final = 0  # the row of a key that holds nothing
INTERVALS: Final = 12  # of one segment: the operator at which most bytes are alive is kept of each

_Names = tuple[tuple[str, ...], ...]


class Instance(NamedTuple):
    """One instruction of a role in one round: instruction i of n in round r has the `number` r * n + i."""

    number: int
    round: int


@dataclass
class _Progress:
    """How far the segments of one environment have gone through the graph of one stage.

    `position` lies before the next operator. `read` has the names of inputs that are there and still to be read,
    `waiting` those that a message brought since the last segment, `packed` the bytes of gradients that were moved into
    buckets.
    """

    lifetimes: Lifetimes
    position: int = 0
    read: _Names = ()
    waiting: _Names = ()
    packed: Bytes = 0


class AllocationRecorder:
    """Writes down what the instances of a role's instructions allocate and free; lives for one call of
    `cost.memory.changes_of`.

    Entry k: when instance `number[k]` has gone through `share[k]` of its time, some key holds row `held[k + 1]` of
    `rows`, where it held row `held[before[k]]`. A row has one number of bytes for each of PURPOSES; microbatches that
    do the same share rows.
    """

    def __init__(self, program: Program, graph: Graph, role: Role, on: Processor, spaces: Workspaces) -> None:
        self.program, self.graph, self.on, self.spaces = program, graph, on, spaces
        self.zero = np.zeros(len(PURPOSES), np.int64)
        self.number: list[int] = []
        self.share: list[float] = []
        self.rows: list[ByteSeries] = [self.zero]
        self.held: list[int] = [NOTHING]
        self.before: list[int] = []
        self.now: dict[tuple[int, str, object], int] = {}
        self.progress: dict[tuple[int, str, int], _Progress] = {}
        self.merged: Counter[tuple[str, int]] = Counter()
        sends = [act for act in role.acts(Send) if act.space is Space.VALUE]
        self.sent = {(act.part, name) for act in sends for name, _ in program.parcel[act.bucket].values}
        self.lifetimes = cache(self._lifetimes)
        self.working = cache(self._working)
        self.inputs = cache(lambda stage, batch, names: self.lifetimes(stage, batch).input_bytes(names))
        self.course = cache(self._course)
        self.during = cache(self._during)
        self.between = cache(self._between)
        self.bytes_row = cache(self._bytes_row)
        self.hops = cache(lambda act: hop_bytes(program, act, role.ranks[0]))
        self.released = cache(self._released)
        self.values = cache(self._values)
        self.loaded = cache(self._loaded)

    def record_shared(self, one: Instance, act: Act) -> None:
        """Record what an instance allocates and frees that belongs to no environment, but to the rank. Instances are to
        be recorded in the order of their starts."""
        match act:
            case Pack():
                self._whole(one, act.bucket, Space.GRADIENT)
            case Free():
                self._set(one, END, (0, "", (act.bucket, act.space)), NOTHING)
            case Collective(kind=Kind.ALL_GATHER):
                self._whole(one, act.bucket, act.space)
            case Collective() if room := self.hops(act):
                self._set(one, START, (one.round, "", ("room", act.bucket)), self.bytes_row("messages", room))
                self._set(one, END, (one.round, "", ("room", act.bucket)), NOTHING)
            case Apply(delta=False):
                self._apply(one, act)
            case Update():
                scratch = scratch_bytes(self.graph, self.program.bucket[act.bucket], self.on, not act.part)
                self._set(one, START, (one.round, "", act.bucket), self.bytes_row("workspace", scratch))
                self._set(one, END, (one.round, "", act.bucket), NOTHING)

    def record_environment(self, instances: Sequence[tuple[Instance, Act]]) -> int:
        """Record what all instances that use one environment, in the order of their starts, allocate and free there.
        Returns the first entry that drops the environment, after the last of them."""
        for one, act in instances:
            match act:
                case Compute():
                    self._compute(one, act)
                case Pack():
                    self._pack(one, act.bucket, act.part, act.stage)
                case Receive(space=Space.VALUE):
                    stage, batch, names = self.values(act.bucket)
                    self._arrive(one, START, act.part, stage, batch, names)
                case Send(space=Space.VALUE, keeps=False):
                    for name in self.values(act.bucket)[2]:
                        self._set(one, END, (one.round, act.part, name), NOTHING)
                case Load(fetch=True):
                    self._arrive(one, START, act.part, act.stage, act.count, self.loaded(act.stage), message=False)
                case Update():
                    self._pack(one, act.bucket, act.part, -1)
        first, (last, act) = len(self.number), instances[-1]
        for key in [key for key in self.progress if key[:2] == (last.round, part_of(act))]:
            self._set(last, END, key, NOTHING)
            del self.progress[key]
        return first

    def _apply(self, one: Instance, act: Apply) -> None:
        """The temporaries of a server's step and its corrections; DynSGD's mean over the workers of a clock is kept
        until the last of them has come."""
        bucket, names = self.program.bucket[act.bucket], {correction.name for correction in act.corrections}
        scratch = max(scratch_bytes(self.graph, bucket, self.on), ("delay" in names) * bucket.size)
        self._set(one, START, (one.round, "", (act.bucket, act.source)), self.bytes_row("workspace", scratch))
        self._set(one, END, (one.round, "", (act.bucket, act.source)), NOTHING)
        if "staleness" in names:
            self.merged[act.bucket, one.round] += 1
            opens = self.merged[act.bucket, one.round] < act.among
            held = self.bytes_row("workspace", bucket.size) if opens else NOTHING
            self._set(one, END, (one.round, "", ("clock", act.bucket)), held)

    @property
    def changes(self) -> ByteSeries:
        """Bytes that each entry allocates, or frees where negative; shape [entries, PURPOSES]."""
        rows, held = np.concatenate(self.rows).reshape(-1, len(PURPOSES)), np.array(self.held)
        found: ByteSeries = rows[held[1:]] - rows[held[self.before]]
        return found

    def _set(self, one: Instance, share: float, key: tuple[int, str, object], row: int) -> None:
        """From this share of an instance's time on, what `key` (round, environment, what) holds is in `row`."""
        self.number.append(one.number)
        self.share.append(share)
        self.before.append(self.now.get(key, 0))
        self.now[key] = len(self.held)
        self.held.append(row)

    def _row(self, course: ByteSeries) -> int:
        self.rows.append(course)
        return len(self.rows) - 1

    def _bytes_row(self, part: str, size: Bytes) -> int:
        return self._row(unit(part) * size)

    def _lifetimes(self, stage: int, batch: int) -> Lifetimes:
        return lifetimes_of(self.program.graph_of(stage, self.graph), batch, self.on is Processor.CARD)

    def _values(self, name: str) -> tuple[int, int, tuple[str, ...]]:
        """(the stage that receives a parcel, its samples, the names of its values)."""
        parcel = self.program.parcel[name]
        names = tuple(name for name, _ in parcel.values)
        return stage_of(names[0]), parcel.batch, names

    def _loaded(self, stage: int) -> tuple[str, ...]:
        """The inputs of a stage that Load brings."""
        inputs, suffix = self.program.graph_of(stage, self.graph).inputs, f">{stage}" if stage >= 0 else ""
        return tuple(n for n, _ in inputs if n.startswith("input.") and n.endswith(suffix))

    def _whole(self, one: Instance, bucket: str, space: Space) -> None:
        """All elements of a bucket of which the rank keeps only its own part."""
        whole = self.program.bucket.get(bucket)
        if whole is not None and not whole.keeps(space):
            part = "parameters" if space is Space.PARAMETER else "buckets"
            self._set(one, START, (0, "", (bucket, space)), self.bytes_row(part, whole.elements * whole.item(space)))

    def _progress(self, round: int, part: str, stage: int, batch: int) -> _Progress:
        key = round, part, stage
        if key not in self.progress:
            self.progress[key] = _Progress(self.lifetimes(stage, batch))
        return self.progress[key]

    def _arrive(
        self, one: Instance, share: float, part: str, stage: int, batch: int, names: tuple[str, ...],
        message: bool = True,
    ) -> None:  # fmt: skip
        """Inputs of a stage are there, brought by a message or made on this rank."""
        progress = self._progress(one.round, part, stage, batch)
        if message:
            progress.waiting += (names,)
        else:
            progress.read += (names,)
        self._set(one, share, (one.round, part, stage), self._idle(progress, stage))

    def _idle(self, progress: _Progress, stage: int) -> int:
        """The row of what a pass holds while none of its segments runs."""
        return self.between(
            stage, progress.lifetimes.batch, progress.position, progress.packed, progress.read, progress.waiting
        )

    def _between(self, stage: int, batch: int, at: int, packed: Bytes, read: _Names, waiting: _Names) -> int:
        found = self.zero.copy()
        found[[ACTIVATIONS, GRADIENTS]] = self.lifetimes(stage, batch).live_bytes[1][at]
        found[GRADIENTS] -= packed
        found[ACTIVATIONS] += sum(int(self.inputs(stage, batch, names)[at]) for names in read)
        found[MESSAGES] += sum(int(self.inputs(stage, batch, names)[at]) for names in waiting)
        return self._row(found)

    def _compute(self, one: Instance, act: Compute) -> None:
        segment = self.program.segment[act.segment]
        progress = self._progress(one.round, act.part, segment.stage, segment.batch)
        progress.read, progress.waiting = (*progress.read, *progress.waiting), ()
        key, last = (one.round, act.part, segment.stage), len(self.held)
        shares, rows = self.during(act.segment, progress.read, progress.packed)
        if rows:
            self.number += [one.number] * len(rows)
            self.share += shares
            self.before += [self.now.get(key, 0), *range(last, last + len(rows) - 1)]
            self.held += rows
            self.now[key] = len(self.held) - 1
        progress.position = segment.stop
        self._set(one, END, key, self._idle(progress, segment.stage))
        near: dict[int, list[str]] = {}
        for name, size in progress.lifetimes.sent(segment.start, segment.stop):
            if (act.part, name) in self.sent:
                self._set(one, END, (one.round, act.part, name), self.bytes_row("messages", size))
            else:
                near.setdefault(stage_of(name), []).append(name)
        for stage, names in near.items():
            self._arrive(one, END, act.part, stage, segment.batch, tuple(names), message=False)

    def _during(self, name: str, read: _Names, packed: Bytes) -> tuple[list[float], list[int]]:
        """(shares of a segment's time, the rows of what is held from then on), one for each interval of the segment."""
        shares, course = self.course(name, read)
        held = course.copy()
        held[:, GRADIENTS] -= packed
        return shares, [self._row(row) for row in held]

    def _course(self, name: str, read: _Names) -> tuple[list[float], ByteSeries]:
        """(shares of a segment's time, bytes held from then on before anything was packed), the latter of shape
        [intervals, PURPOSES]."""
        segment = self.program.segment[name]
        start, stop = segment.start, segment.stop
        held = np.zeros((stop - start, len(PURPOSES)), np.int64)
        held[:, [ACTIVATIONS, GRADIENTS]] = self.lifetimes(segment.stage, segment.batch).live_bytes[0][start:stop]
        held[:, WORKSPACE] = self.working(segment.stage, segment.batch)[start:stop]
        for names in read:
            held[:, ACTIVATIONS] += self.inputs(segment.stage, segment.batch, names)[start:stop]
        kept = highest(held.sum(axis=1), INTERVALS)
        return [i / (stop - start) for i in kept], held[kept]

    def _working(self, stage: int, batch: int) -> ByteSeries:
        """What each operator of a stage takes for itself; shape [operators]."""
        graph = self.lifetimes(stage, batch).graph
        if self.on is Processor.CARD:
            return self.spaces.of(graph, batch)
        return np.array([working_bytes(graph, each, batch, self.on) for each in graph.operators], np.int64)

    def _pack(self, one: Instance, bucket: str, part: str, stage: int) -> None:
        """The gradients of a bucket are free once they are copied, or applied directly."""
        progress = self.progress.get((one.round, part, stage))
        if progress is not None:
            progress.packed += self.released(stage, progress.lifetimes.batch, bucket)
            self._set(one, END, (one.round, part, stage), self._idle(progress, stage))

    def _released(self, stage: int, batch: int, bucket: str) -> Bytes:
        """Bytes of gradients that are free once a bucket is packed."""
        last = [piece.parameter for piece in self.program.bucket[bucket].pieces if piece.last]
        return sum(self.lifetimes(stage, batch).released(parameter) for parameter in last)


def part_of(act: Act) -> str:
    """The environment that an act uses, if any."""
    return str(getattr(act, "part", ""))


def stage_of(name: str) -> int:
    """The stage whose input a value of this name is."""
    return int(name.rsplit(">", 1)[1])
