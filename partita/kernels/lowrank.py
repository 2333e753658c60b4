"""Matrices sent as two thin factors, each summed over all workers on the way (PowerSGD, EX-02; Vogels et al. 2019).

    P = sum of M Q,  its columns made orthonormal,   Q = sum of M' P,   what all decode is P Q'

A worker's part of that is P (M' P)', so that what it holds back is known before Qs are summed. A column of P that adds
less than a hundred-thousandth of the longest is none: its Q begins anew from random numbers, the same on all workers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import inf
from typing import Final

import torch

from partita.kernels.site import Site
from partita.wire.codec import Settings
from partita.wire.lowrank import Factored, factored

LEAST: Final = 1e-5


@dataclass(frozen=True, slots=True)
class Place:
    """A piece: itself as a matrix, and where its factors are in the messages and in what stays (None: not there)."""

    piece: Factored
    values: torch.Tensor
    first: slice
    second: slice
    basis: torch.Tensor


def encode_factors(
    values: torch.Tensor, message: torch.Tensor, settings: Settings, key: int, back: bool, site: Site
) -> None:
    """The Ps of a bucket; where their sum is there, the Qs."""
    for number, at in enumerate(_places(values, settings, site)):
        if not site.sums:
            _first(at, message[at.first], site.seed + number, back)
        elif at.piece.rank:
            p = orthonormal(site.sums[0][at.first].view(at.piece.rows, -1))
            q = message[at.second].view(at.piece.rank, -1)
            torch.mm(p.T, at.values, out=q)
            if back:
                at.values.addmm_(p, q, alpha=-1)


def _first(at: Place, into: torch.Tensor, seed: int, back: bool) -> None:
    if at.piece.rank:
        torch.mm(at.values, started(at.basis, seed).T, out=into.view(at.piece.rows, -1))
        return
    into.copy_(at.values.view(-1))
    if back:
        at.values.zero_()


def decode_factors(message: torch.Tensor, values: torch.Tensor, settings: Settings, add: bool, site: Site) -> None:
    """P Q' of the sums, and the Qs kept for the next time."""
    sums = (*site.sums, message)
    for at in _places(values, settings, site):
        first = sums[0][at.first]
        if at.piece.rank:
            q = sums[1][at.second].view(at.piece.rank, -1)
            torch.addmm(at.values, first.view(at.piece.rows, -1), q, beta=float(add), out=at.values)
            at.basis.copy_(q)
        elif add:
            at.values.view(-1).add_(first)
        else:
            at.values.view(-1).copy_(first)


def _places(values: torch.Tensor, settings: Settings, site: Site) -> Iterator[Place]:
    at = first = second = 0
    for piece in factored(site.shapes, settings):
        matrix = values[at : at + piece.elements].view(piece.rows, piece.columns)
        kept = matrix[:0] if site.basis is None else site.basis[at : at + piece.second].view(piece.rank, piece.columns)
        yield Place(piece, matrix, slice(first, first + piece.first), slice(second, second + piece.second), kept)
        at, first, second = at + piece.elements, first + piece.first, second + piece.second


def started(basis: torch.Tensor, seed: int) -> torch.Tensor:
    """Rows of length 1 to begin with: those of the last Q, random ones for those that are zero."""
    fresh = random_rows(tuple(basis.shape), seed, basis.dtype, basis.device)
    rows = torch.where(basis.any(1, keepdim=True), basis, fresh)
    return rows.div_(torch.linalg.vector_norm(rows, dim=1, keepdim=True))


@lru_cache(maxsize=1024)
def random_rows(shape: tuple[int, ...], seed: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Normal numbers of a seed, the same on all devices; kept, as no step should wait for them."""
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(device, dtype)


def orthonormal(p: torch.Tensor) -> torch.Tensor:
    """The columns of P made orthonormal where they lie, each by two projections; those that add nothing become zero,
    at once, so that none is freed of a direction that is only round-off."""
    columns = p.T.contiguous()
    least = LEAST * torch.linalg.vector_norm(columns, dim=1).max()
    for number, rest in enumerate(columns):
        before = columns[:number]
        for _ in range(2 if number else 0):
            rest.addmv_(before.T, before @ rest, alpha=-1)
        added = torch.linalg.vector_norm(rest)
        rest.div_(added.masked_fill_(added <= least, inf))
    return p.copy_(columns.T)
