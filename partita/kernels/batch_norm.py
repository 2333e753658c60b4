"""BatchNorm on an accelerator, as eager torch has it there: cuDNN's, where captures name torch's own, which takes half
as long again.

captured   out, mean, 1/std, running mean, running variance = functional(x, weight, bias, running ones, ...)
there      the same, by cuDNN, where it computes these dtypes and this layout; it needs nothing else kept for backward
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch import Tensor

LEAST: Final = 1e-5  # of epsilon that cuDNN takes
aten: Any = torch.ops.aten


def by_cudnn(x: Tensor, weight: Tensor | None, running: Tensor | None, training: bool, epsilon: float) -> bool:
    """Whether cuDNN has it: in training, on dense images in fp32."""
    known = training and x.dim() in (4, 5) and x.is_contiguous() and x.numel() > 0 and epsilon >= LEAST
    alike = weight is not None and running is not None and x.dtype is weight.dtype is torch.float32
    return bool(known and alike and torch._C._has_cudnn and torch.backends.cudnn.enabled)


def forward(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, variance: Tensor, training: bool,
    momentum: float, epsilon: float,
) -> tuple[Tensor, ...]:  # fmt: skip
    """The normalized x, what backward needs, and the running statistics after it."""
    if not by_cudnn(x, weight, mean, training, epsilon):
        found: tuple[Tensor, ...] = aten._native_batch_norm_legit_functional(
            x, weight, bias, mean, variance, training, momentum, epsilon
        )
        return found
    mean, variance = torch.stack((mean, variance))  # copies, by one launch
    out, own, deviation, _ = aten.cudnn_batch_norm(x, weight, bias, mean, variance, training, momentum, epsilon)
    return out, own, deviation, mean, variance


def backward(
    d_out: Tensor, x: Tensor, weight: Tensor | None, mean: Tensor | None, variance: Tensor | None,
    own: Tensor | None, deviation: Tensor | None, training: bool, epsilon: float, wanted: list[bool],
) -> tuple[Tensor, ...]:  # fmt: skip
    """The derivatives of x, weight and bias."""
    if not by_cudnn(x, weight, mean, training, epsilon):
        found: tuple[Tensor, ...] = aten.native_batch_norm_backward(
            d_out, x, weight, mean, variance, own, deviation, training, epsilon, wanted
        )
        return found
    kept = x.new_empty(0, dtype=torch.uint8)  # cuDNN reserves nothing for images in torch's order
    made: tuple[Tensor, ...] = aten.cudnn_batch_norm_backward(
        x, d_out.contiguous(), weight, mean, variance, own, deviation, epsilon, kept
    )
    return made


TWINS: Final[Mapping[str, Callable[..., Any]]] = {
    "aten._native_batch_norm_legit_functional.default": forward,
    "aten.native_batch_norm_backward.default": backward,
}
