"""What bounds know of points of the grid whose pipes are equally long: arrays by name, for many points at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
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
    """Of the trained parameters of each block their bytes (`size`), how many `tensors` they are, and bytes of those
    that no other block reads (`own`)."""

    size: Reals
    tensors: Reals
    own: Reals


@dataclass(frozen=True, eq=False)
class BlockWork:
    """Of each block: seconds of `forward`, `backward`, of what of that is `returning`, and of what every stage makes
    for itself (`remade`), and of what a stage computes again where the next block is in it as well (`again`); bytes of
    messages to the next block (`there`) and from it (`back`)."""

    forward: Reals
    backward: Reals
    returning: Reals
    remade: Reals
    again: Reals
    there: Reals
    back: Reals


@dataclass(frozen=True, eq=False)
class BlockBytes:
    """Of each block: bytes kept, that wait for what is put off, of the fullest pass without and with gradients, and
    of gradients that are `ready` when that of the block before begins."""

    kept: Reals
    deferred: Reals
    fullest: Reals
    with_gradients: Reals
    ready: Reals


@dataclass(frozen=True, eq=False)
class Neighbours:
    """Of each place that pipes may have: the `speeds` of the fastest replicas, and the `peaks` of those that have
    rested; seconds before the first byte of a `message` to the next place and its bytes a second (`bandwidth`; from the
    last one none), and the same of one to the first place (`round_message`, `round_bandwidth`); between replicas that
    are next to each other bytes a second (`width`) and seconds of `way`, the `machines` that they are on, the least
    seconds that a sum of theirs waits, `whole` or as its two `halves`, and the least part of a ring's bytes that it
    carries (`light`)."""

    speeds: Reals
    peaks: Reals
    message: Reals
    bandwidth: Reals
    round_message: Reals
    round_bandwidth: Reals
    width: Reals
    way: Reals
    machines: Reals
    whole: Reals
    halves: Reals
    light: Reals

    def first(self, pipe: int) -> Neighbours:
        """Those of the first places."""
        return entries(self, slice(pipe))


@dataclass(frozen=True, eq=False)
class Pipes:
    """Points whose pipes have `pipe` places of `chunks` stages each; entry k of `data`, `m` (microbatches), `schedule`
    and `rule` (places in SCHEDULES and RECOMPUTES) is the k-th point's. Ports have `saved` up so many seconds.

    Shape [points, chunks, places]: the first block of each stage; core-seconds of a microbatch's passes, `late` those
    of backward that no other place waits for; bytes of parameters, how many `tensors` they are, and bytes of those that
    are the place's `own`, wherever it is cut. Shape [points, places]: `ahead` and `back`, seconds of a microbatch's way
    through all places from the `first` to each one, forward and home; and what `Neighbours` has.
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
    speeds: Reals
    peaks: Reals
    ahead: Reals
    back: Reals
    width: Reals
    way: Reals
    machines: Reals
    whole: Reals
    halves: Reals
    light: Reals
    first: Ints

    def each(self, at: Ints) -> Pipes:
        """Those of these entries, in this order."""
        return entries(self, at)

    def ordered(self, order: Order) -> Flags:
        """The points whose passes are in an order."""
        return in_order(self.schedule, order)


@dataclass(frozen=True, eq=False)
class StageMemory:
    """Bytes of a microbatch, shape [points, chunks, places]: that wait for backward, that the fullest pass needs, the
    same with gradients that nobody takes before it ends, and `deferred` those that wait for what is late."""

    kept: Reals
    fullest: Reals
    with_gradients: Reals
    deferred: Reals


def entries(arrays: T, at: Any) -> T:
    """A dataclass of arrays, with these entries of each of them."""
    made: Any = arrays
    names = (one.name for one in fields(made) if one.name not in ALIKE)
    found: T = replace(made, **{name: getattr(made, name)[at] for name in names})
    return found


def stacked(several: Sequence[T]) -> T:
    """Equally long dataclasses of arrays as one, whose entry k is the k-th."""
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
