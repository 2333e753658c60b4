"""The k largest magnitudes of those beyond a bound, on a card and without the host: no kernel's size follows from how
many there are.

    gather_blocks   the numbers beyond the bound and their places, block by block, blocks in any order
    count_digits    how many of them have each digit of DIGIT bits, first of the highest, then of what that leaves
    find_edge       the k-th largest magnitude's bits, and how many equal ones belong to the k
    count_kept      how many of each block are above the edge, and how many are equal to it
    write_kept      places and numbers of the k in order, of equal ones the first

Where fewer than k or more than there is room for are beyond the bound, nothing is written.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
import triton.language as tl
from triton.language import constexpr, tensor

from partita.kernels.card_bits import kernel, launch

WIDE: Final = 4096  # numbers of a block, and of a program that counts digits
SOME: Final = 256  # of a block's candidates at a time: most have few
DIGIT: Final = 11  # bits, three times an fp32's 31 without the sign


@dataclass(frozen=True, slots=True)
class Candidates:
    """The first `found` of `numbers` and `places` count, those of a block from where it `starts`, so many as it has in
    `counts`."""

    found: torch.Tensor
    numbers: torch.Tensor
    places: torch.Tensor
    starts: torch.Tensor
    counts: torch.Tensor


@kernel
def gather_blocks(
    values: tensor, bound: tensor, found: tensor, numbers: tensor, places: tensor, starts: tensor, counts: tensor,
    n: tensor, room: tensor, WIDE: constexpr,
) -> None:  # fmt: skip
    """Those of WIDE numbers that are not below the bound."""
    i = tl.program_id(0) * WIDE + tl.arange(0, WIDE)
    v = tl.load(values + i, i < n, other=0)
    beyond = ((tl.abs(v) < tl.load(bound)) == 0) & (i < n)
    many = tl.sum(beyond.to(tl.int32), 0)
    start = tl.atomic_add(found, many, sem="relaxed")
    tl.store(starts + tl.program_id(0), start)
    tl.store(counts + tl.program_id(0), many)
    at = start + tl.cumsum(beyond.to(tl.int32), 0) - 1
    tl.store(numbers + at, v, beyond & (at < room))
    tl.store(places + at, i, beyond & (at < room))


@kernel
def magnitude(v: tensor) -> tensor:
    """The bits of |v|, which are in the order of the magnitudes."""
    if v.dtype == tl.float32:
        return (v.to(tl.int32, bitcast=True) & 0x7FFFFFFF).to(tl.int64)
    else:
        return v.to(tl.int64, bitcast=True) & 0x7FFFFFFFFFFFFFFF


@kernel
def edge_of(tallies: tensor, k: tensor, ROUNDS: constexpr, DIGIT: constexpr) -> tuple[tensor, tensor]:
    """The first ROUNDS digits of the k-th largest, and of how many of those that have them it is the smallest."""
    high, need = tl.zeros((), tl.int64), tl.zeros((), tl.int64) + k
    digit = tl.arange(0, 1 << DIGIT)
    for round in tl.static_range(ROUNDS):
        tally = tl.load(tallies + (round << DIGIT) + digit).to(tl.int64)
        above = tl.sum(tally, 0) - tl.cumsum(tally, 0)
        own = tl.sum((above >= need).to(tl.int64), 0)
        need -= tl.sum(tl.where(digit > own, tally, 0), 0)
        high = (high << DIGIT) + own
    return high, need


@kernel
def count_digits(
    found: tensor, numbers: tensor, tallies: tensor, room: tensor, k: tensor,
    ROUND: constexpr, ROUNDS: constexpr, DIGIT: constexpr, WIDE: constexpr,
) -> None:  # fmt: skip
    """How many of WIDE candidates that have the edge's first ROUND digits have each digit behind these."""
    many = tl.minimum(tl.load(found), room)
    if tl.program_id(0) * WIDE < many:
        j = tl.program_id(0) * WIDE + tl.arange(0, WIDE)
        bits, alike = magnitude(tl.load(numbers + j, j < many, other=0)), j < many
        if ROUND > 0:
            high, need = edge_of(tallies, k, ROUND, DIGIT)
            alike &= bits >> (DIGIT * (ROUNDS - ROUND)) == high
        digit = (bits >> (DIGIT * (ROUNDS - 1 - ROUND))) & ((1 << DIGIT) - 1)
        tally = tl.histogram(digit.to(tl.int32), 1 << DIGIT, mask=alike)
        tl.atomic_add(tallies + (ROUND << DIGIT) + tl.arange(0, 1 << DIGIT), tally, tally > 0, sem="relaxed")


@kernel
def find_edge(tallies: tensor, edge: tensor, k: tensor, ROUNDS: constexpr, DIGIT: constexpr) -> None:
    """The k-th largest's bits, and how many of these are taken."""
    bits, need = edge_of(tallies, k, ROUNDS, DIGIT)
    tl.store(edge, bits)
    tl.store(edge + 1, need)


