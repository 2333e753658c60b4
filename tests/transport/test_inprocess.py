"""Ranks of one process bring tensors in any order, and find the same bits."""

from __future__ import annotations

from itertools import permutations

import pytest
import torch

from partita.program.space import Kind
from partita.transport.inprocess import InProcess, Rendezvous

GROUP = (2, 5, 7)
BROUGHT = {2: 1e16, 5: 1.0, 7: -1e16}  # (1e16 + 1) - 1e16 is 0, in another order 1


@pytest.mark.parametrize("order", [*permutations(GROUP)])
def test_what_is_found_does_not_depend_on_who_comes_first(order: tuple[int, ...]) -> None:
    def after(kind: Kind, edges: tuple[int, ...] = ()) -> list[list[float]]:
        rendezvous, flats = Rendezvous(), {rank: torch.full((3,), BROUGHT[rank], dtype=torch.float64) for rank in GROUP}
        pending = [
            InProcess(rank, rendezvous).collective(kind, flats[rank], GROUP, "wire", "A", 0, edges) for rank in order
        ]
        assert all(one.ready() for one in pending)
        assert not rendezvous.exchanges
        return [flats[rank].tolist() for rank in GROUP]

    assert after(Kind.ALL_REDUCE) == [[0.0] * 3] * 3
    assert after(Kind.BROADCAST) == [[1e16] * 3] * 3
    assert [own[k] for k, own in enumerate(after(Kind.REDUCE_SCATTER, (0, 1, 2, 3)))] == [0.0] * 3
    assert after(Kind.ALL_GATHER, (0, 1, 2, 3)) == [[1e16, 1.0, -1e16]] * 3
