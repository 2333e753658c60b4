"""Ranks in processes of their own, over torch.distributed (gloo or NCCL)."""

from __future__ import annotations

import threading
import time
import zlib
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from partita.cost.costs import ring_bytes
from partita.errors import LoweringError
from partita.program.instruction import Kind
from partita.runtime.transport import Pending
from partita.units import Seconds


@dataclass
class Work:
    """A started operation of torch.distributed.

    gloo's messages never say that they are complete until they are waited for, so who asks `ready` starts a waiter.
    """

    work: Any
    waiter: threading.Thread | None = None

    def ready(self) -> bool:
        if self.waiter is None:
            self.waiter = threading.Thread(target=self.work.wait, daemon=True)
            self.waiter.start()
        return not self.waiter.is_alive()

    def block(self, timeout: Seconds) -> bool:
        self.work.wait(timedelta(seconds=timeout))
        return True


@dataclass
class Processes:
    """The Transport of this process. Every rank must be made with the same `groups`, in the same order: one for each
    lane and set of ranks, so that the collectives of a lane keep their order and overtake those of others.

    Counts the payload that is handed to the transport: `sent` bytes, as the algorithms of the backends move them.
    """

    rank: int
    groups: dict[tuple[str, tuple[int, ...]], Any] = field(default_factory=dict)
    sent: int = 0

    def join(self, groups: list[tuple[str, tuple[int, ...]]], timeout: Seconds) -> None:
        """Make the process groups that are not there yet; every rank of the world must call it alike."""
        for lane, group in groups:
            if (lane, group) not in self.groups:
                self.groups[lane, group] = dist.new_group(list(group), timeout=timedelta(seconds=timeout))

    def collective(
        self, kind: Kind, tensor: torch.Tensor, group: tuple[int, ...], lane: str, key: str, round: int
    ) -> Pending:
        if kind is Kind.ALL_REDUCE:
            self.sent += ring_bytes(tensor.numel(), tensor.element_size(), len(group))[group.index(self.rank)]
            return Work(dist.all_reduce(tensor, group=self.groups[lane, group], async_op=True))
        if kind is Kind.BROADCAST:
            return Work(dist.broadcast(tensor, group[0], group=self.groups[lane, group], async_op=True))
        raise LoweringError(f"{kind} is not carried out over torch.distributed yet; use all_reduce")

    def send(self, tensor: torch.Tensor, to: int, key: str, round: int) -> Pending:
        self.sent += tensor.numel() * tensor.element_size()
        return Work(dist.isend(tensor, to, tag=tag_of(key)))

    def receive(self, tensor: torch.Tensor, source: int, key: str, round: int) -> Pending:
        return Work(dist.irecv(tensor, source, tag=tag_of(key)))


def tag_of(key: str) -> int:
    """A message tag that is the same in every process."""
    return zlib.crc32(key.encode()) & 0x7FFFFFFF


def clock_offset(transport_rank: int, rounds: int = 8) -> Seconds:
    """Seconds to add to this process's clock to read rank 0's, from the quickest of `rounds` exchanges."""
    best, offset = float("inf"), 0.0
    stamp = torch.zeros(1, dtype=torch.float64)
    for peer in range(1, dist.get_world_size()):
        for _ in range(rounds):
            if transport_rank == 0:
                dist.recv(stamp, peer)
                stamp[0] = time.perf_counter()
                dist.send(stamp, peer)
            elif transport_rank == peer:
                before = time.perf_counter()
                dist.send(stamp, 0)
                dist.recv(stamp, 0)
                after = time.perf_counter()
                if after - before < best:
                    best, offset = after - before, float(stamp[0]) - (before + after) / 2
    return offset