@kernel
def count_kept(
    found: tensor, numbers: tensor, starts: tensor, counts: tensor, edge: tensor, kept: tensor, room: tensor,
    SOME: constexpr,
) -> None:  # fmt: skip
    """How many of a block's candidates are above the edge; behind those of all blocks, how many are equal to it."""
    block, above, ties = tl.program_id(0), tl.zeros((), tl.int32), tl.zeros((), tl.int32)
    if tl.load(found) <= room:
        start, many = tl.load(starts + block), tl.load(counts + block)
        for at in range(0, many, SOME):
            inside = at + tl.arange(0, SOME) < many
            bits = magnitude(tl.load(numbers + start + at + tl.arange(0, SOME), inside, other=0))
            above += tl.sum((inside & (bits > tl.load(edge))).to(tl.int32), 0)
            ties += tl.sum((inside & (bits == tl.load(edge))).to(tl.int32), 0)
    tl.store(kept + block, above)
    tl.store(kept + tl.num_programs(0) + block, ties)


@kernel
def write_kept(
    values: tensor, found: tensor, numbers: tensor, places: tensor, starts: tensor, counts: tensor, edge: tensor,
    kept: tensor, ends: tensor, to_places: tensor, to_numbers: tensor, room: tensor, k: tensor,
    BACK: constexpr, SOME: constexpr,
) -> None:  # fmt: skip
    """What is kept of a block's candidates, behind what is kept of those before; with BACK nothing is left there."""
    block, all = tl.program_id(0), tl.num_programs(0)
    if (tl.load(found) <= room) & (tl.load(found) >= k):
        start, many = tl.load(starts + block), tl.load(counts + block)
        above = tl.load(ends + block) - tl.load(kept + block)
        ties = tl.load(ends + all + block) - tl.load(kept + all + block) - tl.load(ends + all - 1)
        least, need = tl.load(edge), tl.load(edge + 1).to(tl.int32)
        for at in range(0, many, SOME):
            inside, j = at + tl.arange(0, SOME) < many, start + at + tl.arange(0, SOME)
            v, place = tl.load(numbers + j, inside, other=0), tl.load(places + j, inside, other=0)
            bits = magnitude(v)
            higher, equal = inside & (bits > least), inside & (bits == least)
            before = ties + tl.cumsum(equal.to(tl.int32), 0) - equal.to(tl.int32)
            taken = higher | (equal & (before < need))
            to = above + tl.cumsum(higher.to(tl.int32), 0) - higher.to(tl.int32) + tl.minimum(before, need)
            tl.store(to_places + to, place, taken)
            tl.store(to_numbers + to, v, taken)
            if BACK:
                tl.store(values + place, tl.zeros_like(v), taken)
            above += tl.sum(higher.to(tl.int32), 0)
            ties += tl.sum(equal.to(tl.int32), 0)


def candidates_of(values: torch.Tensor, bound: torch.Tensor, room: int) -> Candidates:
    """The numbers of flat `values` that are not below `bound`, one of them; `room` is for so many."""
    blocks, where = -(-values.numel() // WIDE), values.device
    found, places = torch.zeros(1, dtype=torch.int32, device=where), torch.empty(room, dtype=torch.int32, device=where)
    starts, counts = torch.empty((2, blocks), dtype=torch.int32, device=where)
    numbers = torch.empty(room, dtype=values.dtype, device=where)
    launch(
        gather_blocks, blocks, values, bound, found, numbers, places, starts, counts, values.numel(), room, WIDE=WIDE
    )
    return Candidates(found, numbers, places, starts, counts)


def write_largest(
    values: torch.Tensor, of: Candidates, k: int, places: torch.Tensor, numbers: torch.Tensor, back: bool
) -> None:
    """Fill `places` and `numbers` with the `k` largest candidates in the order of their places; with `back` they are
    zero in `values` then."""
    room, blocks, where = len(of.places), len(of.starts), values.device
    rounds = -(-(8 * values.itemsize - 1) // DIGIT)
    tallies = torch.zeros(rounds << DIGIT, dtype=torch.int32, device=where)
    for round in range(rounds):
        launch(
            count_digits, -(-room // WIDE), of.found, of.numbers, tallies, room, k,
            ROUND=round, ROUNDS=rounds, DIGIT=DIGIT, WIDE=WIDE,
        )  # fmt: skip
    edge = torch.empty(2, dtype=torch.int64, device=where)
    launch(find_edge, 1, tallies, edge, k, ROUNDS=rounds, DIGIT=DIGIT)
    kept = torch.empty((2, blocks), dtype=torch.int32, device=where)
    launch(count_kept, blocks, of.found, of.numbers, of.starts, of.counts, edge, kept, room, SOME=SOME)
    ends = kept.view(-1).cumsum(0, dtype=torch.int32)
    launch(
        write_kept, blocks, values, of.found, of.numbers, of.places, of.starts, of.counts, edge, kept, ends, places,
        numbers, room, k, BACK=back, SOME=SOME,
    )  # fmt: skip
