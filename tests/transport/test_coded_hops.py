"""Hops that are encoded: a result is encoded once, by its owner, so that all ranks end with the same bits."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch

from partita.program.space import Kind
from partita.transport.hops import by_schedule
from partita.wire.algorithms import BACKEND, schedule_of
from partita.wire.schedule import Schedule, even_edges, summed_once
from tests.threads import each_in_a_thread
from tests.transport.test_ring import Post, Posting

ELEMENTS = 23


@dataclass
class Drawing:
    """A codec that rounds to whole numbers at random, so that to encode again what was decoded is not the same."""

    seed: int
    draw: torch.Generator = field(default_factory=torch.Generator)

    def __post_init__(self) -> None:
        self.draw.manual_seed(self.seed)

    def size(self, elements: int) -> int:
        return 4 * elements

    def encode(self, values: torch.Tensor, message: torch.Tensor, part: int) -> None:
        noise = torch.randint(0, 2, values.shape, generator=self.draw)
        message.copy_((values.round() + noise).float().view(torch.uint8))

    def decode(self, message: torch.Tensor, values: torch.Tensor, *, add: bool) -> None:
        found = message.view(torch.float32).double()
        values.copy_(values + found if add else found)


def carried_out(schedule: Schedule, flats: dict[int, torch.Tensor]) -> None:
    post = Post()

    def run(rank: int) -> None:
        for pending in by_schedule(Posting(rank, post), schedule, flats[rank], (*flats,), "A", 0, Drawing(rank)):
            pending.block(5.0)

    each_in_a_thread((*flats,), run)


NAMES = ("ring", "tree", "halving", "blocks", "pairwise", "butterfly")
CASES = [(name, n) for name in NAMES for n in (2, 3, 4, 5) if summed_once(schedule_of(Kind.ALL_REDUCE, name, n))]


def test_schedules_are_tried_whose_results_have_an_owner() -> None:
    assert {name for name, _ in CASES} >= {"ring", "tree", "halving"}


@pytest.mark.parametrize(("name", "ranks"), CASES)
def test_all_ranks_end_with_the_bits_of_the_owner(name: str, ranks: int) -> None:
    """Near the sum: each hop is off by half and a draw at most."""
    schedule, group = schedule_of(Kind.ALL_REDUCE, name, ranks), range(ranks)
    flats = {rank: torch.arange(ELEMENTS, dtype=torch.float64) * 7.0 ** (rank + 1) for rank in group}
    total = sum(flats.values(), torch.zeros(ELEMENTS, dtype=torch.float64))

    carried_out(schedule, flats)
    assert all(torch.equal(flat, flats[0]) for flat in flats.values())
    assert (flats[0] - total).abs().max() <= 1.5 * 2 * ranks


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_parts_that_are_handed_round_are_their_owners(ranks: int) -> None:
    """As the second half of a sum of sparse vectors hands them round: nothing is received but what is decoded."""
    schedule = schedule_of(Kind.ALL_GATHER, BACKEND, ranks)
    flats = {rank: torch.arange(ELEMENTS, dtype=torch.float64) * 7.0 ** (rank + 1) for rank in range(ranks)}
    edges = even_edges(ELEMENTS, ranks)
    whole = torch.cat([flats[rank][edges[rank] : edges[rank + 1]] for rank in range(ranks)])
    carried_out(schedule, flats)
    assert all(torch.equal(flat, flats[0]) for flat in flats.values())
    assert (flats[0] - whole).abs().max() <= 1.5
