"""Messages of which only their sender knows the length: a head, whose length both ends know, says how long the body is.

sender      head~ body ------------------>      both leave at once; an empty body does not travel
receiver         head~ <---  body <-------      the body is asked for once the head is there
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from partita.runtime.transport import Steps, Transport


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message to a rank."""

    head: torch.Tensor
    body: torch.Tensor
    to: int
    key: str


@dataclass(frozen=True, slots=True)
class Incoming:
    """A message from a rank; `body` is asked once `head` is there, and gives room for what follows it."""

    head: torch.Tensor
    body: Callable[[], torch.Tensor]
    source: int
    key: str


def exchanged(transport: Transport, going: Sequence[Outgoing], coming: Sequence[Incoming], round: int) -> Steps:
    """Send and receive messages side by side, until all have left and all are there. Receives start first, as what
    tells a peer that it may send would queue up behind what is sent to it."""
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
