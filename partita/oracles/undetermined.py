"""Weights that their gradients do not determine: in exact arithmetic these are zero, and what is computed is round-off.

a key's bias       softmax(q (k + b)) does not depend on b      gradient 1e-17, its sign that of the order of sums
Adam, small eps    g / (|g| + eps) is +1 or -1                  so the weight goes where round-off sends it
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch

from partita.oracles.reference import fresh
from partita.task import Task

Named = Mapping[str, torch.Tensor]
ROUND_OFF: Final = 1e-12  # of a gradient in fp64, relative to the largest of the model


def undetermined(
    task: Task, gaps: Named, nudged: Named, tolerance: float, *, batch: int, steps: int, seed: int,
    dims: Mapping[int, int],
) -> str:  # fmt: skip
    """A sentence if all weights that are apart, as their `gaps` say, have gradients of round-off alone, and if the same
    serial training from weights a rounding away, whose gaps are `nudged`, is apart in their tensors too; else ""."""
    own, sizes = fresh(task, seed=seed, precision="fp64", dims=dims), dict[str, torch.Tensor]()
    for step in range(steps):
        for name, gradient in zip(own.trained, own.gradients(step, [(0, batch)], batch), strict=True):
            sizes[name] = torch.maximum(sizes.get(name, gradient.abs()), gradient.abs())
    most = max(float(size.max()) for size in sizes.values() if size.numel())
    apart = {name: gap > tolerance for name, gap in gaps.items() if (gap > tolerance).any()}
    if not apart or any(name not in sizes or not (nudged[name] > tolerance).any() for name in apart):
        return ""
    least = max(float(sizes[name][there].max()) for name, there in apart.items())
    if least > ROUND_OFF * most:
        return ""
    named = ", ".join([*apart][:3]) + (f" and {len(apart) - 3} more" if len(apart) > 3 else "")
    again = max(float(nudged[name].max()) for name in apart)
    return (
        f"all that differs is in {named}, where gradients are round-off ({least:.1g}; the model's largest is "
        f"{most:.1g}) of which the optimizer makes steps: the same serial training from weights a rounding "
        f"away is {again:.3g} apart there as well; with a larger eps the optimizer would not move these weights by it"
    )
