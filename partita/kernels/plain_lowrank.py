"""PowerSGD (EX-02) written out over all workers at once, without messages: the oracle of its kernels."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch

from partita.wire.codec import Settings
from partita.wire.lowrank import Shapes


def low_rank(
    own: Sequence[torch.Tensor], shapes: Shapes, settings: Settings, basis: torch.Tensor, seed: int
) -> tuple[list[torch.Tensor], torch.Tensor]:
    """What is understood of each worker's flat vector, and the Qs of all matrices, flat, for the next time."""
    said, after = [torch.zeros_like(v) for v in own], torch.zeros_like(basis)
    at = 0
    for number, shape in enumerate(shapes):
        size = prod(shape)
        place = slice(at, at + size)
        n = shape[0] if len(shape) > 1 else 1  # a vector or a number is one row
        m = size // max(n, 1)
        rank = min(int(settings["rank"]), n, m)
        at += size
        if rank * (n + m) >= n * m:
            for mine, v in zip(said, own, strict=True):
                mine[place] = v[place]
            continue
        matrices = [v[place].view(n, m) for v in own]
        q = basis[place][: rank * m].view(rank, m).clone()
        fresh = torch.randn((rank, m), dtype=torch.float64, generator=torch.Generator().manual_seed(seed + number))
        for row in range(rank):
            q[row] = q[row] if bool(q[row].any()) else fresh[row].to(q.dtype)
            q[row] /= q[row].norm()
        p = gram_schmidt(torch.stack([matrix @ q.T for matrix in matrices]).sum(0))
        for mine, matrix in zip(said, matrices, strict=True):
            mine[place] = (p @ (p.T @ matrix)).reshape(-1)
        after[place][: rank * m] = torch.stack([p.T @ matrix for matrix in matrices]).sum(0).reshape(-1)
    return said, after


def gram_schmidt(p: torch.Tensor) -> torch.Tensor:
    """Column by column; one that adds less than a hundred-thousandth of the longest is left out."""
    found: list[torch.Tensor] = []
    least = 1e-5 * float(p.norm(dim=0).max())
    for column in p.T:
        rest = column.clone()
        for before in found + found:
            rest -= before.dot(rest) * before
        found.append(rest / rest.norm() if float(rest.norm()) > least else torch.zeros_like(rest))
    return torch.stack(found, 1)
