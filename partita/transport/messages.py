"""Plain data between rank 0 and the others, as JSON in byte tensors: nothing is unpickled.

Ranks meet before they speak, and have as long as they like to get there: one may write a large file meanwhile. A rank
that dies is found by whoever launched it or, where nobody watches, by its silence (`signs`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from math import inf
from typing import Any, Final

import torch
import torch.distributed as dist

from partita.errors import RunError, first_line
from partita.transport.signs import Watch
from partita.units import Seconds

STORE: Final = "the store at which ranks meet, which rank 0 keeps or torchrun does,"
POLL_INTERVALS: Final[tuple[Seconds, Seconds]] = (1e-3, 2e-2)  # the first one, and the longest


def come(meeting: str, rank: int, word: str = "") -> None:
    """Say that this rank has come to a meeting, with a word for the others. Raises RunError."""
    with _reaching(STORE):
        dist.distributed_c10d._get_default_store().set(f"{meeting}/{rank}", word)


def wait_for(meeting: str, ranks: Iterable[int], limit: Seconds = inf) -> list[str]:
    """Wait until these ranks have come to it; their words, none if `limit` seconds have passed before. Other threads
    can use the store meanwhile. Raises RunError once the store is gone, or a rank that is waited for is silent."""
    store: Any = dist.distributed_c10d._get_default_store()
    keys, pause, end = {rank: f"{meeting}/{rank}" for rank in ranks}, POLL_INTERVALS[0], time.monotonic() + limit
    watch = Watch(store)
    with _reaching(STORE):
        while not store.check([*keys.values()]):
            if time.monotonic() > end:
                return []
            watch.look(rank for rank, key in keys.items() if not store.check([key]))
            time.sleep(pause)
            pause = min(2 * pause, POLL_INTERVALS[1])
        return [store.get(key).decode() for key in keys.values()]


def gather(body: Any, rank: int, world: int) -> list[Any]:
    """The bodies of all ranks below `world`, in their order, on rank 0; empty on other ranks. All must call it."""
    _meet(rank, world)
    if rank:
        _send(body, 0)
        return []
    return [body, *(_receive(peer) for peer in range(1, world))]


def spread(body: Any, rank: int, world: int) -> Any:
    """Rank 0's body, on every rank below `world`; all must call it."""
    _meet(rank, world)
    if rank:
        return _receive(0)
    for peer in range(1, world):
        _send(body, peer)
    return body


def _meet(rank: int, world: int) -> None:
    if world > 1:
        with _reaching(STORE):
            number = dist.distributed_c10d._get_default_store().add(f"met/{world}/{rank}", 1)
        come(meeting := f"met/{world}/{number}", rank)
        wait_for(meeting, range(world))


def _send(body: Any, to: int) -> None:
    text = torch.frombuffer(bytearray(json.dumps(body).encode()), dtype=torch.uint8)
    with _reaching(f"rank {to}"):
        dist.send(torch.tensor([len(text)]), to)
        dist.send(text, to)


def _receive(source: int) -> Any:
    length = torch.zeros(1, dtype=torch.int64)
    with _reaching(f"rank {source}"):
        dist.recv(length, source)
        text = torch.zeros(int(length), dtype=torch.uint8)
        dist.recv(text, source)
    return json.loads(text.numpy().tobytes())


@contextmanager
def _reaching(who: str) -> Iterator[None]:
    """A context in which something is asked of a process, which may have ended: raises RunError that names it."""
    try:
        yield
    except RuntimeError as error:
        raise RunError(f"{who} is gone ({first_line(error)}); look at what it said last") from error
