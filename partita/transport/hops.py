"""A collective that follows a schedule of the wire room, carried out by one rank as messages of its transport.

reduce-scatter in halves     first half of each part    ===|+|   ===|+|        = a message on its way, + its addition
                             second half                   ===|+|   ===|+|
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from typing import Protocol

import torch

from partita.transport.transport import Pending, Steps, Transport
from partita.wire.schedule import Hop, Schedule, even_edges, own_steps, strands_of


class Code(Protocol):
    """A codec that encodes each hop. Sender and receiver derive the length of a message from the number of elements."""

    def size(self, elements: int) -> int:
        """Bytes of a message for `elements` elements."""

    def encode(self, values: torch.Tensor, message: torch.Tensor, part: int) -> None:
        """Encode `values`, which are part `part` of the vector, into `message`."""

    def decode(self, message: torch.Tensor, values: torch.Tensor, *, add: bool) -> None:
        """Decode a message into `values`, or add it to them."""


def by_schedule(
    transport: Transport, schedule: Schedule, flat: torch.Tensor, group: Sequence[int], key: str, round: int,
    code: Code | None = None, edges: Sequence[int] = (),
) -> Steps:  # fmt: skip
    """Carry out a collective among the ranks of `group`, in place on the vector `flat`; yields what it waits for.

    The parts of `flat` lie between `edges` (none: even ones); `key` and `round` name the messages. Strands take turns.
    With a codec, `code`, a final result is encoded once, by its owner, which keeps the decoded values; others forward
    the same bytes, so that all ranks end with the same bits.
    """
    parts, strands = Parts(flat, edges or even_edges(flat.numel(), schedule.parts), code), strands_of(schedule)
    names = [f"{key}~{n}" for n in range(len(strands))] if len(strands) > 1 else [key]
    runs = [
        _stepping(transport, strand, parts, group, name, round) for strand, name in zip(strands, names, strict=True)
    ]
    turns = deque([(run, next(run)) for run in runs])
    while turns:
        run, waits = turns.popleft()
        yield from waits
        if (more := next(run, None)) is not None:
            turns.append((run, more))


def _stepping(
    transport: Transport, schedule: Schedule, parts: Parts, group: Sequence[int], key: str, round: int
) -> Iterator[list[Pending]]:
    """Yields for each step the messages to wait for before the next step, and at the end those that are left.

    Receives are posted before sends of the same step: a backend tells the peer that it may send, and this would queue
    up behind the data that goes to that peer. A receive into a part that this rank has neither sent nor received before
    is posted at the very beginning. Received parts are added in the schedule's order, once no message of the same part
    is still being sent.
    """
    asked = partial(_asked, transport, group, key, round)
    steps = [
        (number, [hop for hop in coming if parts.holds(hop)], [hop for hop in going if parts.holds(hop)])
        for number, coming, going in own_steps(schedule, group.index(transport.rank))
    ]

    early = {
        (number, hop): asked(number, hop, parts.part(hop.start, hop.stop))
        for number, coming, _ in steps
        for hop in coming
        if parts.code is None and (number, hop) in untouched(schedule, hop.target)
    }
    in_flight: list[tuple[Hop, Pending]] = []
    for number, coming, going in steps:
        waits: list[Pending] = []
        landing: list[tuple[Hop, Callable[[], object]]] = []
        for hop in coming:
            if (number, hop) in early:
                waits.append(early[number, hop])
                continue
            message, land = parts.incoming(hop)
            waits.append(asked(number, hop, message))
            landing.append((hop, land))
        for hop in going:
            message = parts.outgoing(hop)
            in_flight.append((hop, transport.send(message, group[hop.target], f"{key}/{number}", round)))
        changed = {part for hop, _ in landing for part in range(hop.start, hop.stop)}
        held = [changed.isdisjoint(range(hop.start, hop.stop)) for hop, _ in in_flight]
        waits += [pending for (_, pending), free in zip(in_flight, held, strict=True) if not free]
        in_flight = [one for one, free in zip(in_flight, held, strict=True) if free]
        yield waits
        for _, land in landing:
            land()
    yield [pending for _, pending in in_flight]


def _asked(
    transport: Transport, group: Sequence[int], key: str, round: int, number: int, hop: Hop, message: torch.Tensor
) -> Pending:  # fmt: skip
    """The message of a hop of step `number`, which is to come into this one."""
    return transport.receive(message, group[hop.source], f"{key}/{number}", round)


@lru_cache(256)
def untouched(schedule: Schedule, rank: int) -> frozenset[tuple[int, Hop]]:
    """(step number, hop) of the hops to a rank that replace parts which no earlier hop of that rank sent or received:
    these may be received directly into the vector, as early as one likes."""
    found, known = set[tuple[int, Hop]](), set[int]()
    for number, coming, going in own_steps(schedule, rank):
        known |= {part for hop in going for part in range(hop.start, hop.stop)}
        found |= {(number, hop) for hop in coming if not hop.add and known.isdisjoint(range(hop.start, hop.stop))}
        known |= {part for hop in coming for part in range(hop.start, hop.stop)}
    return frozenset(found)


class Parts:
    """The parts of a vector, and the encoded `results` that this rank has made or forwarded; private to one
    collective."""

    def __init__(self, flat: torch.Tensor, edges: Sequence[int], code: Code | None) -> None:
        self.flat, self.edges, self.code = flat, edges, code
        self.results: dict[int, torch.Tensor] = {}

    def part(self, start: int, stop: int) -> torch.Tensor:
        """The view of parts `start` to `stop`."""
        return self.flat[self.edges[start] : self.edges[stop]]

    def holds(self, hop: Hop) -> bool:
        """Whether the parts of a hop have any elements."""
        return self.edges[hop.stop] > self.edges[hop.start]

    def outgoing(self, hop: Hop) -> torch.Tensor:
        """The message of a hop from this rank, encoded if there is a codec."""
        if self.code is None:
            return self.part(hop.start, hop.stop)
        messages = [self._encoded(part, hop.add) for part in range(hop.start, hop.stop)]
        return messages[0] if len(messages) == 1 else torch.cat(messages)

    def _encoded(self, part: int, add: bool) -> torch.Tensor:
        assert self.code is not None
        if not add and part in self.results:
            return self.results[part]
        values = self.part(part, part + 1)
        message = torch.empty(self.code.size(values.numel()), dtype=torch.uint8, device=values.device)
        if values.numel():
            self.code.encode(values, message, part)
            if not add:
                self.code.decode(message, values, add=False)
        if not add:
            self.results[part] = message
        return message

    def incoming(self, hop: Hop) -> tuple[torch.Tensor, Callable[[], object]]:
        """(the tensor that a hop's message is received into, a function to call once it has arrived)."""
        values = self.part(hop.start, hop.stop)
        if self.code is None:
            message = torch.empty_like(values)
            return message, partial(values.add_ if hop.add else values.copy_, message)
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
