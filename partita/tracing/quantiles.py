"""Quantiles: what a distribution has below it with a given chance, for draws out of uniform numbers (`draws`). In fp64,
element by element, by bisection where no formula is known."""

from __future__ import annotations

import math
from typing import Final

import torch
from torch import Tensor

LEAST: Final = math.log(torch.finfo(torch.float64).tiny)
HALVINGS: Final = 64  # of at most a thousand, down to its last bit
TAIL: Final = 2.0**-25  # chances go from this one to what is left of 1


def normal(chance: Tensor) -> Tensor:
    """Of mean 0 and deviation 1."""
    made: Tensor = torch.special.ndtri(inner(chance))
    return made


def inner(chance: Tensor) -> Tensor:
    """Chances of which every distribution has a finite quantile."""
    return chance.clamp(TAIL, 1 - TAIL)


def log_gamma(shape: Tensor, chance: Tensor) -> Tensor:
    """The logarithm of that of a gamma distribution of scale 1."""
    shape, chance = torch.broadcast_tensors(shape.double(), inner(chance))  # type: ignore[no-untyped-call]
    low, high = torch.full_like(shape, LEAST), (shape + 8 * shape.sqrt() + 24).log()
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        below = torch.special.gammainc(shape, middle.exp()) < chance
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return high


def poisson(rate: Tensor, chance: Tensor) -> Tensor:
    """Of a Poisson distribution: the least number that is not exceeded with more than the chance."""
    rate = rate.double()
    low, high = torch.full_like(rate, -1.0), (rate + 8 * rate.sqrt() + 24).ceil()
    for _ in range(int(high.max()).bit_length() + 1 if rate.numel() else 0):
        middle = ((low + high) / 2).floor()
        most = torch.special.gammaincc(middle.clamp_min(0) + 1, rate)
        enough = (middle >= 0) & (most > chance)
        low, high = torch.where(enough, low, middle), torch.where(enough, middle, high)
        low = torch.minimum(low, high - 1)
    return high


def binomial(count: Tensor, probability: Tensor, chance: Tensor) -> Tensor:
    """Of the hits of `count` trials, by the chances of all their numbers."""
    n, p = count.double()[..., None], probability.double()[..., None]
    k = torch.arange(int(count.max()) + 1 if count.numel() else 1, dtype=torch.float64, device=count.device)
    left = (n - k).clamp_min(0)
    ways = torch.lgamma(n + 1) - torch.lgamma(k + 1) - torch.lgamma(left + 1)
    chances = (ways + torch.xlogy(k, p) + torch.special.xlog1py(left, -p)).exp() * (k <= n)
    found = (chances.cumsum(-1) <= chance[..., None]).sum(-1)
    return torch.minimum(found.double(), count.double())
