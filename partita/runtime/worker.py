"""The worker: each lane of a rank is a generator that yields what it waits for.

Two drivers advance the lanes. `drive` gives lanes threads, but for those that the leading one takes along.
`interleaving.advance` runs all lanes of all ranks in one thread and picks, from a seed, any lane whose wait is over.
What the lanes do is the same.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Sequence
from typing import Final

import torch

from partita.errors import RunHung
from partita.program.instruction import Compute, Instruction, Load
from partita.program.program import Lane, Policy
from partita.program.timeline import Span
from partita.runtime.acts import carry_out
from partita.runtime.ahead import Ahead
from partita.runtime.beside import LaneRun, taken_along
from partita.runtime.brake import RoundWait
from partita.runtime.device import CPU, on
from partita.runtime.dispatch import Dispatch, dispatch_of, until
from partita.runtime.leg import Interval
from partita.runtime.membership import AbsenceWait, lane_over, lost, stale
from partita.runtime.rank import Rank
from partita.runtime.waits import Posted, StartWait, skips
from partita.transport.transport import Pending, Steps
from partita.units import Seconds

Record = Callable[[int], bool]
Begin = Callable[[Rank, Instruction, int], Pending | Steps | None]
FAILURE_INTERVAL: Final[Seconds] = 0.05  # between looks whether a lane has failed


def lanes(rank: Rank, interval: Interval, record: Record) -> dict[str, LaneRun]:
    """A generator for each lane, or for each slot of a lane that chooses (`runtime/dispatch.py`), over the rounds of
    `interval`; with `drain` also over the rounds that apply what is in flight after it."""
    found: dict[str, LaneRun] = {}
    rank.board.stop, rank.board.watchers, rank.then = interval.stop, {}, {}
    for lane in rank.role.lanes:
        rank.going.add(lane.name)
        if lane.policy is Policy.ORDER:
            found[lane.name] = _until_over(rank, lane, _in_order(rank, lane, interval, record))
            continue
        dispatch, fresh = dispatch_of(rank, lane, interval), rank.role.on(lane.name)
        dispatch.busy = 1
        for n in range(dispatch.count):
            run = _as_ready(rank, dispatch, interval, record, () if n else fresh)
            found[f"{lane.name}~{n}" if n else lane.name] = _until_over(rank, lane, run)
    return found


def _until_over(rank: Rank, lane: Lane, run: LaneRun) -> LaneRun:
    yield from run
    lane_over(rank, lane.name)


def _in_order(rank: Rank, lane: Lane, interval: Interval, record: Record) -> LaneRun:
    instructions, board = rank.role.on(lane.name), rank.board
    begin, last = Ahead(rank, instructions, interval).start, {i.name: interval.last(i) for i in instructions}
    parked = AbsenceWait(rank, lane.name, frozenset(i.name for i in instructions))
    for round in range(
        interval.start, interval.stop + (rank.program.drain if interval.drain else bool(interval.ahead))
    ):
        if round < interval.stop and (yield from _ends(rank, round)):
            return
        for instruction in instructions:
            while round < last[instruction.name] and not stale(rank, instruction, round):
                if parked.idle:
                    yield parked
                    if parked.idle:
                        return
                elif instruction.name in board.void:
                    board.finish(instruction.name, round)
                else:
                    yield from instance(rank, instruction, round, record, begin=begin)
                if board.failure is not None:
                    return
        if lane.name == rank.role.leading and (round < interval.stop or interval.drain):
            _round_ends(rank, round)


def _round_ends(rank: Rank, round: int) -> None:
    rank.ends.append((rank.clock(True), time.process_time()))
    if rank.device == CPU:  # a card would have to be waited for
        for kept in (rank.losses, rank.weights):  # a tensor takes half a kilobyte a step, for as long as a run lasts
            for step in range(rank.step(round, 0), rank.step(round + 1, 0)):
                if step in kept:
                    kept[step] = float(kept[step])
    rank.round_ends(round)


def _as_ready(
    rank: Rank, dispatch: Dispatch, interval: Interval, record: Record, fresh: Sequence[Instruction]
) -> LaneRun:
    """One slot of a lane that chooses. The first slot queues the lane's instructions, `fresh`. Each instruction goes
    through its rounds at its own pace; a free slot takes one that is ready."""
    for instruction in fresh:
        yield from _next(rank, dispatch, instruction, interval.start, interval)
    if fresh:
        dispatch.rest()
    while True:
        if not dispatch.clear():
            yield dispatch
        if rank.board.failure is not None or dispatch.over():
            return
        if taken := dispatch.take():
            instruction, round, posted = taken
            yield from instance(rank, instruction, round, record, posted)
            yield from until(rank, instruction, round)
            if rank.board.failure is not None:
                return
            dispatch.landed(instruction)
            yield from _next(rank, dispatch, instruction, rank.board.done.get(instruction.name, 0), interval)
            dispatch.rest()
            if dispatch.lane.name == rank.role.leading and dispatch.passed(round):
                _round_ends(rank, round)


def _next(rank: Rank, dispatch: Dispatch, instruction: Instruction, round: int, interval: Interval) -> LaneRun:
    """Queue the next instance of an instruction, if there is one."""
    if round < interval.last(instruction) and not (round < interval.stop and (yield from _ends(rank, round))):
        dispatch.put(instruction, round)


def _ends(rank: Rank, round: int) -> Generator[Pending, None, bool]:
    """Whether the run is stopped before this round; waits while that is not decided yet."""
    first = rank.step(round, 0)
    stop = first + rank.program.steps
    while not rank.brake.passes(first, stop):
        if rank.brake.over(first):
            return True
        yield RoundWait(rank.brake, first, stop)
    return False


def instance(
    rank: Rank, instruction: Instruction, round: int, record: Record, posted: Posted | None = None,
    begin: Begin = carry_out,
) -> LaneRun:  # fmt: skip
    """One instance of an instruction: wait for its predecessors, start it, wait for its end, note its span and mark it
    as done.

    It is not marked where a peer's absence leaves it out before it starts, or while it waits.
    """
    turn = StartWait(rank, instruction, round, posted)
    while not turn.open():
        yield turn
        if rank.board.failure is not None or instruction.name in rank.board.void:
            return
    if rank.board.failure is not None or stale(rank, instruction, round):
        return
    noted = record(round)
    start = rank.clock(noted)
    pending: Pending | Steps | None = posted.pending if posted else None
    if skips(rank, instruction, round):
        if part := getattr(instruction.act, "part", ""):
            rank.leave(round, part)
    elif posted is None:
        rank.at[instruction.name] = instruction.lane, round, start, False
        pending = begin(rank, instruction, round)
        if pending is not None:
            rank.at[instruction.name] = instruction.lane, round, start, True
            yield from pending if isinstance(pending, Generator) else (pending,)
        elif isinstance(instruction.act, Compute | Load):
            rank.pace.note(type(instruction.act).__name__, round, instruction.name, time.perf_counter() - start)
    if lost(rank, instruction, pending):
        rank.at.pop(instruction.name, None)
        return
    start = rank.early.pop((instruction.name, round), start)
    if noted:
        kind, end = type(instruction.act).__name__, rank.clock(pending is None)
        rank.spans.append(Span(rank.rank, instruction.lane, instruction.name, kind, round, start, end))
    for start_next in rank.then.get(instruction.name, ()):
        start_next(rank, round)
    rank.board.finish(instruction.name, round)
    rank.at.pop(instruction.name, None)


def drive(rank: Rank, interval: Interval, record: Record, timeout: Seconds) -> None:
    """Advance every lane over the rounds of `interval`: the leading lane in this thread, together with those that need
    no thread (`runtime/beside.py`), each of the others in a thread of its own.

    Raises what the first failing lane raised; RunHung where a lane waited for more than `timeout` seconds.
    """
    runs, mine = lanes(rank, interval, record), rank.role.leading
    taken_along(rank, runs)
    threads = [
        threading.Thread(target=_carry, args=(rank, name, run, timeout), name=name, daemon=True)
        for name, run in runs.items()
        if name != mine
    ]
    for thread in threads:
        thread.start()
    _carry(rank, mine, runs[mine], timeout)
    for thread in threads:
        while thread.is_alive() and rank.board.failure is None:  # who has failed says so, though others still wait
            thread.join(FAILURE_INTERVAL)
    if rank.board.failure is not None:
        raise rank.board.failure
    rank.clock.settle(rank.spans, rank.ends)


def _carry(rank: Rank, lane: str, run: LaneRun, timeout: Seconds) -> None:
    try:
        with torch.no_grad(), on(rank.device):
            for pending in run:
                if not pending.block(timeout):
                    raise RunHung(
                        f"rank {rank.rank} waited {timeout:.0f} s in lane {lane} for {pending}; "
                        "look at the ranks that it waits for, or raise --timeout",
                        rank=rank.rank,
                    )
    except BaseException as error:
        rank.board.fail(error)
