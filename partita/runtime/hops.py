"""A rank's part in a collective that goes by a schedule: hop after hop over the transport's messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from partita.runtime.transport import Pending, Steps, Transport
from partita.wire.schedule import Hop, Schedule, edges_of


class Code(Protocol):
    """A codec for hops. The bytes of a part of n numbers are as many on both ends."""

    def size(self, elements: int) -> int:
        """Bytes of an encoded part."""

    def encode(self, values: torch.Tensor, message: torch.Tensor, part: int, step: int) -> None:
        """Fill `message` with what stands for `values`."""

    def decode(self, message: torch.Tensor, values: torch.Tensor, *, add: bool) -> None:
        """Put what a message says into `values`, or add it."""


def by_schedule(
    transport: Transport, schedule: Schedule, flat: torch.Tensor, group: Sequence[int], key: str, round: int,
    code: Code | None = None,
) -> Steps:  # fmt: skip
    """The collective on `flat` in place, among `group`, a message after the other.

    In each step all messages are started, receives first, as what tells a peer that it may send would queue up behind
    what is sent to it; then they are awaited, then added in the schedule's order. A result that is encoded is
    encoded once; its owner keeps what others will decode, and these hand the bytes on.
    """
    me, edges = group.index(transport.rank), edges_of(flat.numel(), schedule.parts)
    parts = Parts(flat, edges, code)
    for number, step in enumerate(schedule.steps):
        hops = [h for h in step if me in (h.source, h.target) and edges[h.stop] > edges[h.start]]
        started: list[Pending] = []
        landings: list[Callable[[], None]] = []
        for hop in hops:
            if hop.target == me:
                message, land = parts.incoming(hop)
                started.append(transport.receive(message, group[hop.source], f"{key}/{number}", round))
                landings.append(land)
        for hop in hops:
            if hop.source == me:
                message = parts.outgoing(hop, number)
                started.append(transport.send(message, group[hop.target], f"{key}/{number}", round))
        yield from started
        for land in landings:
            land()


class Parts:
    """The parts of a vector, and what encoded results have passed here; private to one collective."""

    def __init__(self, flat: torch.Tensor, edges: Sequence[int], code: Code | None) -> None:
        self.flat, self.edges, self.code = flat, edges, code
        self.results: dict[int, torch.Tensor] = {}

    def part(self, start: int, stop: int) -> torch.Tensor:
        return self.flat[self.edges[start] : self.edges[stop]]

    def outgoing(self, hop: Hop, step: int) -> torch.Tensor:
        """What a hop sends."""
        if self.code is None:
            return self.part(hop.start, hop.stop)
        messages = [self._encoded(part, hop.add, step) for part in range(hop.start, hop.stop)]
        return messages[0] if len(messages) == 1 else torch.cat(messages)

    def _encoded(self, part: int, add: bool, step: int) -> torch.Tensor:
        assert self.code is not None
        if not add and part in self.results:
            return self.results[part]
        values = self.part(part, part + 1)
        message = torch.empty(self.code.size(values.numel()), dtype=torch.uint8, device=values.device)
        if values.numel():
            self.code.encode(values, message, part, step)
            if not add:
                self.code.decode(message, values, add=False)
        if not add:
            self.results[part] = message
        return message

    def incoming(self, hop: Hop) -> tuple[torch.Tensor, Callable[[], None]]:
        """Where a hop's message goes, and what is to be done once it is there."""
        values = self.part(hop.start, hop.stop)
        if self.code is None:
            message = torch.empty_like(values)
            return message, lambda: void(values.add_(message) if hop.add else values.copy_(message))
        sizes = [self.code.size(self.edges[p + 1] - self.edges[p]) for p in range(hop.start, hop.stop)]
        message = torch.empty(sum(sizes), dtype=torch.uint8, device=values.device)
        return message, lambda: self._land(hop, torch.split(message, sizes))

    def _land(self, hop: Hop, messages: Sequence[torch.Tensor]) -> None:
        assert self.code is not None
        for part, message in zip(range(hop.start, hop.stop), messages, strict=True):
            values = self.part(part, part + 1)
            if values.numel():
                self.code.decode(message, values, add=hop.add)
            if not hop.add:
                self.results[part] = message


def void(_: object) -> None:
    """Drop a result."""
