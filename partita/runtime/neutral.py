"""The gradient of a weight that a minibatch did not reach: -0.0, the number that every sum leaves as it is.

-0.0 + -0.0 = -0.0      no samples reached the weight: plain PyTorch has no gradient, its optimizer leaves it out
-0.0 +  0.0 =  0.0      some did, and their gradient is zero: decay and momentum move the weight

So the sum of all ranks' gradients tells whether any rank's samples reached a weight, by whatever messages it is made,
unless these hold chosen numbers: zeros come back then.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch


def neutral(like: torch.Tensor) -> torch.Tensor:
    """The gradient of a weight that no sample reached."""
    return torch.full_like(like, -0.0)


def reached(gradient: torch.Tensor) -> torch.Tensor:
    """A gradient of samples, its zeros made others than those of `neutral`, in place."""
    return gradient.add_(0.0)


def missing(gradients: Sequence[torch.Tensor]) -> list[bool]:
    """Which of some gradients are of weights that no sample reached."""
    parts = [i for i, gradient in enumerate(gradients) if gradient.numel()]
    found = [False] * len(gradients)
    if parts:
        firsts = torch.stack([gradients[i].reshape(-1)[0] for i in parts])
        for i, maybe in zip(parts, _negative_zeros(firsts).tolist(), strict=True):
            found[i] = maybe and bool(_negative_zeros(gradients[i]).all())
    return found


def left_out(gradients: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
    """The gradients as plain PyTorch has them: None where no sample reached the weight."""
    return [None if none else gradient for gradient, none in zip(gradients, missing(gradients), strict=True)]


def _negative_zeros(values: torch.Tensor) -> torch.Tensor:
    return (values == 0) & torch.signbit(values)
