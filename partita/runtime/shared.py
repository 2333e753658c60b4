"""Tensors that several ranks of one machine share: their Space.SHARED.

one process    all ranks hold the same tensors and one ledger; no read is torn, so a run has versions
processes      a file in memory that rank 0 fills and all map; it is unlinked once they have
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Final

import torch

from partita.program.instruction import Space
from partita.runtime.messages import gather, spread
from partita.runtime.rank import Rank
from partita.runtime.state import State

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
    """The same for ranks in processes; all must call it. There are no versions then, and no ledger."""
    state, places, world = rank.state, places_of(rank.state), rank.program.size
    if not places:
        return
    sizes = [state.kept[place].numel() * state.kept[place].element_size() for place in places]
    edges = [0, *accumulate(-(-size // LINE) * LINE for size in sizes)]
    path = ""
    if rank.rank == 0:
        handle, path = tempfile.mkstemp(prefix="partita-", dir=MEMORY if os.path.isdir(MEMORY) else None)
        os.truncate(handle, edges[-1])
        os.close(handle)
        whole = _map(path, edges[-1])
        for place, (start, _), size in zip(places, pairwise(edges), sizes, strict=True):
            whole[start : start + size].view(state.kept[place].dtype).copy_(state.kept[place])
    path = spread(path, rank.rank, world)
    whole = _map(path, edges[-1])
    for place, (start, _), size in zip(places, pairwise(edges), sizes, strict=True):
        state.kept[place] = whole[start : start + size].view(state.kept[place].dtype)
    state.ledger.blind = True
    gather(None, rank.rank, world)
    if rank.rank == 0:
        os.unlink(path)


def _map(path: str, size: int) -> torch.Tensor:
    return torch.from_file(path, shared=True, size=size, dtype=torch.uint8)
