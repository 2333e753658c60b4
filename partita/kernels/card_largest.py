"""The k largest magnitudes of those beyond a bound, on a card and without the host: no kernel's size follows from how
many there are.

    write_blocks    candidates: the places of the numbers that are not below the bound, in order (`card_beyond`)
    count_digits    how many of them have each digit of DIGIT bits, first of the highest, then of what that leaves
    find_edge       the k-th largest magnitude's bits, and how many equal ones belong to the k
    count_kept      how many of each SOME candidates are above the edge, and how many are equal to it
    write_kept      places and numbers of the k in order, of equal ones the first

Where fewer than k are candidates, or more than there is room for, nothing is written.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
import triton.language as tl
from triton.language import constexpr, tensor

from partita.kernels.card_beyond import ends_of, write_words
from partita.kernels.card_bits import kernel, launch

SOME: Final = 1024  # candidates of a program
DIGIT: Final = 8  # bits


@dataclass(frozen=True, slots=True)
class Candidates:
    """Some `numbers` and their `places`, of which the first `found` count; the numbers are there once they are read."""

    found: torch.Tensor
    numbers: torch.Tensor
    places: torch.Tensor


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
    values: tensor, found: tensor, places: tensor, numbers: tensor, tallies: tensor, room: tensor, k: tensor,
    ROUND: constexpr, ROUNDS: constexpr, DIGIT: constexpr, SOME: constexpr,
) -> None:  # fmt: skip
    """How many of SOME candidates that have the edge's first ROUND digits have each digit behind these. The first round
    reads them."""
    many = tl.load(found)
    if (many <= room) & (tl.program_id(0) * SOME < many):  # else there is nothing to find
        j = tl.program_id(0) * SOME + tl.arange(0, SOME)
        if ROUND > 0:
            v = tl.load(numbers + j, j < many, other=0)
        else:
            v = tl.load(values + tl.load(places + j, j < many, other=0), j < many, other=0)
            tl.store(numbers + j, v, j < many)
        bits, alike = magnitude(v), j < many
        if ROUND > 0:
            high, _ = edge_of(tallies, k, ROUND, DIGIT)
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
def count_kept(found: tensor, numbers: tensor, edge: tensor, kept: tensor, room: tensor, SOME: constexpr) -> None:
    """How many of SOME candidates are above the edge; behind those of all programs, how many are equal to it."""
    j = tl.program_id(0) * SOME + tl.arange(0, SOME)
    inside, least = j < tl.minimum(tl.load(found), room), tl.load(edge)
    bits = magnitude(tl.load(numbers + j, inside, other=0))
    tl.store(kept + tl.program_id(0), tl.sum((inside & (bits > least)).to(tl.int32), 0))
    tl.store(kept + tl.num_programs(0) + tl.program_id(0), tl.sum((inside & (bits == least)).to(tl.int32), 0))


@kernel
def write_kept(
    values: tensor, found: tensor, numbers: tensor, places: tensor, edge: tensor, ends: tensor, to_places: tensor,
    to_numbers: tensor, room: tensor, k: tensor, BACK: constexpr, SOME: constexpr,
) -> None:  # fmt: skip
    """What is kept of SOME candidates, behind what is kept of those before; with BACK nothing is left there."""
    many = tl.load(found)
    if (many <= room) & (many >= k) & (tl.program_id(0) * SOME < many):
        j, all = tl.program_id(0) * SOME + tl.arange(0, SOME), tl.num_programs(0)
        v, place = tl.load(numbers + j, j < many, other=0), tl.load(places + j, j < many, other=0)
        bits, least, need = magnitude(v), tl.load(edge), tl.load(edge + 1).to(tl.int32)
        higher, equal = ((j < many) & (bits > least)).to(tl.int32), ((j < many) & (bits == least)).to(tl.int32)
        above = tl.load(ends + tl.program_id(0)) - tl.sum(higher, 0)
        ties = tl.load(ends + all + tl.program_id(0)) - tl.load(ends + all - 1) - tl.sum(equal, 0)
        before = ties + tl.cumsum(equal, 0) - equal
        taken = (higher > 0) | ((equal > 0) & (before < need))
        to = above + tl.cumsum(higher, 0) - higher + tl.minimum(before, need)
        tl.store(to_places + to, place, taken)
        tl.store(to_numbers + to, v, taken)
        if BACK:
            tl.store(values + place, tl.zeros_like(v), taken)


def candidates_of(values: torch.Tensor, bound: torch.Tensor, room: int) -> Candidates:
    """The numbers of flat `values` that are not below `bound`, one of them; there is `room` for so many."""
    ends, places = ends_of(values, bound, False), torch.empty(room, dtype=torch.int32, device=values.device)
    write_words(values, bound, ends, places, False, False)
    return Candidates(ends[-1:], torch.empty(room, dtype=values.dtype, device=values.device), places)


def write_largest(
    values: torch.Tensor, of: Candidates, k: int, places: torch.Tensor, numbers: torch.Tensor, back: bool
) -> None:
    """Fill `places` and `numbers` with the `k` largest candidates in the order of their places; with `back` they are
    zero in `values` then."""
    room, where, programs = len(of.places), values.device, -(-len(of.places) // SOME)
    rounds = -(-(8 * values.itemsize - 1) // DIGIT)
    tallies = torch.zeros(rounds << DIGIT, dtype=torch.int32, device=where)
    for round in range(rounds):
        launch(
            count_digits, programs, values, of.found, of.places, of.numbers, tallies, room, k,
            ROUND=round, ROUNDS=rounds, DIGIT=DIGIT, SOME=SOME,
        )  # fmt: skip
    edge = torch.empty(2, dtype=torch.int64, device=where)
    launch(find_edge, 1, tallies, edge, k, ROUNDS=rounds, DIGIT=DIGIT)
    kept = torch.empty(2 * programs, dtype=torch.int32, device=where)
    launch(count_kept, programs, of.found, of.numbers, edge, kept, room, SOME=SOME)
    launch(
        write_kept, programs, values, of.found, of.numbers, of.places, edge, kept.cumsum(0, dtype=torch.int32), places,
        numbers, room, k, BACK=back, SOME=SOME,
    )  # fmt: skip
