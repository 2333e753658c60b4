"""Ranks in processes of their own, over torch.distributed (gloo or NCCL).

Collectives of what lies on an accelerator are NCCL's. Messages are not: NCCL matches those of two ranks by their order
and knows no tags, while lanes send side by side; they go over gloo, by way of the host's memory.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist

from partita.cost.rings import bytes_sent
from partita.program.layout import widest
from partita.program.space import Kind
from partita.transport.channel import Channel
from partita.transport.hops import by_schedule
from partita.transport.operations import LinkedMessage, StagedMessage, StreamCollective, Work
from partita.transport.transport import PeerGone, Pending, Steps, Tags
from partita.transport.ways import Ways, link, open_ways, ways_here
from partita.units import Bytes, Seconds
from partita.wire.algorithms import BACKEND, schedule_of
from partita.wire.schedule import even_edges, in_halves


@dataclass
class Processes:
    """The Transport of this process. Every rank must be made with the same `groups`, in the same order: one for each
    lane and set of ranks, so that the collectives of a lane keep their order and overtake those of others.

    Counts the payload that is handed to the transport: `sent` bytes, as the algorithms of the backends move them.
    """

    rank: int
    groups: dict[tuple[str, tuple[int, ...]], Any] = field(default_factory=dict)
    sent: int = 0
    ways: Ways = field(default_factory=ways_here)
    links: dict[int, Ways] = field(default_factory=dict)
    channels: dict[int, Channel] = field(default_factory=dict)
    tags: Tags = field(default_factory=Tags)
    _counting: threading.Lock = field(default_factory=threading.Lock)

    def count(self, size: Bytes) -> None:
        """Add to what was `sent`, whole also where lanes send side by side."""
        with self._counting:
            self.sent += size

    def link(self, peer: int, store: Any, timeout: Seconds) -> None:
        """Messages to and from a peer that may go away, and come back, pass through groups of these two alone, which
        both ends make at the same time, anew for each time that it is back."""
        self.links[peer] = link(store, self.rank, peer, timeout)

    def _over_link(self, peer: int, act: str, tensor: torch.Tensor, key: str) -> Pending:
        try:
            work = self.links[peer].start(act, tensor, self.rank, peer, self.tags.of(key, peer))
        except RuntimeError as error:
            raise PeerGone(f"rank {peer} is gone ({error})", rank=peer) from error
        return LinkedMessage(work, peer)

    def join(self, groups: list[tuple[str, tuple[int, ...]]], timeout: Seconds, *, messages: bool) -> None:
        """Make the process groups that are not there yet and, for `messages`, a connection for each way; every rank of
        the world must call it alike."""
        if messages:
            self.ways = open_ways(timeout)
        for lane, group in groups:
            if (lane, group) not in self.groups:
                self.groups[lane, group] = dist.new_group(list(group), timeout=timedelta(seconds=timeout))

    def collective(
        self, kind: Kind, tensor: torch.Tensor, group: tuple[int, ...], lane: str, key: str, round: int,
        edges: tuple[int, ...] = (),
    ) -> Pending | Steps:  # fmt: skip
        """Start a collective; see Transport."""
        among, place = self.groups[lane, group], group.index(self.rank)
        if kind in (Kind.REDUCE_SCATTER, Kind.ALL_GATHER) and tensor.is_cpu:
            # gloo's own reduce-scatter is an all-reduce, of twice the bytes, and its gather wants equal parts
            ring, parts = schedule_of(kind, BACKEND, len(group)), edges or even_edges(tensor.numel(), len(group))
            schedule, cuts = in_halves(ring, parts, widest(parts) * tensor.element_size())
            return by_schedule(self, schedule, tensor, group, key, round, edges=cuts)
        self.count(bytes_sent(kind, tensor.numel(), tensor.element_size(), len(group), edges)[place])
        flying = Work if tensor.is_cpu else StreamCollective
        if kind is Kind.ALL_REDUCE:
            return flying(dist.all_reduce(tensor, group=among, async_op=True))
        if kind is Kind.BROADCAST:
            return flying(dist.broadcast(tensor, group[0], group=among, async_op=True))
        return flying(_native(kind, tensor, edges, place, among))

    def send(self, tensor: torch.Tensor, to: int, key: str, round: int) -> Pending:
        """Start sending; see Transport."""
        self.count(tensor.numel() * tensor.element_size())
        tensor = tensor.cpu()
        if to in self.channels:
            return self.channels[to].start("send", tensor, key, round)
        if to in self.links:
            return self._over_link(to, "send", tensor, key)
        return Work(self.ways.start("send", tensor, self.rank, to, self.tags.of(key, to)))

    def receive(self, tensor: torch.Tensor, source: int, key: str, round: int) -> Pending:
        """Start receiving; see Transport."""
        host = tensor if tensor.is_cpu else torch.empty_like(tensor, device="cpu")
        pending: Pending
        if source in self.channels:
            pending = self.channels[source].start("recv", host, key, round)
        elif source in self.links:
            pending = self._over_link(source, "recv", host, key)
        else:
            pending = Work(self.ways.start("recv", host, self.rank, source, self.tags.of(key, source)))
        return pending if host is tensor else StagedMessage(pending, host, tensor)


def _native(kind: Kind, tensor: torch.Tensor, edges: tuple[int, ...], place: int, group: Any) -> Any:
    """A reduce-scatter or all-gather of the backend, as one operation for equal parts and part by part for others."""
    parts = [tensor[a:b] for a, b in pairwise(edges)]
    equal = len({len(part) for part in parts}) == 1
    if kind is Kind.ALL_GATHER:
        if equal:
            return dist.all_gather_into_tensor(tensor, parts[place], group=group, async_op=True)
        return dist.all_gather(parts, parts[place], group=group, async_op=True)
    if equal:
        return dist.reduce_scatter_tensor(parts[place], tensor, group=group, async_op=True)
    return dist.reduce_scatter(parts[place], parts, group=group, async_op=True)


def send_tensor(tensor: torch.Tensor, to: int) -> None:
    """Send a tensor that nobody else sends at the same time, and wait until it is gone."""
    dist.send(tensor.cpu(), to)


def receive_tensor(tensor: torch.Tensor, source: int) -> None:
    """Receive into a tensor what `send_tensor` sent, and wait for it."""
    host = tensor if tensor.is_cpu else torch.empty_like(tensor, device="cpu")
    dist.recv(host, source)
    if host is not tensor:
        tensor.copy_(host)
