"""Norms of rows in half precision on a processor, as a card has them: rows and weights come short, and are widened
inside; results are rounded, statistics are not.

card         out, mean, 1/std = native_layer_norm(x, ...)                 x and out short, sums in fp32
processor    the same of x in fp32, then rounded: torch's own kernel would round the statistics too
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

aten: Any = torch.ops.aten


def _widened(kernel: Callable[..., tuple[Tensor | None, ...]], rounded: int, *given: Any) -> tuple[Tensor | None, ...]:
    """What a kernel makes of tensors in fp32, the first `rounded` results in the dtype of the first tensor."""
    short = given[0].dtype
    made = kernel(*(a.float() if isinstance(a, Tensor) else a for a in given))
    return *(None if m is None else m.to(short) for m in made[:rounded]), *made[rounded:]


TWINS: Final[Mapping[str, Callable[..., Any]]] = {
    "aten.native_layer_norm.default": partial(_widened, aten.native_layer_norm, 1),
    "aten.native_layer_norm_backward.default": partial(_widened, aten.native_layer_norm_backward, 3),
}
