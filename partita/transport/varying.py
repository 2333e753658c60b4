"""Messages of which only the sender knows the length: a head, whose length both ends know, tells the length of the
body.

sender      head~ body ------------------>      both are sent at once; an empty body is not sent
receiver         head~ <---  body <-------      the body is received once the head has arrived
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from partita.transport.transport import Steps, Transport


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message to a rank."""

    head: torch.Tensor
    body: torch.Tensor
    to: int
    key: str


@dataclass(frozen=True, slots=True)
class Incoming:
    """A message from a rank. `body` is called once `head` has arrived, and returns a buffer for the body."""

    head: torch.Tensor
    body: Callable[[], torch.Tensor]
    source: int
    key: str


def exchanged(transport: Transport, going: Sequence[Outgoing], coming: Sequence[Incoming], round: int) -> Steps:
    """Send and receive messages concurrently; yields what it waits for. Receives are posted first: a backend tells
    the peer that it may send, and this would queue up behind the data that goes to that peer."""
    heads = [transport.receive(one.head, one.source, f"{one.key}~", round) for one in coming]
    sent = []
    for one in going:
        sent.append(transport.send(one.head, one.to, f"{one.key}~", round))
        if one.body.numel():
            sent.append(transport.send(one.body, one.to, one.key, round))
    yield from heads
    rooms = [(one, one.body()) for one in coming]
    yield from [transport.receive(room, one.source, one.key, round) for one, room in rooms if room.numel()]
    yield from sent
