"""Tensors that several ranks of one machine share: their Space.SHARED.

one process    all ranks hold the same tensors and one ledger; no read is torn, so a run has versions
processes      a file in memory that rank 0 fills and all map; it is unlinked once they have
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import accumulate, pairwise
from typing import Final

import torch

from partita.errors import RunError
from partita.program.space import Space
from partita.runtime.rank import Rank
from partita.runtime.state import State
from partita.transport.messages import gather, spread
from partita.units import Bytes, show_bytes

MEMORY: Final = "/dev/shm"
LINE: Final = 64  # bytes of a cache line: no two buckets lie on one


def places_of(state: State) -> list[tuple[Space, str]]:
    """The (space, bucket) that a rank shares, in the same order on all."""
    return [place for place in state.kept if place[0] is Space.SHARED]


def in_common(ranks: Sequence[Rank]) -> None:
    """Let all ranks of this process use the first one's tensors."""
    first = ranks[0].state
    for rank in ranks[1:]:
        for place in places_of(rank.state):
            rank.state.kept[place] = first.kept[place]
            rank.state.ledger = first.ledger


def mapped(rank: Rank) -> None:
    """Let ranks in processes use the same tensors, in a file in memory; all must call it. There are no versions then,
    and no ledger. Raises RunError on rank 0 where memory has no room for the file."""
    state, places, world = rank.state, places_of(rank.state), rank.program.size
    if not places:
        return
    sizes = [state.kept[place].numel() * state.kept[place].element_size() for place in places]
    edges = [0, *accumulate(-(-size // LINE) * LINE for size in sizes)]
    with memory_file(edges[-1]) if rank.rank == 0 else nullcontext("") as path:
        if path:
            whole = _map(path, edges[-1])
            for place, (start, _), size in zip(places, pairwise(edges), sizes, strict=True):
                whole[start : start + size].view(state.kept[place].dtype).copy_(state.kept[place])
        whole = _map(spread(path, rank.rank, world), edges[-1])
        for place, (start, _), size in zip(places, pairwise(edges), sizes, strict=True):
            state.kept[place] = whole[start : start + size].view(state.kept[place].dtype)
        state.ledger.blind = True
        gather(None, rank.rank, world)


@contextmanager
def memory_file(size: Bytes) -> Iterator[str]:
    """The path of a file in memory that has `size` bytes for certain; who has mapped it keeps it, its name goes. Raises
    RunError where there is no room."""
    handle, path = tempfile.mkstemp(prefix="partita-", dir=MEMORY if os.path.isdir(MEMORY) else None)
    try:
        try:
            os.posix_fallocate(handle, 0, size)
        except OSError as error:
            raise RunError(
                f"{show_bytes(size)} of weights that ranks share do not fit into {os.path.dirname(path)} "
                f"({error.strerror}); give it more room (docker run --shm-size), or take a plan whose ranks share none"
            ) from error
        finally:
            os.close(handle)
        yield path
    finally:
        os.unlink(path)


def _map(path: str, size: int) -> torch.Tensor:
    return torch.from_file(path, shared=True, size=size, dtype=torch.uint8)
