"""Two connections between ranks: one for what goes to higher ranks, and one for what goes to lower ones.

A backend sends nothing until the receiver has said where it goes, and says so on the connection on which it sends:

one for both   rank 0  S0 S1 S2 S3 S4 r0        r0: rank 0 says where R0 goes, behind all that it has begun to send
               rank 1                   R0
one each       rank 0  S0 S1 S2 S3 S4
                       r0
               rank 1    R0

With one for both, a worker that pushed 30 MB to a server got its first weights when the last of these was gone, and a
plan of servers took a fifth longer than its ports did.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist

from partita.transport.loops import woken_in_turn
from partita.transport.store import prefixed
from partita.units import Seconds


@dataclass(frozen=True)
class Ways:
    """Two process groups of the same ranks, or one twice; `two`: of two ranks alone."""

    up: Any
    down: Any
    two: bool = False

    def start(self, act: str, tensor: torch.Tensor, rank: int, peer: int, tag: int) -> Any:
        """Start to `send` from `rank` to `peer`, or to `recv` there what comes from it."""
        upward = (rank < peer) == (act == "send")
        place = int(peer > rank) if self.two else peer
        return getattr(self.up if upward else self.down, act)([tensor], place, tag)


LEAST: Final = timedelta(milliseconds=1)  # torch.distributed counts whole ones, and takes 0 of them for its own limit


def limit_of(seconds: Seconds) -> timedelta:
    """How long an operation of torch.distributed may take, from now on; never so short that it would be no limit."""
    return max(timedelta(seconds=seconds), LEAST)


_OPENED: dict[int, tuple[Any, Ways]] = {}  # by id of the world, which is kept so that no other one has its id


def ways_here() -> Ways:
    """Those between all ranks: the world's own connection, until `open_ways` has made two."""
    world = dist.group.WORLD
    return _OPENED[id(world)][1] if id(world) in _OPENED else Ways(world, world)


def open_ways(timeout: Seconds) -> Ways:
    """Two connections between all ranks, made once, neither of them the world's own, whose threads are woken as whoever
    made it had them woken; every rank of the world must call it."""
    world = dist.group.WORLD
    if id(world) not in _OPENED:
        patience = timedelta(seconds=timeout)
        with woken_in_turn():
            up, down = (dist.new_group(timeout=patience, backend="gloo") for _ in range(2))
        _OPENED[id(world)] = world, Ways(up, down)
    return _OPENED[id(world)][1]


def link(store: Any, rank: int, peer: int, timeout: Seconds) -> Ways:
    """Those between two ranks alone, which both make at the same time."""
    place, patience = int(rank > peer), timedelta(seconds=timeout)
    with woken_in_turn():
        up, down = (dist.ProcessGroupGloo(prefixed(store, way), place, 2, patience) for way in ("up", "down"))
    return Ways(up, down, two=True)
