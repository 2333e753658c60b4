"""Plain data between rank 0 and the others, as JSON in byte tensors: nothing is unpickled."""

from __future__ import annotations

import json
from typing import Any

import torch
import torch.distributed as dist


def gather(body: Any, rank: int, world: int) -> list[Any]:
    """The bodies of all ranks below `world`, in their order, on rank 0; empty on other ranks."""
    if rank:
        _send(body, 0)
        return []
    return [body, *(_receive(peer) for peer in range(1, world))]


def spread(body: Any, rank: int, world: int) -> Any:
    """Rank 0's body, on every rank below `world`."""
    if rank:
        return _receive(0)
    for peer in range(1, world):
        _send(body, peer)
    return body


def _send(body: Any, to: int) -> None:
    text = torch.frombuffer(bytearray(json.dumps(body).encode()), dtype=torch.uint8)
    dist.send(torch.tensor([len(text)]), to)
    dist.send(text, to)


def _receive(source: int) -> Any:
    length = torch.zeros(1, dtype=torch.int64)
    dist.recv(length, source)
    text = torch.zeros(int(length), dtype=torch.uint8)
    dist.recv(text, source)
    return json.loads(text.numpy().tobytes())
