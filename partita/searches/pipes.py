"""What bounds know of points of the grid whose pipes are equally long: arrays by name, for many points at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from typing import Any, Final, TypeVar

import numpy as np

from partita.arrays import Flags, Ints, Reals
from partita.lowering.schedules import under_way
from partita.plan.schedule import Order
from partita.searches.space import in_order
from partita.units import Seconds

ALIKE: Final = ("pipe", "chunks", "saved")  # of all points whose pipes are found together
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class BlockState:
    """The trained parameters of each block: bytes, how many tensors they are, and bytes of those that no other block
    reads (`own`); every array has shape [blocks]."""

    size: Reals
    tensors: Reals
    own: Reals


@dataclass(frozen=True, eq=False)
class BlockWork:
    """The work of each block; every array has shape [blocks].

    forward, backward  core-seconds of its passes
    returning          of backward, what the block before waits for
    remade             of forward, what every stage makes for itself
    again              what is computed again where the stage has the next block too
    there, back        bytes of messages to the next block and from it
    """

    forward: Reals
    backward: Reals
    returning: Reals
    remade: Reals
    again: Reals
    there: Reals
    back: Reals


@dataclass(frozen=True, eq=False)
class BlockBytes:
    """The memory of each block for a microbatch, in bytes; every array has shape [blocks].

    kept                      what backward reads
    deferred                  what gradients of weights that are put off read
    fullest, with_gradients   the fullest moment of a pass, without gradients of weights and with them
    ready                     gradients of weights that are there when backward of the block before begins
    """

    kept: Reals
    deferred: Reals
    fullest: Reals
    with_gradients: Reals
    ready: Reals


@dataclass(frozen=True, eq=False)
class PlaceHardware:
    """The devices and links of each place that a pipe may have; every array has shape [places].

    speeds, peaks                  core-seconds a second of the place's fastest replica: for good, and after a rest
    message, bandwidth             to the next place: seconds before a message's first byte, bytes a second (the last
                                   place: infinite, 0)
    round_message, round_bandwidth the same to the first place, for stages that go round
    width                          the ring of its replicas: bytes a second
    whole, halves                  least seconds that an all-reduce of these waits; the same in two, scatter and gather
    light                          least part of a ring's bytes that this all-reduce sends
    """

    speeds: Reals
    peaks: Reals
    message: Reals
    bandwidth: Reals
    round_message: Reals
    round_bandwidth: Reals
    width: Reals
    whole: Reals
    halves: Reals
    light: Reals

    def first(self, pipe: int) -> PlaceHardware:
        """The first `pipe` places."""
        return entries(self, slice(pipe))


@dataclass(frozen=True, eq=False)
class Pipes:
    """Points whose pipes have `pipe` places of `chunks` stages each. Ports may send a burst for `saved` seconds.

    Shape [points]
        data, m, schedule, rule  replicas, microbatches, and positions in SCHEDULES and RECOMPUTES
        first                    the place from which on each waits for the one before
    Shape [points, chunks, places]
        starts                   the first block of each stage
        forward, backward, late  core-seconds of a microbatch's passes; late: of backward, what no place waits for
        state, tensors, own      bytes of trained parameters, how many tensors they are, bytes that no other place has
    Shape [points, places]
        ahead, back              seconds of a microbatch from place `first` to each one, and home
        hardware                 the devices and links of each place
    """

    pipe: int
    chunks: int
    saved: Seconds
    data: Ints
    m: Ints
    schedule: Ints
    rule: Ints
    starts: Ints
    forward: Reals
    backward: Reals
    late: Reals
    state: Reals
    tensors: Reals
    own: Reals
    ahead: Reals
    back: Reals
    hardware: PlaceHardware
    first: Ints

    def each(self, at: Ints) -> Pipes:
        """The points `at`, in this order."""
        return entries(self, at)

    def ordered(self, order: Order) -> Flags:
        """The points whose passes are in an order."""
        return in_order(self.schedule, order)


@dataclass(frozen=True, eq=False)
class StageMemory:
    """Bytes of a microbatch in each stage; every array has shape [points, chunks, places].

    kept                     from its forward to its backward pass
    fullest, with_gradients  at the fullest moment of the backward pass: where gradients are taken away as they are
                             made, and where they stay to its end
    deferred                 from its backward pass to the gradients of weights that are put off (W)
    """

    kept: Reals
    fullest: Reals
    with_gradients: Reals
    deferred: Reals


def entries(arrays: T, at: Any) -> T:
    """A dataclass of arrays, and of such dataclasses, with the entries `at` of each array along the first axis."""
    made: Any = arrays
    own = {one.name: getattr(made, one.name) for one in fields(made) if one.name not in ALIKE}
    found: T = replace(made, **{name: entries(v, at) if is_dataclass(v) else v[at] for name, v in own.items()})
    return found


def stacked(several: Sequence[T]) -> T:
    """Several dataclasses of arrays as one, with a new first axis: its entry k is the k-th of them."""
    made: Any = several[0]
    names = (one.name for one in fields(made))
    found: T = replace(made, **{name: np.array([getattr(part, name) for part in several]) for name in names})
    return found


@cache
def chunk_after(pipe: int, m: int, chunks: int) -> Ints:
    """For each place the chunk whose forward pass follows the first backward pass, if it is another one; else -1."""
    second = (chunks - 1) * pipe + 2 * (pipe - 1 - np.arange(pipe)) + 1
    chunk = second // pipe % chunks
    return np.where((chunks > 1) & (second < m * chunks) & (chunk < chunks - 1), chunk, -1)


def many_under_way(order: Order, pipe: int, m: int, chunks: int) -> Ints:
    """Microbatches under way when the first backward pass begins, shape [chunks, places]."""
    return np.array([under_way(order, pipe, rank, m, chunks) for rank in range(pipe)]).T
